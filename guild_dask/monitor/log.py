"""The scheduler's log: one line an event, on one stream together with what runs print, so that their order holds.

The stream is a pipe to Guild's process. If that one is killed, the scheduler goes on without a log.
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

FORMAT: Final = "%(levelname)s: [%(name)s] %(asctime)s %(message)s"

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}

# Dask's own loggers, and those of the libraries that it brings.
_DASK_LOGGERS = ("distributed", "dask", "tornado", "bokeh", "asyncio", "py.warnings")

# Below these, Dask gives some a handler of their own, for standard error.
_WITH_OWN_HANDLER = ("distributed.client", "distributed.gc", "tornado.application")


class OutputStream:
    """Standard output for log lines and run output, each written whole.

    Whoever reads it may have stopped reading (a paused terminal, a full disk) or be gone. The scheduler goes on all the
    same: what cannot be written is left out, and how much that was is said when writing works again.
    """

    def __init__(self, fd: int = 1, patience: float = 10.0) -> None:
        self._fd = fd
        self._patience = patience
        self._left_out = 0
        self._last_write = 0.0
        self._lock = threading.RLock()
        self.before_write: Callable[[], None] | None = None  # makes room on the screen

    def is_read(self, seconds: float) -> bool:
        """Tells whether nothing was written for so long, and all that was has been read by Guild."""
        if time.monotonic() - self._last_write < seconds:
            return False
        try:
            return not any(fcntl.ioctl(self._fd, termios.FIONREAD, b"\0\0\0\0"))
        except OSError:
            return True  # not a pipe

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
                # No more than a pipe that can be written to takes for certain without blocking.
                data = data[os.write(self._fd, data[: select.PIPE_BUF]) :]
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
    """Sends our lines to the stream, and Dask's to the stream or, at the usual levels, to a file of their own."""
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
    logging.raiseExceptions = False  # a log that cannot be written is not worth a traceback
    for name in _DASK_LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level)
    for name in _WITH_OWN_HANDLER:
        logging.getLogger(name).handlers = []
        logging.getLogger(name).propagate = True
