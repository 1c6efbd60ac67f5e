"""Runs that were cut short by a power cut, and by the death of the process that started them."""

import contextlib
import errno
import os
import pathlib
import resource
import signal
import subprocess
import types
from dataclasses import replace

import pytest

from guild_dask.home import attempts, claims, end_note, run_directory, stop_request
from guild_dask.home.errors import HomeUnavailable
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.home.outcome import Cause, End, Outcome
from guild_dask.home.recovery import recover
from guild_dask.home.run_queue import GuildHome
from guild_dask.host import processes
from guild_dask.worker.job import NOT_STARTED
from tests.support.sandbox import Guild, Sandbox
from tests.support.scheduling import a_project, stage, statuses

# Of its own: processes of another run of that name, in another home, would pass for it.
RUN = "power-cut-test"

QUICK = """
quick:
  exec: echo quick
"""


@pytest.fixture
def home(user: Sandbox, guild: Guild) -> GuildHome:
    """A Guild home in which one run had started, under a scheduler that is gone."""
    a_project(user, QUICK)
    stage(guild, "quick", RUN)
    me = processes.identity(os.getpid())
    assert me
    found = GuildHome(str(user.guild_home), Heartbeat(str(user.guild_home), "me", me))
    found.heartbeat.renew()
    dead = replace(me, started=me.started - 1)
    (run,) = found.staged().staged
    assert found.claim([(run, claims.Claim(RUN, "other", dead, dead))]).taken
    assert claims.mark_started(claims.path(found.claims_folder, RUN))
    return found


def _after_a_boot(home: GuildHome) -> None:
    """Makes the claim one of before the machine was started anew."""
    _belongs_to(home, replace(home.heartbeat.process, boot="before"))


def _belongs_to(home: GuildHome, process: processes.ProcessIdentity) -> None:
    """Makes the claim that of another process."""
    found = claims.present(home.claims_folder, RUN)
    assert found
    assert found.claim
    claimed = claims.write(home.claims_folder, replace(found.claim, owner=process, scheduler=process))
    os.replace(claimed, claimed.with_suffix(claims.STARTED))


def test_run_that_a_power_cut_ended_is_tried_again(home: GuildHome, user: Sandbox) -> None:
    _after_a_boot(home)
    ((run_id, result),) = recover(home, again=lambda _dir, is_loss: is_loss).ended
    assert (run_id, result.end, result.cause) == (RUN, End.RETRIED, Cause.NODE_LOST)
    assert statuses(user) == {RUN: "staged"}
    assert [each.number for each in attempts.past(home.run_dir(RUN))] == [1]
    assert not list(home.claims_folder.iterdir())


def test_run_that_a_power_cut_ended_is_terminated_where_there_are_no_retries(home: GuildHome, user: Sandbox) -> None:
    _after_a_boot(home)
    ((_, result),) = recover(home).ended
    assert result.end is End.TERMINATED
    assert statuses(user) == {RUN: "terminated"}


def test_run_whose_processes_were_killed_is_not_tried_again(home: GuildHome, user: Sandbox) -> None:
    # The machine is not to blame; the user who killed them may not want them back.
    ((_, result),) = recover(home, again=lambda *_: True).ended
    assert (result.end, result.cause) == (End.TERMINATED, Cause.KILLED)
    assert statuses(user) == {RUN: "terminated"}


def test_scheduler_that_was_restarted_under_its_id_looks_after_its_predecessors_runs(
    home: GuildHome, user: Sandbox
) -> None:
    # `guild run --restart SCHEDULER` after a kill.
    started = claims.path(home.claims_folder, RUN).with_suffix(claims.STARTED)
    found = claims.present(home.claims_folder, RUN)
    assert found
    assert found.claim
    claims.write(home.claims_folder, replace(found.claim, scheduler_id=home.heartbeat.scheduler_id))
    os.replace(claims.path(home.claims_folder, RUN), started)
    assert [run_id for run_id, _ in recover(home).ended] == [RUN]
    assert statuses(user) == {RUN: "terminated"}


def test_claims_that_cannot_be_read_make_the_home_unavailable(home: GuildHome) -> None:
    # And not the scheduler end, with all its runs.
    home.claims_folder.rename(home.claims_folder.with_name("away"))
    home.claims_folder.write_text("a file where a folder should be")
    with pytest.raises(HomeUnavailable):
        recover(home)


def test_run_whose_claim_another_scheduler_has_settled_is_left_alone(home: GuildHome, user: Sandbox) -> None:
    # Our host stalled; another one has staged the run again, started it, and removed the claim.
    claims.remove(home.claims_folder, RUN)
    assert home.settle(RUN, 75).end is End.GONE
    assert statuses(user) == {RUN: "pending"}


def test_run_of_before_the_boot_is_over_though_a_process_has_its_starters_number(home: GuildHome) -> None:
    # The power failed before Guild had recorded the operation's pid.
    leader = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        _belongs_to(home, replace(home.heartbeat.process, boot="before", pid=leader.pid))
        ((_, result),) = recover(home).ended
        assert result.cause is Cause.NODE_LOST
    finally:
        leader.kill()
        leader.wait()


def test_settled_run_is_reported_though_the_home_becomes_unavailable_at_the_next_one(
    home: GuildHome, guild: Guild, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"{RUN}-other"
    stage(guild, "quick", other)
    (run,) = (each for each in home.staged().staged if each.id == other)
    found = claims.present(home.claims_folder, RUN)
    assert found
    assert found.claim
    home.claim([(run, replace(found.claim, run_id=other))])
    claims.mark_started(claims.path(home.claims_folder, other))
    _after_a_boot(home)
    carry_out = GuildHome.carry_out
    settled: list[str] = []

    def fail_at_the_second(self: GuildHome, run_id: str, outcome: Outcome) -> bool:
        if settled:
            raise HomeUnavailable("no space left")
        settled.append(run_id)
        return carry_out(self, run_id, outcome)

    with monkeypatch.context() as full:
        full.setattr(GuildHome, "carry_out", fail_at_the_second)
        assert [run_id for run_id, _ in recover(home).ended] == settled
    assert [run_id for run_id, _ in recover(home).ended] == list({RUN, other} - set(settled))


def test_run_in_another_space_of_process_numbers_goes_by_its_beat(home: GuildHome) -> None:
    # A worker in a container on the scheduler's own machine.
    started = claims.path(home.claims_folder, RUN).with_suffix(claims.STARTED)
    found = claims.present(home.claims_folder, RUN)
    assert found
    assert found.claim
    boot = f"{found.claim.owner.boot.partition('/')[0]}/another"
    hidden = replace(found.claim.owner, boot=boot)
    claims.write(home.claims_folder, replace(found.claim, owner=hidden, lease=60.0))
    os.replace(claims.path(home.claims_folder, RUN), started)
    started.with_suffix(".beat").touch()
    recovered = recover(home, again=lambda *_: True)
    assert not recovered.ended
    assert [claim.run_id for claim in recovered.orphans] == [RUN]


class _Killed(BaseException):
    """Stands for the end of the process: nothing that handles errors sees it."""


@pytest.mark.parametrize("step", [(run_directory, "forget_end"), (claims, "give_back_started")])
def test_run_that_is_to_be_tried_again_is_so_when_its_scheduler_is_killed_over_it(
    home: GuildHome, user: Sandbox, monkeypatch: pytest.MonkeyPatch, step: tuple[types.ModuleType, str]
) -> None:
    def be_killed(*_args: object) -> None:
        raise _Killed

    run_directory.record_end(home.run_dir(RUN), 7)
    with monkeypatch.context() as patched:
        patched.setattr(*step, be_killed)
        with pytest.raises(_Killed):
            recover(home, again=lambda _dir, is_loss: not is_loss)
    # The next scheduler does not decide anew: that attempt counts already, so there might be none left.
    ((run_id, result),) = recover(home).ended
    assert (run_id, result.end, result.exit_code, result.cause) == (RUN, End.RETRIED, 7, None)
    assert statuses(user) == {RUN: "staged"}
    assert [(each.number, each.exit_status) for each in attempts.past(home.run_dir(RUN))] == [(1, 7)]
    assert not list(home.claims_folder.iterdir())


def test_attempt_is_counted_once_when_the_home_fails_while_the_run_is_staged_again(
    home: GuildHome, user: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    _belongs_to(home, home.heartbeat.process)
    run_directory.record_end(home.run_dir(RUN), 7)
    with monkeypatch.context() as patched:
        patched.setattr(claims, "give_back_started", fail)
        with pytest.raises(HomeUnavailable):
            home.settle(RUN, 7, again=lambda _dir, _is_loss: True)
    result = home.settle(RUN, 7)
    assert (result.end, result.exit_code) == (End.RETRIED, 7)
    assert statuses(user) == {RUN: "staged"}
    assert [each.number for each in attempts.past(home.run_dir(RUN))] == [1]


def _claim_again(home: GuildHome, process: processes.ProcessIdentity) -> None:
    """Has the run tried again, and claims and starts it under another process."""
    run_directory.record_end(home.run_dir(RUN), 7)
    ((_, result),) = recover(home, again=lambda *_: True).ended
    assert result.end is End.RETRIED
    (run,) = home.staged().staged
    ((_, claim),) = home.claim([(run, claims.Claim(RUN, "another", process, process))]).taken
    assert claim.attempt == 2
    assert claims.mark_started(claims.path(home.claims_folder, RUN))


@pytest.mark.parametrize("is_dead", [True, False])
@pytest.mark.parametrize("claim", ["readable", "unreadable", "of the attempt before"])
def test_run_that_completed_is_not_tried_again_whatever_its_claim_says(
    home: GuildHome, user: Sandbox, claim: str, is_dead: bool
) -> None:
    me = home.heartbeat.process
    _claim_again(home, replace(me, started=me.started - 1) if is_dead else me)
    started = claims.path(home.claims_folder, RUN).with_suffix(claims.STARTED)
    if claim == "unreadable":
        started.write_text("")
    elif claim == "of the attempt before":
        found = claims.present(home.claims_folder, RUN)
        assert found
        assert found.claim
        claims.write(home.claims_folder, replace(found.claim, attempt=1)).replace(started)
    run_directory.record_end(home.run_dir(RUN), 0)
    if is_dead:
        ((_, result),) = recover(home, again=lambda *_: True).ended
    else:
        result = home.settle(RUN, 0, again=lambda *_: True)
    assert result.end is End.COMPLETED
    assert statuses(user) == {RUN: "completed"}
    assert not list(home.claims_folder.iterdir())


@pytest.mark.parametrize("is_known_to_its_starter", [True, False])
@pytest.mark.parametrize(("status", "end"), [(0, End.COMPLETED), (7, End.FAILED)])
def test_end_is_told_from_an_earlier_one_by_content_when_the_clock_is_set_back(
    home: GuildHome, user: Sandbox, status: int, end: End, is_known_to_its_starter: bool
) -> None:
    # The times of all files of the run are before that of the claim.
    found = claims.present(home.claims_folder, RUN)
    assert found
    assert found.claim
    if is_known_to_its_starter:
        end_note.write_exit(claims.path(home.claims_folder, RUN), end_note.Exit(status, found.claim.owner))
    run_directory.record_end(home.run_dir(RUN), status)
    for path in pathlib.Path(home.run_dir(RUN)).rglob("*"):
        os.utime(path, (1.0, 1.0))
    ((_, result),) = recover(home, again=lambda _dir, is_loss: is_loss).ended
    assert (result.end, result.exit_code) == (end, status)


def test_end_of_an_earlier_life_is_not_taken_for_the_end_of_this_one(home: GuildHome, user: Sandbox) -> None:
    # The run had completed and was staged again by the user; Guild keeps its exit status.
    run_directory.record_end(home.run_dir(RUN), 0)
    recover(home)
    run_directory.set_marker(home.run_dir(RUN), "STAGED")
    (run,) = home.staged().staged
    me = home.heartbeat.process
    dead = replace(me, started=me.started - 1)
    assert home.claim([(run, claims.Claim(RUN, "other", dead, dead))]).taken
    assert claims.mark_started(claims.path(home.claims_folder, RUN))
    for path in pathlib.Path(home.run_dir(RUN)).rglob("*"):
        os.utime(path, (2e9, 2e9))
    ((_, result),) = recover(home).ended
    assert (result.end, result.cause) == (End.TERMINATED, Cause.KILLED)


def test_exit_code_that_another_starter_left_is_not_that_of_this_attempt(home: GuildHome) -> None:
    # Its host slept, and the run was taken over meanwhile.
    other = replace(home.heartbeat.process, started=1.0)
    end_note.write_exit(claims.path(home.claims_folder, RUN), end_note.Exit(0, other))
    ((_, result),) = recover(home).ended
    assert result.end is End.TERMINATED


def test_attempt_whose_claim_cannot_be_read_is_tried_again_as_the_policy_says(home: GuildHome, user: Sandbox) -> None:
    # Not because the attempt before was.
    _claim_again(home, home.heartbeat.process)
    claims.path(home.claims_folder, RUN).with_suffix(claims.STARTED).write_text("")
    run_directory.record_end(home.run_dir(RUN), 7)
    assert home.settle(RUN, 7).end is End.FAILED
    assert statuses(user) == {RUN: "error"}


def test_attempts_that_cannot_be_read_are_not_taken_for_none(home: GuildHome, user: Sandbox) -> None:
    run_directory.record_end(home.run_dir(RUN), 7)
    recover(home, again=lambda *_: True)
    record = user.guild_home / "runs" / RUN / ".guild" / "dask-attempts" / "record.json"
    kept = record.rename(record.with_name("kept"))
    record.mkdir()
    (run,) = home.staged().staged
    me = home.heartbeat.process
    claimed = home.claim([(run, claims.Claim(RUN, "me", me, me))])
    assert claimed.refused == {RUN: f"cannot claim run {RUN}: it is a folder, not a file"}
    assert statuses(user) == {RUN: "staged"}
    record.rmdir()
    kept.rename(record)
    ((_, claim),) = home.claim([(run, claims.Claim(RUN, "me", me, me))]).taken
    assert claim.attempt == 2


def test_run_out_of_sight_that_is_not_ours_any_more_is_gone(home: GuildHome, user: Sandbox) -> None:
    # Another scheduler took us for dead, and runs it now.
    other = processes.identity(os.getppid())
    assert other
    Heartbeat(str(user.guild_home), "other", other).renew()
    _belongs_to(home, home.heartbeat.process)
    assert home.has_started(RUN)
    assert recover(home, unseen=[RUN]).gone == ()
    _belongs_to(home, other)
    assert not home.has_started(RUN)
    assert recover(home, unseen=[RUN]).gone == (RUN,)
    assert home.settle(RUN, NOT_STARTED).end is End.GONE
    claims.remove(home.claims_folder, RUN)
    assert recover(home, unseen=[RUN]).gone == (RUN,)


def test_run_that_outlived_a_stop_of_its_scheduler_has_its_own_end(home: GuildHome) -> None:
    # The scheduler was killed after it had written its request, and before it had sent a signal.
    stop_request.request_stop(claims.path(home.claims_folder, RUN), Cause.SCHEDULER_STOPPED)
    run_directory.record_end(home.run_dir(RUN), 7)
    ((_, result),) = recover(home).ended
    assert (result.end, result.exit_code, result.cause) == (End.FAILED, 7, None)


def test_request_of_a_scheduler_that_cannot_be_written_is_not_one_of_the_user(home: GuildHome) -> None:
    claim = claims.path(home.claims_folder, RUN)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            stop_request.request_stop(claim, Cause.SCHEDULER_STOPPED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert stop_request.requested_cause(claim) is None


def test_run_that_died_after_a_stop_of_its_scheduler_was_stopped(home: GuildHome) -> None:
    stop_request.request_stop(claims.path(home.claims_folder, RUN), Cause.SCHEDULER_STOPPED)
    ((_, result),) = recover(home, again=lambda *_: True).ended
    assert (result.end, result.cause) == (End.TERMINATED, Cause.SCHEDULER_STOPPED)


def test_heartbeat_that_cannot_be_read_counts_as_unknown(
    home: GuildHome, monkeypatch: pytest.MonkeyPatch, user: Sandbox
) -> None:
    # Its claim is old, and another host runs it.
    elsewhere = replace(home.heartbeat.process, host="elsewhere", boot="other")
    found = claims.present(home.claims_folder, RUN)
    assert found
    assert found.claim
    claimed = claims.write(
        home.claims_folder, replace(found.claim, owner=elsewhere, scheduler=elsewhere, lease=60.0, scheduler_id="gone")
    )
    os.utime(claimed, (1.0, 1.0))
    claimed.replace(claimed.with_suffix(claims.STARTED))
    beat = claimed.with_suffix(claims.HEARTBEAT)
    beat.touch()
    assert [claim.run_id for claim in recover(home, again=lambda *_: True).orphans] == [RUN]
    beat.unlink()
    beat.symlink_to(beat.name)  # to itself, so that it cannot be opened
    with pytest.raises(HomeUnavailable):
        recover(home, again=lambda *_: True)
    beat.unlink()
    ((_, result),) = recover(home, again=lambda *_: True).ended
    assert result.cause is Cause.NODE_LOST


@pytest.mark.parametrize(("status", "end"), [(-15, End.TERMINATED), (-9, End.TERMINATED), (7, End.RETRIED)])
def test_run_that_its_scheduler_ended_is_not_tried_again(home: GuildHome, status: int, end: End) -> None:
    # The scheduler, and the starter, died before they could say so.
    stop_request.request_stop(claims.path(home.claims_folder, RUN), Cause.SCHEDULER_STOPPED)
    run_directory.record_end(home.run_dir(RUN), status)
    ((_, result),) = recover(home, again=lambda *_: True).ended
    assert result.end is end
    assert not list(home.claims_folder.iterdir())


@pytest.mark.parametrize("cause", [Cause.TIME_LIMIT, Cause.STOPPED])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_run_that_was_ended_is_not_tried_again_when_its_claim_is_removed_in_part(
    home: GuildHome, monkeypatch: pytest.MonkeyPatch, cause: Cause, count: int
) -> None:
    removed: list[str] = []
    unlink = os.unlink

    def unlink_or_be_killed(path: str) -> None:
        if len(removed) == count:
            raise _Killed
        unlink(path)
        removed.append(path)

    end_note.write(claims.path(home.claims_folder, RUN), cause)
    run_directory.record_end(home.run_dir(RUN), -9)
    with monkeypatch.context() as patched, contextlib.suppress(_Killed):
        patched.setattr(os, "unlink", unlink_or_be_killed)
        claims.remove(home.claims_folder, RUN)
    ended = recover(home, again=lambda *_: True).ended
    assert [result.end for _, result in ended] in ([], [End.TERMINATED])
    assert not list(home.claims_folder.iterdir())


def test_stop_request_of_a_dead_scheduler_is_withdrawn_where_the_run_goes_on(home: GuildHome) -> None:
    beside = claims.path(home.claims_folder, RUN)
    found = claims.present(home.claims_folder, RUN)
    assert found
    assert found.claim
    claimed = claims.write(home.claims_folder, replace(found.claim, owner=home.heartbeat.process))
    claimed.replace(claimed.with_suffix(claims.STARTED))
    stop_request.request_stop(beside, Cause.SCHEDULER_STOPPED)
    assert [claim.run_id for claim in recover(home).orphans] == [RUN]
    assert stop_request.requested_cause(beside) is None
    stop_request.request_stop(beside, Cause.SCHEDULER_STOPPED)
    stop_request.request_stop(beside)
    recover(home)
    assert stop_request.requested_cause(beside) is Cause.STOPPED
