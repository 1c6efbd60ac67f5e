"""The operating system's notice that a file or folder changed; on Linux, through inotify.

Elsewhere, and on file systems that tell nothing (changes made by another host), a wait ends at its timeout, and the
caller looks for itself.
"""

import contextlib
import ctypes
import functools
import os
import select
import struct
import sys

MODIFIED = 0x2
MOVED_TO = 0x80
CREATED = 0x100
DELETED = 0x200

_EVENT = struct.Struct("iIII")


class Watcher:
    """Watched paths, and a wait for a change in any of them. wake() ends the wait from any thread."""

    def __init__(self) -> None:
        self._fd = _inotify()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)

    @property
    def is_notified(self) -> bool:
        """Tells whether changes end a wait; if not, only its timeout does."""
        return self._fd is not None

    def add(self, path: str, mask: int) -> int | None:
        """Watches a path and returns a number for it, or None where it cannot be watched."""
        if self._fd is None:
            return None
        number = _libc().inotify_add_watch(self._fd, os.fsencode(path), mask)
        return number if number >= 0 else None

    def remove(self, number: int | None) -> None:
        """Stops watching."""
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
        """Ends the present wait, or the next one if there is none."""
        # A full pipe means that there are wakes enough.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"!")

    def close(self) -> None:
        """Gives back what the operating system has lent; there are 128 of them for a user, by default."""
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
