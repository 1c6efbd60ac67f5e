"""Runs that users start by hand although a scheduler that is dead has claimed them."""

import os
import pathlib
from dataclasses import replace

import pytest

from guild_dask.home import claims, run_directory, snapshot
from guild_dask.home.claims import Claim
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.home.recovery import recover
from guild_dask.home.run_queue import GuildHome
from guild_dask.home.second_start import refusal_for
from guild_dask.host import processes
from tests.support.sandbox import Guild, Sandbox
from tests.support.scheduling import a_project, stage, statuses

RUN = "started-by-hand"


@pytest.fixture
def home(user: Sandbox, guild: Guild) -> GuildHome:
    """A Guild home with a run that a dead scheduler has claimed."""
    a_project(user, "quick: {exec: echo quick}")
    stage(guild, "quick", RUN)
    me = processes.identity(os.getpid())
    assert me
    found = GuildHome(str(user.guild_home), Heartbeat(str(user.guild_home), "me", me))
    found.heartbeat.renew()
    dead = replace(me, started=me.started - 1)
    (run,) = found.staged().staged
    assert found.claim([(run, Claim(RUN, "other", dead, dead))]).taken
    return found


def claim_of(home: GuildHome) -> pathlib.Path:
    return claims.path(home.claims_folder, RUN)


@pytest.mark.parametrize("has_started", [False, True])
def test_run_that_is_started_by_hand_is_not_started_by_a_scheduler_too(home: GuildHome, has_started: bool) -> None:
    if has_started:
        assert claims.mark_started(claim_of(home))
    assert refusal_for(home.run_dir(RUN)) == ""
    assert not list(claims.all_claims(home.claims_folder))
    # Guild resolves its dependencies now, which may take hours.
    recovered = recover(home, again=lambda _dir, _is_loss: True)
    assert (recovered.staged_again, recovered.ended) == ((), ())
    assert not run_directory.has(home.run_dir(RUN), "STAGED")
    assert run_directory.has(home.run_dir(RUN), "PENDING")


def test_run_whose_start_was_cut_short_is_restored_before_it_is_started_by_hand(home: GuildHome) -> None:
    flags = pathlib.Path(home.run_dir(RUN), ".guild", "attrs", "flags")
    flags.write_text("lr: 0.1\n")
    snapshot.save(home.run_dir(RUN), claim_of(home).with_suffix(claims.SAVED))
    flags.write_text("")  # Guild was killed while it wrote them
    assert "is staged again" in refusal_for(home.run_dir(RUN))
    assert flags.read_text() == "lr: 0.1\n"
    assert run_directory.is_staged(home.run_dir(RUN))
    assert refusal_for(home.run_dir(RUN)) == ""
    assert not list(home.claims_folder.iterdir())


def test_run_that_is_taken_meanwhile_is_not_started_by_hand(home: GuildHome) -> None:
    with home.lock():
        assert "another process has held" in refusal_for(home.run_dir(RUN))
    assert claims.present(home.claims_folder, RUN)


def test_guild_starts_it(home: GuildHome, user: Sandbox, guild: Guild) -> None:
    guild(f"run --start {RUN} -y")
    assert statuses(user)[RUN] == "completed"
    assert not list(home.claims_folder.iterdir())
