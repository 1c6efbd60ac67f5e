"""Reports at once that a run was staged or deleted, or a request made, where the operating system can watch folders.

A new run directory is watched until it is staged or starts; older ones are found by the loop's regular poll. On file
systems that other hosts write to, the regular poll finds everything.
"""

import contextlib
import os
import threading
from collections.abc import Callable

from guild_dask.home import layout, run_directory
from guild_dask.host.inotify import CREATED, DELETED, MOVED_FROM, MOVED_TO, Watcher

# The largest number of folders watched at a time. A run is watched for a fraction of a second while it is staged.
_MOST = 2_000

_CHANGES = CREATED | MOVED_TO | DELETED


class _Watching:
    """A folder that is watched by a thread of its own, which passes on each change as (number, name)."""

    def __init__(self, folder: str, changes: int) -> None:
        self._watcher = Watcher()
        self._closed = False
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
        self._root = self._watcher.add(folder, changes)
        self._thread = threading.Thread(target=self._watch, name=type(self).__name__, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops watching."""
        self._closed = True
        self._watcher.wake()
        self._thread.join()
        self._watcher.close()

    def _watch(self) -> None:
        while not self._closed:
            if changes := self._watcher.wait(None):
                self._take(changes)

    def _take(self, changes: list[tuple[int, str]]) -> None:
        raise NotImplementedError


class FolderWatcher(_Watching):
    """Calls `report` when something in a folder has changed, from a thread of its own."""

    def __init__(self, folder: str, report: Callable[[], object]) -> None:
        self._report = report
        super().__init__(folder, _CHANGES)

    def _take(self, changes: list[tuple[int, str]]) -> None:
        self._report()


class RunsWatcher(_Watching):
    """Calls `report` with the name of each run that was staged or deleted, from a thread of its own."""

    def __init__(self, runs_dir: str, report: Callable[[str], object]) -> None:
        self._runs_dir = runs_dir
        self._report = report
        self._folders: dict[int, tuple[str, str]] = {}  # number -> run name, watched folder
        super().__init__(runs_dir, CREATED | MOVED_TO | MOVED_FROM | DELETED)

    def _take(self, changes: list[tuple[int, str]]) -> None:
        for number, name in changes:
            if number == self._root and not os.path.isdir(layout.run_in(self._runs_dir, name)):
                self._report(name)  # it was deleted, and may have been staged
            elif number == self._root:
                self._approach(name)
            elif number in self._folders:
                run, folder = self._folders[number]
                self._see(number, run, folder, name)

    def _see(self, number: int, run: str, folder: str, name: str) -> None:
        run_dir = layout.run_in(self._runs_dir, run)
        if folder == run_dir:
            if name == layout.GUILD_DIR:
                self._leave(number)
                self._approach(run)
        elif name == layout.LOCK:
            self._leave(number)  # it runs; it will not be staged
        elif name in (layout.STAGED, layout.PENDING) and _may_be_staged(run_dir):
            self._leave(number)
            self._report(run)

    def _approach(self, run: str) -> None:
        """Watches the run's `.guild` folder if it is there, else the run's own until it appears."""
        run_dir = layout.run_in(self._runs_dir, run)
        guild_dir = layout.guild_dir(run_dir)
        if len(self._folders) >= _MOST:
            self._leave(next(iter(self._folders)))
        folder, number = guild_dir, self._watcher.add(guild_dir, _CHANGES)
        if number is None:
            folder, number = run_dir, self._watcher.add(run_dir, _CHANGES)
        if number is None:
            return
        self._folders[number] = (run, folder)
        # A file that was made before the watch began is not reported.
        if folder == guild_dir:
            self._see(number, run, folder, layout.STAGED)
        elif os.path.isdir(guild_dir):
            self._see(number, run, folder, layout.GUILD_DIR)

    def _leave(self, number: int) -> None:
        self._folders.pop(number, None)
        self._watcher.remove(number)


def _may_be_staged(run_dir: str) -> bool:
    try:
        return run_directory.is_staged(run_dir)
    except OSError:
        return True  # the poll will report what is wrong with it
