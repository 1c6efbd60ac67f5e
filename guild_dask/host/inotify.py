"""Waits for changes of files and folders; on Linux, through inotify.

On other systems, and for changes that another host makes on a network file system, there is no notification: a wait
ends at its timeout, and the caller must poll.
"""

import contextlib
import ctypes
import functools
import os
import select
import struct
import sys

MODIFIED = 0x2
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATED = 0x100
DELETED = 0x200

_EVENT = struct.Struct("iIII")


class Watcher:
    """Waits for a change in any of the watched paths. wake() ends the wait from any thread."""

    def __init__(self) -> None:
        self._fd = _inotify()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)

    @property
    def is_notified(self) -> bool:
        """Returns whether changes end a wait. If not, only wake() and the timeout do."""
        return self._fd is not None

    def add(self, path: str, mask: int) -> int | None:
        """Watches a path and returns its number, or None if it cannot be watched."""
        if self._fd is None:
            return None
        number = _libc().inotify_add_watch(self._fd, os.fsencode(path), mask)
        return number if number >= 0 else None

    def remove(self, number: int | None) -> None:
        """Stops watching the path with that number."""
        if self._fd is not None and number is not None:
            _libc().inotify_rm_watch(self._fd, number)

    def wait(self, timeout: float | None) -> list[tuple[int, str]]:
        """Returns changes as (number, name in the watched folder); none after the timeout or a wake()."""
        fds = [self._wake_read] + ([] if self._fd is None else [self._fd])
        ready, _, _ = select.select(fds, [], [], timeout)
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        return _events(os.read(self._fd, 65536)) if self._fd is not None and self._fd in ready else []

    def wake(self) -> None:
        """Ends the current wait, or the next one if no thread is waiting."""
        # If the pipe is full, it already has more than enough to end a wait.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"!")

    def close(self) -> None:
        """Closes the descriptors. By default, a user may have 128 inotify instances."""
        for fd in (self._fd, self._wake_read, self._wake_write):
            if fd is not None:
                os.close(fd)


def _inotify() -> int | None:
    if sys.platform != "linux":
        return None
    fd = _libc().inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    return fd if fd >= 0 else None


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _events(data: bytes) -> list[tuple[int, str]]:
    events = []
    position = 0
    while position < len(data):
        number, _, _, length = _EVENT.unpack_from(data, position)
        position += _EVENT.size
        events.append((number, os.fsdecode(data[position : position + length].rstrip(b"\0"))))
        position += length
    return events
