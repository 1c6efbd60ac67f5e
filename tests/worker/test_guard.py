"""Runs on a worker in another process: what ends them, and what other hosts can see of that."""

import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest

from guild_dask.home import attempts, claims, end_note, stop_request
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.home.outcome import Cause, End, Note, Result
from guild_dask.home.recovery import recover
from guild_dask.home.run_queue import GuildHome
from guild_dask.host import processes
from guild_dask.worker.fork_client import ForkServer
from guild_dask.worker.job import KILLED, NOT_STARTED, Ended, Job
from guild_dask.worker.options import StarterOptions
from guild_dask.worker.runner import Runner
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import a_project, stage

LONG = """
long:
  exec: sh -c 'echo begun; sleep 600 & wait'
"""

# A worker that can be killed. Its job comes through standard input.
WORKER = """
import pickle, sys
from guild_dask.worker.runner import RUNNER

RUNNER.run(pickle.load(sys.stdin.buffer))
"""


class _World:
    """One claimed run, and a runner for it."""

    def __init__(self, user: Sandbox, guild: Guild, lease: float) -> None:
        a_project(user, LONG)
        stage(guild, "long", "aaa")
        me = processes.identity(os.getpid())
        assert me
        self.guild = guild
        self.home = GuildHome(str(user.guild_home), Heartbeat(str(user.guild_home), "me", me))
        self.claim = claims.Claim("aaa", "me", me, me, lease=lease)
        (run,) = self.home.staged().staged
        self.run_dir = run.dir
        assert self.home.claim([(run, self.claim)]).taken
        self.output = user.folder / "output"
        options = StarterOptions(grace=5.0, node="node12", lease=lease, has_lifeline=True)
        folder = str(self.home.claims_folder)
        self.job = Job(run.dir, self.claim, folder, str(user.folder), dict(os.environ), str(self.output), options)
        self.runner = Runner(ForkServer())
        self.ended: list[Ended] = []
        self.thread = threading.Thread(target=lambda: self.ended.append(self.runner.run(self.job)), daemon=True)

    def begin(self) -> "_World":
        """Starts the run on a worker that is a thread here."""
        self.thread.start()
        self.wait_for_operation()
        return self

    def wait_for_operation(self) -> None:
        wait_until(lambda: self.output.exists() and "begun" in self.output.read_text())

    @property
    def starter(self) -> int:
        found = self.runner.starter_of("aaa")
        assert found
        return found.pid

    @property
    def claimed(self) -> pathlib.Path:
        return claims.path(self.home.claims_folder, "aaa")

    def wait(self) -> int:
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.ended[0].exit_code


def _settled_as_killed(world: _World) -> Result:
    """Returns how the run ended, whose starter was killed, if losses are tried again."""
    again, lost = lambda _dir, is_loss: is_loss, Cause.KILLED
    return world.home.settle("aaa", KILLED, again=again, lost=lost)


@pytest.fixture
def world(user: Sandbox, guild: Guild) -> Iterator[_World]:
    made = _World(user, guild, lease=30.0).begin()
    yield made
    if made.thread.is_alive():
        made.runner.destroy("aaa")
    made.wait()
    made.runner.close()


def test_other_hosts_see_where_the_run_is(world: _World) -> None:
    assert "running (node12)" in world.guild("runs").output
    world.runner.stop("aaa")
    world.home.settle("aaa", world.wait())
    assert "terminated" in world.guild("runs").output


def test_run_that_its_scheduler_stops_is_recorded_as_stopped(world: _World) -> None:
    world.runner.stop("aaa")
    code = world.wait()
    assert end_note.read(world.claimed) == Note(Cause.STOPPED)
    result = world.home.settle("aaa", code, again=lambda *_: True)
    assert (result.end, result.cause) == (End.TERMINATED, Cause.STOPPED)
    assert not list(world.home.claims_folder.iterdir())


def test_run_can_be_stopped_through_the_home(world: _World) -> None:
    stop_request.request_stop(world.claimed)
    world.wait()
    assert end_note.read(world.claimed) == Note(Cause.STOPPED)


def test_run_ends_with_its_worker_and_is_started_again(user: Sandbox, guild: Guild) -> None:
    world = _World(user, guild, lease=30.0)
    with subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE) as worker:
        assert worker.stdin
        worker.stdin.write(pickle.dumps(world.job))
        worker.stdin.close()
        world.wait_for_operation()
        (child,) = [each for each in processes.descendants(worker.pid) if "sleep" in each.name()]
        worker.kill()
    wait_until(lambda: end_note.read(world.claimed), describe="the end of the run")
    assert not child.is_running()
    assert end_note.read(world.claimed) == Note(Cause.WORKER_DIED)
    result = _settled_as_killed(world)
    assert (result.end, result.cause) == (End.RETRIED, Cause.WORKER_DIED)
    assert "staged" in world.guild("runs").output
    (past,) = attempts.past(world.run_dir)
    assert (past.number, past.is_loss, past.cause) == (1, True, Cause.WORKER_DIED)
    assert not list(world.home.claims_folder.iterdir())


def test_signal_from_the_job_queue_is_a_loss(world: _World) -> None:
    os.kill(world.starter, signal.SIGTERM)
    world.wait()
    assert end_note.read(world.claimed) == Note(Cause.SIGNAL)
    assert Cause.SIGNAL.is_loss


def test_run_that_cannot_reach_the_home_is_ended_before_other_hosts_consider_it_dead(
    user: Sandbox, guild: Guild
) -> None:
    world = _World(user, guild, lease=3.0).begin()
    folder = world.home.claims_folder
    wait_until(world.claimed.with_suffix(".beat").exists)
    away = folder.with_name("away")
    os.rename(folder, away)
    try:
        world.wait()
    finally:
        os.rename(away, folder)
        world.runner.close()
    home = _seen_from_elsewhere(world)
    assert not recover(home, again=lambda *_: True).ended, "not before it must have ended, wherever it is"
    long_ago = home.heartbeat.now() - 60
    os.utime(world.claimed.with_suffix(".beat"), (long_ago, long_ago))
    ((run_id, result),) = recover(home, again=lambda *_: True).ended
    assert (run_id, result.end) == ("aaa", End.RETRIED)
    assert result.cause
    assert result.cause.is_loss


def test_run_on_another_host_is_left_alone_while_it_has_a_heartbeat(world: _World) -> None:
    wait_until(lambda: world.claimed.with_suffix(".beat").exists())
    recovered = recover(_seen_from_elsewhere(world), again=lambda *_: True)
    assert [claim.run_id for claim in recovered.orphans] == ["aaa"]
    assert not recovered.ended


def test_run_on_another_host_is_started_again_when_its_heartbeat_is_too_old(world: _World) -> None:
    wait_until(lambda: world.claimed.with_suffix(".beat").exists())
    home = _seen_from_elsewhere(world)
    world.runner.destroy("aaa")
    world.wait()
    # The worker left this if it found the starter killed; but its host is gone as a whole.
    world.claimed.with_suffix(".ended").unlink(missing_ok=True)
    long_ago = home.heartbeat.now() - 4 * world.claim.lease
    os.utime(world.claimed.with_suffix(".beat"), (long_ago, long_ago))
    ((run_id, result),) = recover(home, again=lambda *_: True).ended
    assert (run_id, result.end, result.cause) == ("aaa", End.RETRIED, Cause.NODE_LOST)


def test_parents_are_killed_before_their_children(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    # The shell would wake up when its command is gone, and exit with 0: the run would count as completed.
    parents = {each.pid: each.ppid() for each in psutil.Process().children(recursive=True)}
    killed: list[int] = []
    send = processes.send

    def recorded(process: psutil.Process, number: signal.Signals) -> None:
        killed.append(process.pid)
        send(process, number)

    monkeypatch.setattr(processes, "send", recorded)
    os.kill(world.starter, signal.SIGSTOP)  # else it may end them by SIGTERM before
    world.runner.kill("aaa")
    os.kill(world.starter, signal.SIGCONT)
    assert world.wait() == -signal.SIGKILL
    pairs = [(parents[pid], pid) for pid in killed if parents.get(pid) in killed]
    assert pairs
    assert all(killed.index(parent) < killed.index(pid) for parent, pid in pairs)


def test_starter_that_was_suspended_for_longer_than_its_lease_ends_the_run(user: Sandbox, guild: Guild) -> None:
    # The machine was suspended, and another host may have started the run meanwhile.
    world = _World(user, guild, lease=3.0).begin()
    beat = world.claimed.with_suffix(".beat")
    wait_until(beat.exists)
    starter = world.starter
    os.kill(starter, signal.SIGSTOP)
    last = beat.stat().st_mtime
    wait_until(lambda: time.time() - last > 8)
    os.kill(starter, signal.SIGCONT)
    assert world.wait() == KILLED
    world.runner.close()
    assert beat.stat().st_mtime == last
    assert end_note.read(world.claimed) == Note(Cause.CUT_OFF)
    result = _settled_as_killed(world)
    assert (result.end, result.cause) == (End.RETRIED, Cause.CUT_OFF)


def test_starter_that_lost_its_claim_ends_the_run_and_writes_nothing(user: Sandbox, guild: Guild) -> None:
    world = _World(user, guild, lease=3.0).begin()
    started = world.claimed.with_suffix(".started")
    other = replace(world.claim, owner=replace(world.claim.owner, host="elsewhere"), serial=99)
    claims.write(world.home.claims_folder, other)
    os.replace(world.claimed, started)
    lock = pathlib.Path(world.run_dir, ".guild", "LOCK.remote")
    lock.write_text("elsewhere")
    assert world.wait() == KILLED
    world.runner.close()
    found = claims.present(world.home.claims_folder, "aaa")
    assert found
    assert found.claim == other
    assert lock.read_text() == "elsewhere"
    assert end_note.read(world.claimed) is None
    assert not pathlib.Path(world.run_dir, ".guild", "attrs", "exit_status").exists()


def test_second_job_for_a_run_does_not_cut_the_lifeline_of_the_first(world: _World) -> None:
    assert world.runner.run(world.job).exit_code == NOT_STARTED
    assert world.thread.is_alive()
    assert end_note.read(world.claimed) is None


def test_closing_worker_starts_no_run(world: _World) -> None:
    world.runner.lose_all()
    world.wait()
    assert end_note.read(world.claimed) == Note(Cause.SIGNAL)
    assert world.runner.run(world.job).exit_code == NOT_STARTED


def test_starter_that_its_worker_does_not_let_begin_leaves_a_note_for_other_hosts(
    user: Sandbox, guild: Guild, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its worker dies with its job, and cannot report that nothing has started: others would wait for three leases.
    world = _World(user, guild, lease=30.0)
    hand_over = claims.hand_over

    def hand_over_and_close(*arguments: Any) -> bool:
        try:
            return hand_over(*arguments)
        finally:
            world.runner.lose_all()

    monkeypatch.setattr(claims, "hand_over", hand_over_and_close)
    assert world.runner.run(world.job).exit_code == NOT_STARTED
    world.runner.close()
    assert claims.is_owned_by(world.claimed, _owner(world))
    assert end_note.read(world.claimed) == Note(None)
    assert recover(_seen_from_elsewhere(world, ".claimed")).staged_again == ("aaa",)


def test_signal_to_a_starter_that_has_just_been_forked_is_recorded(
    user: Sandbox, guild: Guild, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A job queue signals all processes of a job, also one that cannot handle a signal yet.
    world = _World(user, guild, lease=30.0)
    world.runner.prepare(dict(os.environ))
    identity = processes.identity

    def end_and_identify(pid: int) -> processes.ProcessIdentity | None:
        if pid != os.getpid():
            os.kill(pid, signal.SIGTERM)
        return identity(pid)

    monkeypatch.setattr(processes, "identity", end_and_identify)
    assert world.runner.run(world.job).exit_code == NOT_STARTED
    world.runner.close()


def _owner(world: _World) -> processes.ProcessIdentity:
    found = claims.present(world.home.claims_folder, "aaa")
    assert found
    assert found.claim
    return found.claim.owner


def _seen_from_elsewhere(world: _World, state: str = ".started") -> GuildHome:
    """Returns the home as a scheduler on another host sees it, after the run's own scheduler has died."""
    started = world.claimed.with_suffix(state)
    before = started.stat()
    found = claims.present(world.home.claims_folder, "aaa")
    assert found
    claim = found.claim
    assert claim
    moved = replace(
        claim, owner=replace(claim.owner, host="elsewhere"), scheduler=replace(claim.scheduler, host="elsewhere")
    )
    claims.write(world.home.claims_folder, moved)
    os.replace(world.claimed, started)
    os.utime(started, ns=(before.st_atime_ns, before.st_mtime_ns))
    folder = str(world.home.claims_folder.parent.parent)
    home = GuildHome(folder, Heartbeat(folder, "other", claim.scheduler))
    home.heartbeat.renew()
    return home
