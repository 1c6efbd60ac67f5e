"""The scheduler's log. Log lines and the output of runs share one stream, which keeps their order.

The stream is a pipe to Guild's process. If that process is killed, the scheduler continues without a log.
"""

import fcntl
import logging
import os
import select
import termios
import threading
import time
from collections.abc import Callable
from typing import Final

from guild_dask.host.inotify import MODIFIED, Watcher

FORMAT: Final = "%(levelname)s: [%(name)s] %(asctime)s %(message)s"

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}

# The loggers of Dask and of the libraries that it uses.
_DASK_LOGGERS = ("distributed", "dask", "tornado", "bokeh", "asyncio", "py.warnings")

# Seconds between polls of the recorded output, where changes are not reported.
_POLL = 0.1

# Child loggers to which Dask gives a handler of their own, for standard error.
_WITH_OWN_HANDLER = ("distributed.client", "distributed.gc", "tornado.application")


class OutputStream:
    """Standard output for log lines and run output, each written whole.

    The reader may stop reading (a paused terminal, a full disk) or die. The scheduler continues: output that cannot be
    written is dropped, and the number of dropped bytes is written when writing works again.
    """

    def __init__(self, fd: int = 1, patience: float = 10.0) -> None:
        self._fd = fd
        self._patience = patience
        self._left_out = 0
        self._written = 0
        self._last_write = 0.0
        self._lock = threading.RLock()
        self.before_write: Callable[[], None] | None = None  # clears the live line

    def is_read(self, seconds: float) -> bool:
        """Tells whether nothing was written for that many seconds, and Guild has read everything before that."""
        if time.monotonic() - self._last_write < seconds:
            return False
        try:
            return not any(fcntl.ioctl(self._fd, termios.FIONREAD, b"\0\0\0\0"))
        except OSError:
            return True  # not a pipe

    def wait_until_recorded(self, path: str, timeout: float = 2.0) -> None:
        """Waits until Guild has recorded everything that was written in the file, which it does after showing it.

        Guild reads standard output and standard error side by side: a line of the one may overtake lines of the other.
        """
        deadline = time.monotonic() + timeout
        watcher = Watcher()
        watcher.add(path, MODIFIED)
        try:
            while not self._is_recorded(path) and (left := deadline - time.monotonic()) > 0:
                watcher.wait(min(left, _POLL))
        finally:
            watcher.close()

    def _is_recorded(self, path: str) -> bool:
        try:
            return os.path.getsize(path) >= self._written
        except OSError:
            return True  # it was not started by Guild

    def write_bytes(self, data: bytes) -> None:
        with self._lock:
            if self.before_write:
                self.before_write()
            self._last_write = time.monotonic()
            if self._left_out:
                if not self._is_writable(0):
                    self._left_out += len(data)
                    return
                data = b"[%d bytes of output left out]\n" % self._left_out + data
                self._left_out = 0
            self._write(data)

    def _write(self, data: bytes) -> None:
        while data:
            if not self._is_writable(self._patience):
                self._left_out += len(data)
                return
            try:
                # The most that a writable pipe accepts without blocking.
                written = os.write(self._fd, data[: select.PIPE_BUF])
                self._written += written
                data = data[written:]
            except OSError:
                self._become_silent()

    def _is_writable(self, timeout: float) -> bool:
        return bool(select.select([], [self._fd], [], timeout)[1])

    def write(self, text: str) -> None:
        self.write_bytes(text.encode("utf-8", "backslashreplace"))

    def flush(self) -> None:
        """Does nothing: there is no buffer."""

    def _become_silent(self) -> None:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, self._fd)
        os.close(silent)


def set_up(loglevel: str, stream: OutputStream, dask_log: str) -> None:
    """Sends our log to the stream, and Dask's to a file of its own, or to the stream with loglevel debug or info."""
    level = _LEVELS[loglevel]
    own = logging.StreamHandler(stream)
    own.setFormatter(logging.Formatter(FORMAT, datefmt="%Y-%m-%d %H:%M:%S"))
    guild = logging.getLogger("guild")
    guild.handlers = [own]
    guild.propagate = False
    guild.setLevel(min(level, logging.INFO))

    shown = level < logging.WARNING
    handler = own if shown else logging.FileHandler(dask_log, delay=True)
    handler.setFormatter(logging.Formatter(FORMAT, datefmt="%Y-%m-%d %H:%M:%S"))
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
