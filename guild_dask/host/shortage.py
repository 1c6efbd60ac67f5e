"""Shortage of what the operating system lends: disk space, processes, threads, memory and descriptors.

A shortage says nothing about a run: what fails today works when space is freed or processes have ended.
"""

import errno
import os
import queue
import tempfile
import threading
from collections.abc import Callable
from typing import Any

ERRORS = frozenset(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EMFILE", "ENFILE", "EAGAIN", "ENOMEM")
    if hasattr(errno, name)
)

# How Python reports that the operating system starts no more threads; it has no error number.
_NO_THREAD = "can't start new thread"

_TEXTS = {errno.EAGAIN: "no more processes or threads can be started", errno.ENOMEM: "out of memory"}


def shortage_in(error: BaseException | None) -> str:
    """Returns what was short if that led to an error, as text; empty if it was something else.

    The errors that it was raised from, or while handling which, count, too.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if text := _shortage(error):
            return text
        error = error.__cause__ or error.__context__
    return ""


def _shortage(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return _TEXTS[errno.ENOMEM]
    if isinstance(error, RuntimeError) and _NO_THREAD in str(error):
        return _TEXTS[errno.EAGAIN]
    number = error.errno if isinstance(error, OSError) else None
    if number is None or number not in ERRORS:
        return ""
    return _TEXTS.get(number) or os.strerror(number)


def text_for(error: BaseException) -> str:
    """Returns what went wrong, in one line that is never empty."""
    text = shortage_in(error) or (isinstance(error, OSError) and error.strerror) or str(error)
    return " ".join(str(text or type(error).__name__).split())


def check_space(folder: str | os.PathLike[str], size: int) -> None:
    """Raises OSError if a file system has no space for so many bytes.

    A report of some free space is believed. A report of none is not: some file systems always report none, and root may
    write what is reserved for it. So a file is written, which takes nothing away from others if there is nothing.
    """
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free >= size:
        return
    if free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(folder))
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".space-", buffering=0) as f:
        f.write(b"\0" * size)
        os.fsync(f.fileno())


def current(folder: str | os.PathLike[str], size: int) -> str:
    """Returns what is short now, as text: a thread, a descriptor, or so many bytes in a folder; empty if nothing is."""
    try:
        check_space(folder, size)
        threading.Thread(target=int, daemon=True).start()
    except (OSError, RuntimeError, MemoryError) as e:
        return shortage_in(e)
    return ""


class ReservedThreads:
    """Threads that have been started before they are needed, so that they cannot be refused then."""

    def __init__(self, count: int) -> None:
        """Starts the threads; raises RuntimeError if the operating system refuses one."""
        self._free: list[_Reserved] = []
        try:
            for _ in range(count):
                self._free.append(_Reserved())
        except BaseException:
            self.release()
            raise

    def thread(self, *args: Any, **kwargs: Any) -> threading.Thread:
        """Returns a thread for what threading.Thread would get; it takes a reserved one when it is started."""
        free = self._free

        class Thread(threading.Thread):
            _taken: _Reserved | None = None

            def start(self) -> None:
                if not free:
                    super().start()
                    return
                self._taken = free.pop()
                self._taken.work.put(self.run)

            def join(self, timeout: float | None = None) -> None:
                self._taken.join(timeout) if self._taken else super().join(timeout)

            def is_alive(self) -> bool:
                return self._taken.is_alive() if self._taken else super().is_alive()

        return Thread(*args, **kwargs)

    def release(self) -> None:
        """Ends the threads that nothing has taken."""
        while self._free:
            self._free.pop().work.put(None)


class _Reserved(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        work = self.work.get()
        if work:
            work()
