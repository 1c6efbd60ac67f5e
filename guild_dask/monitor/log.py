"""The scheduler's log. Log lines and the output of runs share one stream, which keeps their order.

The stream is a pipe to Guild's process. If that process is killed, the scheduler continues without a log.
"""

import contextlib
import fcntl
import logging
import os
import select
import termios
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from guild_dask.host.inotify import MODIFIED, Watcher
from guild_dask.monitor import formatting

_DATES: Final = "%Y-%m-%d %H:%M:%S"
FORMAT: Final = "%(levelname)s: [%(name)s] %(asctime)s %(message)s"

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}

# Bytes that wait for a slow reader, at most: with more, the output of runs stays in its files; log lines are left out.
_MOST_OUTPUT = 1 << 18
_MOST_LOG = 1 << 22

# Seconds in which a reader gets what it has not read when the scheduler ends.
_TIME_TO_CLOSE = 3.0

# The loggers of Dask and of the libraries that it uses.
_DASK_LOGGERS = ("distributed", "dask", "tornado", "bokeh", "asyncio", "py.warnings")

# Seconds between polls of the recorded output, where changes are not reported.
_POLL = 0.1

# Child loggers to which Dask gives a handler of their own, for standard error.
_WITH_OWN_HANDLER = ("distributed.client", "distributed.gc", "tornado.application")


class OutputStream:
    """Standard output for log lines and run output, each written whole and in order, by a thread of its own.

    The reader may be slow, stop reading (a paused terminal, a full disk) or die. No caller waits for it: log lines wait
    in a buffer; the output of runs stays in its files until the buffer has space for it. What does not fit is left out,
    and the number of bytes is written in its place.
    """

    def __init__(self, fd: int = 1, record: str = "") -> None:
        """Writes to a file descriptor; `record` is the file to which Guild copies what it has printed."""
        self._fd = fd
        self._record = record
        self._changed = threading.Condition()
        # Guarded by _changed. A piece is a whole part of the output, and whether it is a line of the log.
        self._pieces: deque[tuple[bytes, bool]] = deque()
        self._size = 0
        self._accepted = 0  # bytes since the start, without those that were left out
        self._left_out = 0  # bytes since the last message about that
        self._is_closed = False
        self._is_writing = False  # a piece that is not among _pieces any more
        self._last_write = 0.0
        self.before_write: Callable[[], None] | None = None  # clears the live line
        self._writer = threading.Thread(target=self._write_all, name="output", daemon=True)
        self._writer.start()

    def is_printed(self, quiet: float) -> bool:
        """Returns whether Guild has printed everything: it copies what it has printed to the record.

        Without a record, or if it lacks something, nothing was written for `quiet` seconds, and Guild has read all.
        """
        if self._pieces or self._is_writing:
            return False
        try:
            if any(fcntl.ioctl(self._fd, termios.FIONREAD, b"\0\0\0\0")):
                return False
        except OSError:
            pass  # not a pipe
        return self._is_recorded() or time.monotonic() - self._last_write >= quiet

    def _is_recorded(self) -> bool:
        """Returns whether the record has everything that was written."""
        try:
            return os.path.getsize(self._record) >= self._accepted
        except OSError:
            return False

    def wait_until_recorded(self, timeout: float = 2.0) -> None:
        """Waits until Guild has recorded everything that was written, which it does after showing it.

        Guild reads standard output and standard error side by side: a line of the one may overtake lines of the other.
        """
        if not os.path.exists(self._record):  # it was not started by Guild
            return
        deadline = time.monotonic() + timeout
        watcher = Watcher()
        watcher.add(self._record, MODIFIED)
        try:
            while not self._is_recorded() and (left := deadline - time.monotonic()) > 0:
                watcher.wait(min(left, _POLL))
        finally:
            watcher.close()

    def write(self, text: str) -> None:
        """Writes a line of the log."""
        self._add(text.encode("utf-8", "backslashreplace"), is_log=True)

    def write_output(self, data: bytes) -> None:
        """Writes whole lines of the output of a run, for which wait_for_space() has found space."""
        self._add(data, is_log=False)

    def _add(self, data: bytes, is_log: bool) -> None:
        with self._changed:
            if self._size > _MOST_LOG:
                self._left_out += len(data)
                return
            if self._left_out:
                data = b"[%d bytes of output left out]\n" % self._left_out + data
                self._left_out = 0
            self._pieces.append((data, is_log))
            self._size += len(data)
            self._accepted += len(data)
            self._changed.notify_all()

    def wait_for_space(self, timeout: float = 0.0) -> bool:
        """Returns whether there is space for the output of runs, after at most so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._size < _MOST_OUTPUT, timeout)

    def leave_out(self, count: int) -> None:
        """Notes that so many bytes of the output of runs are left out."""
        with self._changed:
            self._left_out += count

    def flush(self) -> None:
        """Does nothing: what was written is on its way."""

    def close(self, timeout: float = _TIME_TO_CLOSE) -> None:
        """Waits until everything is written, but no longer than the timeout. Log lines precede what runs printed."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._writer.join(timeout / 2)
        with self._changed:
            self._left_out += sum(len(data) for data, is_log in self._pieces if not is_log)
            self._pieces = deque(piece for piece in self._pieces if piece[1])
        if self._left_out:
            self._add(b"", is_log=True)
        self._writer.join(timeout / 2)

    def _write_all(self) -> None:
        while piece := self._next_piece():
            if self.before_write:
                self.before_write()
            self._write(piece)
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()

    def _next_piece(self) -> bytes:
        """Waits for what is to be written next, and returns it; empty if the stream is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._pieces or self._is_closed)
            if not self._pieces:
                return b""
            piece, _ = self._pieces.popleft()
            self._size -= len(piece)
            self._is_writing = True
            return piece

    def _write(self, data: bytes) -> None:
        try:
            while data:
                select.select([], [self._fd], [])
                self._last_write = time.monotonic()
                data = data[os.write(self._fd, data[: select.PIPE_BUF]) :]  # what a pipe accepts without blocking
        except OSError:
            self._become_silent()

    def _become_silent(self) -> None:
        with contextlib.suppress(OSError):
            silent = os.open(os.devnull, os.O_WRONLY)
            if silent != self._fd:  # it is the same if the stream was closed
                os.dup2(silent, self._fd)
                os.close(silent)


class _Line(logging.Formatter):
    """Formats a message as one line: the name of a run, or what Guild reports, may contain anything."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name in logging
        record.message = formatting.escaped(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # the name in logging
        return "\n".join(map(formatting.escaped, super().formatException(ei).split("\n")))


def set_up(loglevel: str, stream: OutputStream, dask_log: str) -> Callable[[], None]:
    """Sends our log to the stream, and Dask's to a file of its own, or to the stream with loglevel debug or info.

    Returns a function that removes the file if there is nothing in it.
    """
    level = _LEVELS[loglevel]
    formatter = _Line(FORMAT, datefmt=_DATES)
    own = logging.StreamHandler(stream)
    own.setFormatter(formatter)
    guild = logging.getLogger("guild")
    guild.handlers = [own]
    guild.propagate = False
    guild.setLevel(min(level, logging.INFO))

    handler = logging.StreamHandler(stream) if level < logging.WARNING else _log_file(dask_log)
    handler.setFormatter(formatter)
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # no traceback if the log cannot be written
    for name in _DASK_LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level)
    for name in _WITH_OWN_HANDLER:
        logging.getLogger(name).handlers = []
        logging.getLogger(name).propagate = True
    return lambda: _remove_if_empty(dask_log)


def _log_file(path: str) -> logging.Handler:
    """Returns a handler for a file that is open: a thread of Dask's that could not open it later would end."""
    try:
        return logging.FileHandler(path)
    except OSError:
        return logging.NullHandler()


def _remove_if_empty(path: str) -> None:
    with contextlib.suppress(OSError):
        if os.path.getsize(path) == 0:
            os.unlink(path)
