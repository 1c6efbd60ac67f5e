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

FORMAT: Final = "%(levelname)s: [%(name)s] %(asctime)s %(message)s"

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}

# The loggers of Dask and of the libraries that it uses.
_DASK_LOGGERS = ("distributed", "dask", "tornado", "bokeh", "asyncio", "py.warnings")

# Child loggers to which Dask gives a handler of their own, for standard error.
_WITH_OWN_HANDLER = ("distributed.client", "distributed.gc", "tornado.application")

# Seconds after which Guild has copied what it has printed to its record.
_RECORDED = 1.0


class OutputStream:
    """Standard output for log lines and run output, each written whole.

    The reader may stop reading (a paused terminal, a full disk) or die. The scheduler continues: output that cannot be
    written is dropped, and the number of dropped bytes is written when writing works again.
    """

    def __init__(self, fd: int = 1, patience: float = 10.0, record: str = "") -> None:
        """Writes to a file descriptor; `record` is the file to which Guild copies what it has printed."""
        self._fd = fd
        self._patience = patience
        self._record = record
        self._recorded_size = 0  # of the record, once it has all that was written
        self._left_out = 0
        self._last_write = 0.0
        self._lock = threading.RLock()
        self.before_write: Callable[[], None] | None = None  # clears the live line

    def is_printed(self, quiet: float) -> bool:
        """Tells whether Guild has printed everything: it copies what it has printed to the record.

        Without a record, or if it lacks something, nothing was written for `quiet` seconds, and Guild has read all.
        """
        try:
            if any(fcntl.ioctl(self._fd, termios.FIONREAD, b"\0\0\0\0")):
                return False
        except OSError:
            pass  # not a pipe
        is_recorded = bool(self._record) and self._size_of_record() >= self._recorded_size
        return is_recorded or time.monotonic() - self._last_write >= quiet

    def _size_of_record(self) -> int:
        try:
            return os.stat(self._record).st_size
        except OSError:
            return -1

    def write_bytes(self, data: bytes) -> None:
        with self._lock:
            # Before the live line is cleared, which is drawn again once everything is printed.
            now = time.monotonic()
            if self._record:
                # After a while, what the record lacks was left out, and will not come.
                is_waiting = now - self._last_write < _RECORDED
                self._recorded_size = max(self._recorded_size if is_waiting else 0, self._size_of_record()) + len(data)
            self._last_write = now
            if self.before_write:
                self.before_write()
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
