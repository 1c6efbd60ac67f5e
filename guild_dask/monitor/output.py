"""Forwards the output of runs to the scheduler's own output while they run.

A run writes to a file, which stays writable when the scheduler, or the Guild process that reads its output, is killed;
so the run continues. One thread follows the files of all running runs and forwards whole lines, no faster than they
are read. The scheduler's loop never waits for it: what is not forwarded when a run ends follows later.
"""

import contextlib
import math
import os
import pathlib
import threading
import time
from collections.abc import Callable
from typing import Protocol

from guild_dask.home import layout
from guild_dask.host import files
from guild_dask.host.inotify import MODIFIED, Watcher
from guild_dask.monitor import formatting

# Seconds between polls of the files: without inotify (macOS, network file systems), and as a fallback with it.
_POLL_WITHOUT_INOTIFY = 0.2
_POLL_WITH_INOTIFY = 2.0
_CHUNK = 1 << 16
# A longer line is forwarded in parts, so that an endless line does not fill the memory.
_LONGEST_LINE = 1 << 20
# Bytes that are forwarded at once when a run ends; more follows later.
_AT_THE_END = 1 << 20
# Ended runs whose output is not forwarded yet, at most, since each has a file open; that of further ones is left out.
_MOST_ENDED = 16
# Seconds after which output is left out: if nothing of it is read, and if the scheduler is to stop.
_PATIENCE = 10.0
_PATIENCE_AT_STOP = 3.0
# Seconds between two checks whether the scheduler is to stop.
_CHECK = 0.2
# Seconds between two texts of a line that is redrawn, on a terminal.
_REDRAWN = 1.0


class _Followed:
    """The file of one run, and how far it was read. There is one for each run that starts, so it has no buffer."""

    def __init__(self, name: bytes, path: str) -> None:
        self.name = name
        self.path = path
        self._fd = files.open_file(path)
        self._position = 0
        self.rest = b""
        self.last_line = ""
        self._is_in_line = False  # the last output ended with \r, which may be the first half of \r\n
        self._redrawn = b""  # the last text that a line was redrawn with, if it was not shown
        self._shown = -math.inf  # when a redrawn line was shown last

    def open_again(self) -> None:
        """Opens the file again: NFS then refreshes its cache, and shows what another host has written."""
        fd = files.open_file(self.path)
        os.close(self._fd)
        self._fd = fd

    def read(self) -> bytes:
        """Returns the next part of the file; shorter than others at its end."""
        part = os.pread(self._fd, _CHUNK, self._position)
        self._position += len(part)
        return part

    @property
    def left(self) -> int:
        """Returns how many bytes of the file have not been read."""
        try:
            return max(0, os.fstat(self._fd).st_size - self._position)
        except OSError:
            return 0

    def read_last_line(self) -> str:
        """Returns the last line of the file, of which a part may not have been forwarded."""
        try:
            end = os.pread(self._fd, _CHUNK, max(0, os.fstat(self._fd).st_size - _CHUNK))
        except OSError:
            return self.last_line
        return _last_line(end) or self.last_line

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):
            os.close(self._fd)
        self._fd = -1

    @property
    def is_redrawn(self) -> bool:
        """Returns whether the last text of a line was not shown, since the line was expected to be redrawn."""
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


class Receiver(Protocol):
    """What output is forwarded to. It never makes its caller wait, except where the name says so."""

    def write_output(self, data: bytes) -> None:
        """Accepts whole lines."""

    def wait_for_space(self, timeout: float = 0.0) -> bool:
        """Returns whether more can be accepted, after at most so many seconds."""

    def leave_out(self, count: int) -> None:
        """Notes that so many bytes are left out."""


class OutputFollower:
    """Passes whole lines of the followed files to a receiver."""

    def __init__(self, folder: str, receiver: Receiver, clock: Callable[[], float] = time.monotonic) -> None:
        self.names_runs = False  # whether each line begins with its run's short id
        self.is_on_terminal = False  # whether a live line is below the output, so that whole lines must be forwarded
        self._folder = pathlib.Path(folder)
        self._receiver = receiver
        self._clock = clock
        self._watcher = Watcher()
        # Guarded by _lock, as is the reading of a file: running runs, and ended ones of which a part is not forwarded.
        self._files: dict[str, _Followed] = {}
        self._ended: list[_Followed] = []
        self._lock = threading.Lock()
        self._is_closing = False  # the thread ends when all is forwarded
        self._is_closed = False  # the thread ends at once
        self._thread = threading.Thread(target=self._follow, name="output-follower", daemon=True)
        self._thread.start()

    def follow(self, run_id: str) -> str:
        """Starts to follow a run, and returns the path of the file for its output."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = layout.output_in(str(self._folder), run_id)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # what a killed scheduler has left
        files.overwrite(path, flags=os.O_CREAT | os.O_EXCL)
        with self._lock:
            self._watcher.add(str(self._folder), MODIFIED)  # it may have been removed and created since the last time
            name = formatting.short(run_id).encode()
            before, self._files[run_id] = self._files.get(run_id), _Followed(name, path)
            if before:
                before.close()
        self._watcher.wake()
        return path

    def finish(self, run_id: str) -> str:
        """Forwards the rest of a run's output, now or later, removes the file, and returns the last line."""
        with self._lock:
            followed = self._files.pop(run_id, None)
            if not followed:
                return ""
            # A file that cannot be read or removed now must not keep a run from being settled.
            with contextlib.suppress(OSError):
                followed.open_again()
            with contextlib.suppress(OSError):
                os.unlink(followed.path)
            left = _AT_THE_END
            while left > 0 and self._receiver.wait_for_space() and self._forward_part(followed):
                left -= _CHUNK
            if followed.left:
                self._forward_later(followed)
                return followed.read_last_line()
            self._forward_end(followed)
            return followed.last_line

    def _forward_later(self, followed: _Followed) -> None:
        if len(self._ended) < _MOST_ENDED:
            self._ended.append(followed)
            self._watcher.wake()
        else:
            self._receiver.leave_out(followed.left)
            followed.close()

    def close(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Forwards all output so far, and stops following.

        Waits for a reader that reads, unless the scheduler is to stop; then, only for a few seconds.
        """
        for run_id in list(self._files):
            self.finish(run_id)
        self._is_closing = True
        self._watcher.wake()
        self._wait_for_reader(is_stopping)
        self._is_closed = True
        self._thread.join()
        if left := sum(followed.left for followed in self._ended):
            self._receiver.leave_out(left)
        for followed in self._ended:
            followed.close()
        self._watcher.close()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _wait_for_reader(self, is_stopping: Callable[[], bool]) -> None:
        before, since, began = -1, self._clock(), self._clock()
        while self._thread.is_alive():
            self._thread.join(_CHECK)
            left, now = sum(followed.left for followed in self._ended), self._clock()
            before, since = (left, now) if left != before else (before, since)
            if now - since > _PATIENCE or (is_stopping() and now - began > _PATIENCE_AT_STOP):
                return

    def _follow(self) -> None:
        while not self._is_closed and not (self._is_closing and not self._ended):
            self._watcher.wait(self._timeout())
            while not self._is_closed and self._forward_all():
                pass

    def _timeout(self) -> float | None:
        if not self._files or self._is_closing:
            return None
        return _POLL_WITH_INOTIFY if self._watcher.is_notified else _POLL_WITHOUT_INOTIFY

    def _forward_all(self) -> bool:
        """Forwards a part of each file, and waits for the reader after each; returns whether there is more."""
        with self._lock:
            present = [*self._files.values(), *self._ended]
        has_more = False
        for followed in present:
            while not self._receiver.wait_for_space(_CHECK):
                if self._is_closed:
                    return False
            with self._lock:
                if followed in self._ended or followed in self._files.values():
                    has_more |= self._forward_one(followed)
        return has_more

    def _forward_one(self, followed: _Followed) -> bool:
        has_more = False
        with contextlib.suppress(OSError):
            has_more = self._forward_part(followed)
        if not has_more and followed in self._ended:
            self._ended.remove(followed)
            self._forward_end(followed)
        return has_more

    def _forward_part(self, followed: _Followed) -> bool:
        """Forwards the whole lines of the next part of a file; returns whether there may be more."""
        chunk = followed.read()
        data = followed.rest + chunk
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not end and len(data) >= _LONGEST_LINE:
            end = len(data) - 1  # the rest keeps the line incomplete
        followed.rest = data[end:]
        if end:
            self._send(followed, data[:end])
        return len(chunk) == _CHUNK

    def _forward_end(self, followed: _Followed) -> None:
        if followed.rest:
            self._send(followed, followed.rest + b"\n")
            followed.rest = b""
        elif followed.is_redrawn and self.is_on_terminal:
            self._send(followed, b"\n")
        followed.close()

    def _send(self, followed: _Followed, lines: bytes) -> None:
        is_shown = self.names_runs or self.is_on_terminal
        shown = followed.for_terminal(lines, self.names_runs, self._clock()) if is_shown else lines
        if shown:
            self._receiver.write_output(shown)
        followed.last_line = _last_line(lines) or followed.last_line


def _last_line(data: bytes) -> str:
    """Returns the last line that is not empty, or its end."""
    last = data.rstrip()[-1000:].splitlines()[-1:]
    return last[0].decode("utf-8", "replace") if last else ""
