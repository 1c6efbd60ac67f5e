"""Guild's own lock of the status of runs: whoever holds it may take runs from the queue, or put them back.

Guild's lock, of the package filelock, is a file that is locked with flock. While no other process holds it, it is
locked here in the same way, in a twentieth of the time, since schedulers lock it for every few runs that they start.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from typing import Any

from guild import lock

from guild_dask.home import layout
from guild_dask.home.errors import HomeUnavailable
from guild_dask.host import files

# Seconds to wait for another process.
PATIENCE = 5.0


class StatusLock:
    """The lock of one Guild home. The object may be used again and again, by one thread."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._file = layout.status_lock(home)
        self._of_guild: Any = None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock; raises HomeUnavailable if another process does not release it, or it cannot be used."""
        fd = self._locked_at_once()
        if fd is None:
            with self._held_by_guild():
                yield
            return
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # closing it releases it, unless a child has it, too
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def _locked_at_once(self) -> int | None:
        """Returns a descriptor of the locked file; None if it is held or flock fails: then use Guild's lock."""
        try:
            fd = files.open_file(self._file, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:  # else the file was removed meanwhile, and is the lock of no process any more
                return fd
        except OSError:
            pass
        os.close(fd)
        return None

    @contextlib.contextmanager
    def _held_by_guild(self) -> Iterator[None]:
        try:
            # The object is kept: Guild takes longer to make it than to acquire it.
            self._of_guild = self._of_guild or lock.Lock(lock.RUN_STATUS, timeout=PATIENCE, guild_home=self._home)
            self._of_guild.acquire()
        except lock.Timeout as e:
            raise HomeUnavailable(f"another process has held {e.lock_file} for {PATIENCE:g} seconds") from e
        except OSError as e:
            raise HomeUnavailable(f"cannot use the lock in {self._home}: {e.strerror or e}") from e
        try:
            yield
        finally:
            self._of_guild.release()
