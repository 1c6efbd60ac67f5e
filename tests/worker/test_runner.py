"""One job on a worker, with a starter that is forked from the forkserver and with one that is spawned."""

import errno
import os
import pathlib
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from guild_dask.home import claims
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.home.outcome import End, Result
from guild_dask.home.run_queue import GuildHome
from guild_dask.host import processes
from guild_dask.worker.fork_client import ForkServer, Request
from guild_dask.worker.job import NOT_STARTED, Ended, Job
from guild_dask.worker.options import StarterOptions
from guild_dask.worker.runner import Runner
from tests.support.failing_files import unreadable_file
from tests.support.sandbox import DEADLINE, Guild, Sandbox
from tests.support.scheduling import a_project, stage, statuses

QUICK = """
quick:
  exec: sh -c 'echo quick; exit 4'
"""


@pytest.fixture(params=["forked", "spawned"])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """A runner of each kind: one that forks starters, and one whose forkserver is given up from the start."""
    made = Runner(ForkServer() if request.param == "forked" else ForkServer(most_failures=0))
    yield made
    made.close()


@pytest.fixture
def home(user: Sandbox, guild: Guild) -> GuildHome:
    """A Guild home with one staged run."""
    a_project(user, QUICK)
    stage(guild, "quick", "aaa")
    return GuildHome(str(user.guild_home), Heartbeat(str(user.guild_home), "me", _me()))


def _me() -> processes.ProcessIdentity:
    me = processes.identity(os.getpid())
    assert me
    return me


def _claimed(home: GuildHome, folder: pathlib.Path) -> Job:
    claim = claims.Claim("aaa", "me", _me(), _me())
    (run,) = home.staged().staged
    assert [taken for taken, _ in home.claim([(run, claim)]).taken] == [run]
    environ = dict(os.environ)
    output = str(folder / "output")
    return Job(run.dir, claim, str(home.claims_folder), str(folder), environ, output, StarterOptions(grace=5.0))


def test_run_is_started_and_its_exit_code_returned(home: GuildHome, user: Sandbox, runner: Runner) -> None:
    work = _claimed(home, user.folder)
    ended = runner.run(work)
    assert ended.exit_code == 4
    assert home.settle("aaa", ended.exit_code) == Result(End.FAILED, 4)
    assert pathlib.Path(work.output).read_text() == "quick\n"
    assert not list(home.claims_folder.iterdir())


def test_run_whose_directory_cannot_be_entered_here_is_started_in_its_own(
    home: GuildHome, user: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = _claimed(home, user.folder)
    requests: list[Request] = []
    server = ForkServer()
    monkeypatch.setattr(server, "start", lambda request, _gate, _output: requests.append(request))
    with unreadable_file(monkeypatch, f"{work.directory}/.", error=errno.EACCES):
        assert Runner(server).run(work).exit_code == 4
    assert [request.directory for request in requests] == [work.run_dir]


def test_run_that_is_stopped_before_it_starts_is_staged_again(home: GuildHome, user: Sandbox, runner: Runner) -> None:
    work = _claimed(home, user.folder)
    assert statuses(user) == {"aaa": "pending"}
    runner.stop("aaa")
    ended = runner.run(work)
    assert ended.exit_code == NOT_STARTED
    assert home.settle("aaa", ended.exit_code) == Result(End.STAGED_AGAIN)
    assert statuses(user) == {"aaa": "staged"}
    assert pathlib.Path(work.output).read_text() == ""
    assert not list(home.claims_folder.iterdir())


def test_run_whose_claim_was_taken_away_is_not_started(home: GuildHome, user: Sandbox, runner: Runner) -> None:
    # Another scheduler considers ours dead.
    work = _claimed(home, user.folder)
    claims.write(home.claims_folder, claims.Claim("aaa", "another", _me(), _me()))
    assert runner.run(work).exit_code == NOT_STARTED
    assert pathlib.Path(work.output).read_text() == ""
    (found,) = claims.all_claims(home.claims_folder)
    assert found.claim
    assert found.claim.scheduler_id == "another"
    assert not found.is_started


def test_run_that_another_scheduler_stages_again_is_not_started(home: GuildHome, user: Sandbox, runner: Runner) -> None:
    # It considers ours dead after the worker has read the claim and before the worker has written to it.
    work = _claimed(home, user.folder)
    pathlib.Path(work.run_dir, ".guild", "STAGED").touch()
    assert runner.run(work).exit_code == NOT_STARTED
    assert pathlib.Path(work.output).read_text() == ""


def test_stop_request_during_the_hand_over_of_the_claim_keeps_the_gate_closed(
    home: GuildHome, user: Sandbox, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A lifeline is a second end of the gate. A starter would wait for as long as it is open.
    work = _claimed(home, user.folder)
    work = replace(work, options=replace(work.options, has_lifeline=True))
    hand_over = claims.hand_over

    def stop_and_hand_over(folder: pathlib.Path, claim: claims.Claim, owner: processes.ProcessIdentity) -> bool:
        runner.stop("aaa")
        return hand_over(folder, claim, owner)

    monkeypatch.setattr(claims, "hand_over", stop_and_hand_over)
    ended: list[Ended] = []
    job = threading.Thread(target=lambda: ended.append(runner.run(work)), daemon=True)
    job.start()
    job.join(DEADLINE)
    runner.destroy("aaa")
    assert ended == [Ended(NOT_STARTED)]
    assert pathlib.Path(work.output).read_text() == ""


def test_template_that_died_is_replaced(home: GuildHome, user: Sandbox) -> None:
    work = _claimed(home, user.folder)
    forkserver = ForkServer()
    runner = Runner(forkserver)
    try:
        runner.prepare(dict(os.environ))
        os.kill(forkserver.pid, 9)
        assert runner.run(work).exit_code == 4
    finally:
        runner.close()
