"""Which runs are staged, found without reading more of the runs directory than can have changed.

A poll reads new names and doubtful ones at once. All others take turns: the known staged runs, and the runs, most of
them long finished, that are not staged. So a home with tens of thousands of runs costs little. Between polls, a name
that is known to have changed can be read alone.
"""

import itertools
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

from guild_dask.home import layout, run_directory
from guild_dask.home.errors import HomeUnavailable, check_home, may_concern_one_run
from guild_dask.home.run_directory import BrokenRun, Staged

# Seconds after which a change surely gets another mtime.
_QUIET = 2.0

# How many runs may be unreadable, each for an error of the file system, before the home counts as unavailable.
_MOST_UNREADABLE = 20

Signature = tuple[int, ...]


@dataclass(frozen=True)
class Turns:
    """How much of the runs directory one poll reads. A run that is to be started is read in any case."""

    staged: int = 1_000  # of the known staged runs
    others: int = 5_000  # of the runs that were not staged when last read
    listed: int = 6  # the names are listed at least once in so many polls, whatever the time of the folder says


@dataclass(frozen=True)
class Listing:
    """What has changed since the last poll: runs that are newly staged or have other tags, in the order of staging.

    Directories that cannot be read are all listed, each with the reason.
    """

    staged: tuple[Staged, ...]
    broken: dict[str, str]
    gone: frozenset[str] = frozenset()  # no longer staged


class RunsDirectory:
    """The names in the runs directory, and what is known of those that are staged."""

    def __init__(self, path: str, turns: Turns | None = None) -> None:
        self.path = path
        self._turns = turns or Turns()
        # In each, the run that was read the longest ago comes first.
        self._staged: dict[str, tuple[Signature, Staged]] = {}
        self._others: dict[str, None] = {}
        self._broken: dict[str, str] = {}
        self._doubted: set[str] = set()  # to be read at the next poll, whatever is known of them
        self._listed: int | None = None  # the time of the folder when its names were listed, if it was old enough
        self._polls = 0  # the number of polls since then
        self._unreadable = 0  # runs that the file system did not let be read, since the poll began

    def poll(self) -> Listing:
        """Polls the runs directory, and returns what has changed."""
        due, vanished = self._new_and_vanished()
        due.update(dict.fromkeys((*self._doubted, *self._broken)))
        due.update(dict.fromkeys(itertools.islice(self._staged, self._turns.staged)))
        due.update(dict.fromkeys(self._others_that_may_be_staged()))
        return self._read_all(due, vanished)

    def _others_that_may_be_staged(self) -> list[str]:
        """Returns the runs that were not staged, whose turn it is, and that have the marker now."""
        turn = list(itertools.islice(self._others, self._turns.others))
        for name in turn:
            self._others[name] = self._others.pop(name)
        return [
            name for name in turn if os.access(layout.marker(layout.run_in(self.path, name), layout.STAGED), os.F_OK)
        ]

    def read(self, names: Iterable[str]) -> Listing:
        """Reads the runs with the given names, and returns what has changed."""
        return self._read_all(names, ())

    def _read_all(self, names: Iterable[str], vanished: Iterable[str]) -> Listing:
        names, found, gone = list(names), [], set(vanished)
        self._unreadable = 0
        try:
            for name in names:
                before = self._staged.get(name)
                run = self._read_one(name, before)
                if run is None and (before or name in self._doubted):
                    gone.add(name)
                elif run is not None and (before is None or run != before[1]):
                    found.append(run)
                self._doubted.discard(name)
        except HomeUnavailable:
            # Nothing is returned, so that the next poll must find all of it again.
            for run in found:
                self._drop(run.id)
            self._doubted.update(names, gone)
            raise
        return Listing(tuple(sorted(found, key=lambda run: (run.since, run.id))), dict(self._broken), frozenset(gone))

    def _read_one(self, name: str, before: tuple[Signature, Staged] | None) -> Staged | None:
        """Reads one run, remembers it, and returns it if it is staged."""
        run_dir = layout.run_in(self.path, name)
        self._drop(name)
        try:
            signature = run_directory.staged_signature(run_dir)
            if signature is not None:
                seen = before if before and before[0] == signature else (signature, run_directory.read_staged(run_dir))
                self._staged[name] = seen
                return seen[1]
            self._others[name] = None
        except FileNotFoundError:
            self._others[name] = None  # it was deleted, or started, meanwhile
        except OSError as e:
            self._check_home(e, e, name)
            self._broken[name] = f"it cannot be read: {e.strerror or e}"
        except BrokenRun as e:
            self._check_home(e, e.__cause__, name)
            self._broken[name] = str(e)  # it may be half written; the next poll reads it again
        return None

    def _check_home(self, error: Exception, cause: BaseException | None, name: str) -> None:
        """Raises HomeUnavailable if it is no fault of a single run that it cannot be read."""
        self._unreadable += may_concern_one_run(cause)
        if not may_concern_one_run(cause) or self._unreadable > _MOST_UNREADABLE:
            check_home(error, name)

    def _drop(self, name: str) -> None:
        self._staged.pop(name, None)
        self._others.pop(name, None)
        self._broken.pop(name, None)

    def _new_and_vanished(self) -> tuple[dict[str, None], list[str]]:
        """Returns new names, and the names of staged runs that were deleted."""
        self._polls += 1
        time_of_folder = self._time()
        if self._listed is not None and self._listed == time_of_folder and self._polls < self._turns.listed:
            return {}, []
        names = dict.fromkeys(self.names())
        is_settled = time_of_folder is not None and time_of_folder < time.time_ns() - _QUIET * 1e9
        self._listed, self._polls = time_of_folder if is_settled else None, 0
        vanished = [name for name in self._staged if name not in names]
        for name in [
            name for known in (self._staged, self._others, self._broken) for name in known.keys() - names.keys()
        ]:
            self._drop(name)
        known = self._staged.keys() | self._others.keys() | self._broken.keys()
        return {name: None for name in names if name not in known}, vanished

    def _time(self) -> int | None:
        """Returns when a name was last added to the folder or removed from it."""
        try:
            return os.stat(self.path).st_mtime_ns
        except OSError:
            return None

    def forget(self, name: str) -> None:
        """Makes the next poll treat the name as a new one."""
        self._drop(name)
        self._doubted.add(name)

    def is_unchanged(self, run: Staged) -> bool:
        """Returns whether a run is staged with the tags that it had when it was last read; if not, it is doubtful."""
        known = self._staged.get(run.id)
        try:
            if known is not None and known[1] == run and run_directory.current_signature(run.dir) == known[0]:
                return True
        except OSError:
            pass
        self._doubted.add(run.id)
        return False

    def names(self) -> list[str]:
        """Returns the names of all run directories."""
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []
        except OSError as e:
            raise HomeUnavailable(f"cannot list {self.path}: {e.strerror or e}") from e
