"""The lock of the status of runs excludes Guild's own, and is excluded by it."""

import contextlib
import fcntl
import os
import pathlib
import threading
from collections.abc import Iterator

import pytest
from guild import lock

from guild_dask.home import layout, status_lock
from guild_dask.home.errors import HomeUnavailable
from guild_dask.home.status_lock import StatusLock


@contextlib.contextmanager
def held_by_guild(home: pathlib.Path) -> Iterator[None]:
    """Holds Guild's own lock, without waiting for it."""
    with lock.Lock(lock.RUN_STATUS, timeout=0, guild_home=str(home)):
        yield


@pytest.fixture
def home(tmp_path: pathlib.Path) -> pathlib.Path:
    """A Guild home in which Guild has used its lock."""
    with held_by_guild(tmp_path):
        return tmp_path


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait for another process."""
    monkeypatch.setattr(status_lock, "PATIENCE", 0.0)


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_lock_excludes_guild_until_it_is_released(home: pathlib.Path) -> None:
    ours, before = StatusLock(str(home)), descriptors()
    for _ in range(2):
        with ours.held(), pytest.raises(lock.Timeout), held_by_guild(home):
            pass
        with held_by_guild(home):
            pass
    assert descriptors() == before


def test_lock_that_guild_holds_is_not_acquired(home: pathlib.Path, impatient: None) -> None:
    ours, before = StatusLock(str(home)), descriptors()
    with held_by_guild(home), pytest.raises(HomeUnavailable, match="another process has held"), ours.held():
        pass
    with ours.held():
        pass
    assert descriptors() == before


def test_lock_is_acquired_when_guild_releases_it(home: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_held, is_wanted = threading.Event(), threading.Event()
    flock = fcntl.flock

    def hold() -> None:
        with held_by_guild(home):
            is_held.set()
            is_wanted.wait()

    def note(fd: int, operation: int) -> None:
        is_wanted.set()
        flock(fd, operation)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    monkeypatch.setattr(fcntl, "flock", note)
    with StatusLock(str(home)).held(), pytest.raises(lock.Timeout), held_by_guild(home):
        pass
    thread.join()


def test_lock_excludes_another_of_ours(home: pathlib.Path, impatient: None) -> None:
    with StatusLock(str(home)).held(), pytest.raises(HomeUnavailable), StatusLock(str(home)).held():
        pass


def test_lock_of_a_home_that_guild_has_not_used_is_made(tmp_path: pathlib.Path) -> None:
    with StatusLock(str(tmp_path)).held(), pytest.raises(lock.Timeout), held_by_guild(tmp_path):
        pass


def test_file_that_was_removed_while_it_was_locked_is_no_lock(
    home: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if another process removed it between our open and our flock.
    file = pathlib.Path(layout.status_lock(str(home)))
    flock = fcntl.flock

    def remove_first(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        file.unlink()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with StatusLock(str(home)).held(), pytest.raises(lock.Timeout), held_by_guild(home):
        pass


def test_lock_that_cannot_be_made_makes_the_home_unavailable(tmp_path: pathlib.Path) -> None:
    (tmp_path / "locks").write_text("")
    with pytest.raises(HomeUnavailable, match="cannot use the lock"), StatusLock(str(tmp_path)).held():
        pass
