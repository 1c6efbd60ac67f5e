"""Claims of schedulers on other hosts: left alone while their heartbeat is heard, taken over when it is not."""

import os
import pathlib
import time
from dataclasses import replace

import pytest

from guild_dask.home import claims, layout, run_directory
from guild_dask.home.heartbeat import SILENCE, Heartbeat, SteadyClock
from guild_dask.home.recovery import recover
from guild_dask.home.run_queue import GuildHome
from guild_dask.host import processes
from guild_dask.host.processes import ProcessIdentity
from guild_dask.monitor import schedulers

ELSEWHERE = ProcessIdentity(4242, 1.0, "its boot", "another-host")


def _me() -> ProcessIdentity:
    me = processes.identity(os.getpid())
    assert me
    return me


class _World:
    """A Guild home with one run that a scheduler on another host has claimed."""

    def __init__(self, home: pathlib.Path) -> None:
        self.own = Heartbeat(str(home), "own", _me())
        self.other = Heartbeat(str(home), "other", ELSEWHERE)
        self.home = GuildHome(str(home), self.own)
        self.guild = home / "runs" / "aaa" / ".guild"
        (self.guild / "attrs").mkdir(parents=True)
        (self.guild / "PENDING").touch()
        self._beats = home / "dask" / "schedulers"
        before = run_directory.recorded_start(str(self.guild.parent)).as_text()
        claim = claims.Claim("aaa", "other", ELSEWHERE, ELSEWHERE, 1, {"gpu": 1.0}, before=before)
        self.claim = claims.write(self.home.claims_folder, claim)
        self.own.renew()
        self.other.renew()

    def age_of_other(self, seconds: float) -> None:
        now = (self._beats / "own.json").stat().st_mtime
        os.utime(self._beats / "other.json", (now - seconds, now - seconds))

    @property
    def is_staged(self) -> bool:
        return (self.guild / "STAGED").exists() and not (self.guild / "PENDING").exists()


@pytest.fixture
def world(tmp_path: pathlib.Path) -> _World:
    return _World(tmp_path)


def test_claim_is_left_alone_while_its_scheduler_is_heard(world: _World) -> None:
    world.age_of_other(SILENCE / 2)
    assert recover(world.home).staged_again == ()
    assert not world.is_staged


def test_claim_is_taken_over_when_its_scheduler_has_been_silent_for_long(world: _World) -> None:
    world.age_of_other(SILENCE * 2)
    assert recover(world.home).staged_again == ("aaa",)
    assert world.is_staged
    assert not list(claims.all_claims(world.home.claims_folder))


def test_claim_is_taken_over_when_its_scheduler_has_left(world: _World) -> None:
    world.other.leave()
    assert recover(world.home).staged_again == ("aaa",)


def test_claim_is_taken_over_when_its_scheduler_was_restarted_under_its_id(world: _World) -> None:
    # By whom the heartbeat is does not depend on when it was sent: the process that had the claim sends none.
    restarted = Heartbeat(world.own.home, "other", _me())
    restarted.renew()
    assert not world.own.is_alive("other", ELSEWHERE)
    assert not restarted.is_alive("other", ELSEWHERE)
    assert restarted.is_alive("other", _me())
    assert recover(GuildHome(world.own.home, restarted)).staged_again == ("aaa",)


def test_heartbeat_that_cannot_be_read_counts_by_its_time(world: _World, tmp_path: pathlib.Path) -> None:
    (tmp_path / "dask" / "schedulers" / "other.json").write_text("[")
    assert world.own.is_alive("other", ELSEWHERE)
    world.age_of_other(SILENCE * 2)
    assert not world.own.is_alive("other", ELSEWHERE)


def test_run_that_started_on_another_host_is_never_started_again(world: _World) -> None:
    # On this host, its process cannot be seen.
    assert claims.mark_started(world.claim)
    world.age_of_other(SILENCE * 100)
    assert recover(world.home).staged_again == ()
    assert not world.is_staged
    assert [found.run_id for found in claims.all_claims(world.home.claims_folder)] == ["aaa"]


def test_without_a_heartbeat_of_our_own_others_are_taken_for_alive(world: _World) -> None:
    # A home that cannot be written to tells nothing about others.
    world.age_of_other(SILENCE * 2)
    world.own.leave()
    assert recover(world.home).staged_again == ()


def test_files_of_dead_schedulers_are_swept(world: _World, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "dask" / "schedulers"
    (folder / "rubbish.json").write_text("[")
    world.own.sweep()
    assert sorted(path.name for path in folder.iterdir()) == ["other.json", "own.json"]
    world.age_of_other(SILENCE * 2)
    world.own.sweep()
    assert [path.name for path in folder.iterdir()] == ["own.json"]


def test_what_schedulers_were_about_to_write_when_they_were_killed_is_swept(
    world: _World, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "dask" / "schedulers"
    for name in ("other.state", "other.state-draft", "other.draft", "first-beat.draft", "could-not-be-removed.state"):
        (folder / name).touch()
    world.own.sweep()  # they may live
    assert len(list(folder.iterdir())) == 7
    world.age_of_other(SILENCE * 2)
    long_ago = (folder / "other.json").stat().st_mtime
    for name in ("first-beat.draft", "could-not-be-removed.state"):
        os.utime(folder / name, (long_ago, long_ago))
    world.own.sweep()
    assert [path.name for path in folder.iterdir()] == ["own.json"]


def test_heartbeat_of_a_dead_scheduler_goes_last(
    world: _World, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else what lies beside it stays for ever when the process that sweeps is killed.
    folder = tmp_path / "dask" / "schedulers"
    (folder / "other.state").touch()
    world.age_of_other(SILENCE * 2)
    removed = []
    monkeypatch.setattr(pathlib.Path, "unlink", lambda path, missing_ok=False: removed.append(path.name))
    world.own.sweep()
    assert removed[-1] == "other.json"
    assert "other.state" in removed


def test_run_that_was_started_by_hand_after_it_was_claimed_is_not_staged_again(world: _World) -> None:
    # A user who sees it hang as `pending` may start it; it has even ended.
    world.age_of_other(SILENCE * 2)
    (world.guild / "PENDING").unlink()
    ended = world.guild / "attrs" / "exit_status"
    ended.write_text("0\n")
    os.utime(ended, (0, 0))  # the clock may have been set back
    assert recover(world.home).staged_again == ()
    assert not world.is_staged


def test_run_whose_starter_died_when_guild_had_cleared_all_marks_is_staged_again(world: _World) -> None:
    world.age_of_other(SILENCE * 2)
    (world.guild / "PENDING").unlink()
    assert recover(world.home).staged_again == ("aaa",)
    assert world.is_staged


# The clock of the file system


def test_scheduler_is_alive_though_the_clock_of_the_file_system_was_set_forward(tmp_path: pathlib.Path) -> None:
    # Seen from our own clock, which counts 5 seconds while the other one counts 605.
    ours = [600.0]
    own = Heartbeat(str(tmp_path), "own", _me(), lambda: ours[0])
    other = Heartbeat(str(tmp_path), "other", ELSEWHERE)
    own.renew()
    other.renew()
    assert own.is_alive("other", ELSEWHERE)
    ours[0] += 5 - 605
    own.renew()
    before = own.now()
    os.utime(tmp_path / "dask" / "schedulers" / "other.json", (before - 10, before - 10))
    assert own.is_alive("other", ELSEWHERE)
    other.renew()
    assert own.is_alive("other", ELSEWHERE)


@pytest.mark.parametrize(("step", "expected"), [(0.0, 1010.0), (600.0, 1010.0), (-600.0, 410.0)])
def test_steady_clock_is_never_ahead_of_the_living(step: float, expected: float) -> None:
    ours = [0.0]
    clock = SteadyClock(lambda: ours[0])
    clock.see(1000.0)
    ours[0] = 10.0
    clock.see(1010.0 + step)
    assert clock.time() == expected


def test_step_of_the_clock_is_forgotten_when_all_have_sent_heartbeats_since() -> None:
    ours = [0.0]
    clock = SteadyClock(lambda: ours[0])
    for each in range(500):
        ours[0] = each * 30.0
        clock.see(each * 30.0 + (600.0 if each > 5 else 0.0))
    assert clock.time() == ours[0] + 600.0


def test_observer_judges_schedulers_by_the_clock_of_the_file_system(world: _World, tmp_path: pathlib.Path) -> None:
    world.age_of_other(SILENCE / 2)
    assert [each.id for each in schedulers.alive(str(tmp_path))] == ["other", "own"]
    world.age_of_other(SILENCE * 2)
    assert [each.id for each in schedulers.alive(str(tmp_path))] == ["own"]
    assert sorted(os.listdir(tmp_path / "dask" / "schedulers")) == ["other.json", "own.json"]


def test_scheduler_that_goes_on_after_a_kill_is_alive(tmp_path: pathlib.Path) -> None:
    # A search that is restarted is the same run. What its killed process left must not make it look dead.
    me = _me()
    Heartbeat(str(tmp_path), "own", replace(me, started=me.started - 1)).renew()
    assert schedulers.alive(str(tmp_path)) == []
    state = layout.scheduler_state(str(tmp_path), "own")
    state.write_text("what the killed process did")
    again = Heartbeat(str(tmp_path), "own", me)
    again.renew()
    assert time.time() - 60 < again.of_killed <= time.time()
    assert not state.exists()
    state.write_text("what this process does")
    again.renew()
    assert state.exists()
    assert [each.process for each in schedulers.alive(str(tmp_path))] == [me]
