"""Forwards the output of runs to the scheduler's own output while they run.

A run writes to a file, which stays writable when the scheduler, or the Guild process that reads its output, is killed;
so the run continues. One thread follows the files of all running runs and forwards whole lines.
"""

import contextlib
import math
import os
import pathlib
import threading
import time
from collections.abc import Callable
from typing import BinaryIO

from guild_dask.host import files
from guild_dask.host.inotify import MODIFIED, Watcher
from guild_dask.monitor import formatting

# Seconds between polls of the files: without inotify (macOS, network file systems), and as a fallback with it.
_POLL_WITHOUT_INOTIFY = 0.2
_POLL_WITH_INOTIFY = 2.0
_CHUNK = 1 << 16
# A longer line is forwarded in parts, so that an endless line does not fill the memory.
_LONGEST_LINE = 1 << 20
# Seconds between two texts of a line that is redrawn, on a terminal.
_REDRAWN = 1.0


class _Followed:
    def __init__(self, name: bytes, path: pathlib.Path, file: BinaryIO) -> None:
        self.name = name
        self.path = path
        self.file = file
        self.rest = b""
        self.last_line = ""
        self._is_in_line = False  # the last output ended with \r, which may be the first half of \r\n
        self._redrawn = b""  # the last text that a line was redrawn with, if it was not shown
        self._shown = -math.inf  # when a redrawn line was shown last

    def open_again(self) -> None:
        """Opens the file again: NFS then refreshes its cache, and shows what another host has written."""
        file = files.opened(self.path)
        file.seek(self.file.tell())
        self.file.close()
        self.file = file

    @property
    def is_redrawn(self) -> bool:
        """Tells whether the last text of a line was not shown, since the line was expected to be redrawn."""
        return bool(self._redrawn)

    def for_terminal(self, lines: bytes, is_named: bool, now: float) -> bytes:
        """Returns whole lines for a terminal with a live line, each prefixed with the run's name if it is to be named.

        Of a line that is redrawn with \\r, as progress bars are, one text in a second is shown, and the last one. In
        place, it would overwrite the live line and the lines of other runs.
        """
        shown: list[bytes] = []
        for part in lines.splitlines(keepends=True):
            text = part.rstrip(b"\r\n")
            if part.endswith(b"\r"):
                # Progress bars begin with \r rather than end with it, so that the first text is empty.
                self._redrawn = text or self._redrawn
                if self._redrawn and now - self._shown >= _REDRAWN:
                    shown.append(self._redrawn)
                    self._redrawn, self._shown = b"", now
            elif self._is_in_line and not text:
                shown += [self._redrawn] if self._redrawn else []  # it was the second half of \r\n
                self._redrawn = b""
            else:
                shown.append(text)
                self._redrawn = b""
            self._is_in_line = part.endswith(b"\r")
        prefix = b"%s | " % self.name if is_named else b""
        return b"".join(b"%s%s\n" % (prefix, text) for text in shown)


class OutputFollower:
    """Passes whole lines of the followed files to `emit`."""

    def __init__(self, folder: str, emit: Callable[[bytes], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.names_runs = False  # whether each line begins with its run's short id
        self.is_on_terminal = False  # whether a live line is below the output, so that whole lines must be forwarded
        self._folder = pathlib.Path(folder)
        self._emit = emit
        self._clock = clock
        self._watcher = Watcher()
        self._files: dict[str, _Followed] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._follow, name="run-output", daemon=True)
        self._thread.start()

    def follow(self, run_id: str) -> str:
        """Starts to follow a run, and returns the path of the file for its output."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / run_id
        path.unlink(missing_ok=True)  # whatever a killed scheduler has left
        files.overwrite(path, flags=os.O_CREAT | os.O_EXCL)
        with self._lock:
            self._watcher.add(str(self._folder), MODIFIED)  # it may have been removed and created since the last time
            name = formatting.short(run_id).encode("utf-8", "backslashreplace")
            self._files[run_id] = _Followed(name, path, files.opened(path))
        self._watcher.wake()
        return str(path)

    def finish(self, run_id: str) -> str:
        """Forwards the rest of a run's output, removes the file, and returns the last line."""
        with self._lock:
            followed = self._files.pop(run_id, None)
            if not followed:
                return ""
            # A file that cannot be read or removed now must not keep a run from being settled.
            with contextlib.suppress(OSError):
                followed.open_again()
            with contextlib.suppress(OSError):
                self._forward(followed, is_last=True)
            with contextlib.suppress(OSError):
                followed.file.close()
                followed.path.unlink(missing_ok=True)
            return followed.last_line

    def close(self) -> None:
        """Forwards all output so far, and stops following."""
        self._closed = True
        self._watcher.wake()
        self._thread.join()
        for run_id in list(self._files):
            self.finish(run_id)
        self._watcher.close()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _follow(self) -> None:
        while not self._closed:
            self._watcher.wait(self._timeout())
            with self._lock:
                for followed in self._files.values():
                    with contextlib.suppress(OSError):
                        self._forward(followed)

    def _timeout(self) -> float | None:
        if not self._files:
            return None
        return _POLL_WITH_INOTIFY if self._watcher.is_notified else _POLL_WITHOUT_INOTIFY

    def _forward(self, followed: _Followed, is_last: bool = False) -> None:
        while chunk := followed.file.read(_CHUNK):
            data = followed.rest + chunk
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if not end and len(data) >= _LONGEST_LINE:
                end = len(data) - 1  # the rest keeps the line incomplete
            followed.rest = data[end:]
            if end:
                self._send(followed, data[:end])
        if is_last and followed.rest:
            self._send(followed, followed.rest + b"\n")
            followed.rest = b""
        elif is_last and followed.is_redrawn and self.is_on_terminal:
            self._send(followed, b"\n")

    def _send(self, followed: _Followed, lines: bytes) -> None:
        is_shown = self.names_runs or self.is_on_terminal
        shown = followed.for_terminal(lines, self.names_runs, self._clock()) if is_shown else lines
        if shown:
            self._emit(shown)
        last = lines.rstrip()[-1000:].splitlines()[-1:]
        followed.last_line = last[0].decode("utf-8", "replace") if last else followed.last_line
