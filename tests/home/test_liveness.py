"""Runs that were staged though they go on under a claim, as a Guild without guild-dask does it."""

import os
import pathlib
from dataclasses import replace

import pytest

from guild_dask.home import claims, end_note
from guild_dask.home.claims import Claim
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.home.outcome import Cause
from guild_dask.home.run_queue import GuildHome
from guild_dask.host import processes
from guild_dask.host.processes import ProcessIdentity
from tests.home.test_run_directory import make_run

LEASE = 60.0


class _World:
    """A Guild home with one run that is staged, and has a claim under which it was started."""

    def __init__(self, root: pathlib.Path) -> None:
        make_run(root / "runs" / "aaa")
        me = processes.identity(os.getpid())
        assert me
        self.me = me
        self.home = GuildHome(str(root), Heartbeat(str(root), "me", me))
        self.beside = claims.path(self.home.claims_folder, "aaa")

    def start(self, owner: ProcessIdentity, lease: float = 0.0) -> None:
        claims.write(self.home.claims_folder, Claim("aaa", "other", owner, owner, lease=lease))
        assert claims.mark_started(self.beside)

    def start_elsewhere(self, silent: float) -> None:
        """Starts the run on another host, which sent its last heartbeat so many seconds ago."""
        self.start(replace(self.me, host="elsewhere"), LEASE)
        heartbeat = self.beside.with_suffix(claims.HEARTBEAT)
        heartbeat.touch()
        last = self.home.heartbeat.now() - silent
        os.utime(heartbeat, (last, last))

    def is_claimed(self) -> bool:
        (run,) = self.home.staged().staged
        return bool(self.home.claim([(run, Claim("aaa", "me", self.me, self.me))]).taken)


@pytest.fixture
def world(tmp_path: pathlib.Path) -> _World:
    return _World(tmp_path)


def test_run_whose_starter_is_alive_is_not_claimed(world: _World) -> None:
    parent = processes.identity(os.getppid())
    assert parent
    world.start(parent)
    assert not world.is_claimed()
    found = claims.present(world.home.claims_folder, "aaa")
    assert found
    assert found.is_started


def test_run_whose_starter_is_dead_is_claimed(world: _World) -> None:
    world.start(replace(world.me, started=world.me.started - 1))
    assert world.is_claimed()


def test_run_on_another_host_is_not_claimed_before_its_starter_must_have_ended_it(world: _World) -> None:
    # It was staged since the last heartbeat, which tells nothing.
    world.start_elsewhere(silent=LEASE / 2)
    assert not world.is_claimed()


def test_run_on_another_host_is_claimed_when_it_was_silent_for_long(world: _World) -> None:
    world.start_elsewhere(silent=10 * LEASE)
    assert world.is_claimed()


def test_run_on_another_host_is_claimed_when_its_starter_has_noted_its_end(world: _World) -> None:
    world.start_elsewhere(silent=0)
    end_note.write(world.beside, Cause.STOPPED)
    assert world.is_claimed()
