"""What a worker does for one run, with a starter from a template and with one of its own."""

import os
import pathlib
from collections.abc import Iterator

import pytest
from scheduling import a_project, stage, statuses
from support import Guild, Sandbox

from guild_dask import claims, job, processes
from guild_dask.ends import Result
from guild_dask.operation import NOT_STARTED
from guild_dask.outcomes import End
from guild_dask.presence import Presence
from guild_dask.runs import GuildHome
from guild_dask.terms import Terms

QUICK = """
quick:
  exec: sh -c 'echo quick; exit 4'
"""


@pytest.fixture(params=["warm", "cold"])
def starting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Which kind of starter is used."""
    if request.param == "cold":
        monkeypatch.setattr(job._template, "_failures", 100)
    yield request.param
    job.close()


@pytest.fixture
def home(user: Sandbox, guild: Guild) -> GuildHome:
    """A Guild home with one staged run."""
    a_project(user, QUICK)
    stage(guild, "quick", "aaa")
    return GuildHome(str(user.guild_home), Presence(str(user.guild_home), "me", _me()))


def _me() -> processes.ProcessIdentity:
    me = processes.identity(os.getpid())
    assert me
    return me


def _claimed(home: GuildHome, folder: pathlib.Path) -> job.Job:
    claim = claims.Claim("aaa", "me", _me(), _me())
    (run,) = home.staged().staged
    assert home.claim([(run, claim)]).runs == (run,)
    environ = dict(os.environ)
    output = str(folder / "output")
    return job.Job(run.dir, claim, str(home.claims_folder), str(folder), environ, output, Terms(grace=5.0))


def test_run_is_started_and_its_exit_code_told(home: GuildHome, user: Sandbox, starting: str) -> None:
    work = _claimed(home, user.folder)
    ended = job.run(work)
    assert ended.exit_code == 4
    assert home.settle("aaa", ended.exit_code, may_stage_again=False) == Result(End.FAILED, 4)
    assert pathlib.Path(work.output).read_text() == "quick\n"
    assert not list(home.claims_folder.iterdir())


def test_run_that_is_stopped_before_it_starts_is_staged_again(home: GuildHome, user: Sandbox, starting: str) -> None:
    work = _claimed(home, user.folder)
    assert statuses(user) == {"aaa": "pending"}
    job.stop("aaa")
    ended = job.run(work)
    assert ended.exit_code == NOT_STARTED
    assert home.settle("aaa", ended.exit_code, may_stage_again=True) == Result(End.STAGED_AGAIN)
    assert statuses(user) == {"aaa": "staged"}
    assert pathlib.Path(work.output).read_text() == ""
    assert not list(home.claims_folder.iterdir())


def test_starter_does_not_start_a_run_whose_claim_was_taken_away(home: GuildHome, user: Sandbox, starting: str) -> None:
    # Another scheduler took us for dead.
    work = _claimed(home, user.folder)
    claims.write(home.claims_folder, claims.Claim("aaa", "another", _me(), _me()))
    assert job.run(work).exit_code == NOT_STARTED
    assert pathlib.Path(work.output).read_text() == ""
    (found,) = claims.all_claims(home.claims_folder)
    assert found.claim
    assert found.claim.scheduler_id == "another"
    assert not found.is_started


def test_run_that_was_staged_again_under_our_eyes_is_not_started(home: GuildHome, user: Sandbox, starting: str) -> None:
    # Another scheduler took ours for dead while the worker had read the claim, and had not yet written to it.
    work = _claimed(home, user.folder)
    pathlib.Path(work.run_dir, ".guild", "STAGED").touch()
    assert job.run(work).exit_code == NOT_STARTED
    assert pathlib.Path(work.output).read_text() == ""


def test_template_that_died_is_replaced(home: GuildHome, user: Sandbox) -> None:
    work = _claimed(home, user.folder)
    try:
        job._template._connection(dict(os.environ))
        os.kill(job._template.pid, 9)
        assert job.run(work).exit_code == 4
    finally:
        job.close()
