"""What a run's starter is told."""

import contextlib
import dataclasses
import errno
import os
import pathlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from guild_dask.cluster.events import JobLost
from guild_dask.home import claims
from guild_dask.home.claim_record import Claim
from guild_dask.home.errors import HomeUnavailable
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.home.outcome import End
from guild_dask.home.run_queue import GuildHome
from guild_dask.home.status import Status, status
from guild_dask.host import files, processes
from guild_dask.scheduler.dispatch import Dispatcher, Identity, options_for
from guild_dask.scheduler.instructions import Recover
from guild_dask.scheduler.ledger import ActiveRun
from guild_dask.worker.options import StarterOptions
from tests.home.test_run_directory import make_run
from tests.scheduler.world import ME, staged_run
from tests.support.failing_files import unreadable_file


def options(*tags: str, limit: float | None = None, devices: Any = None, worker: Any = None) -> StarterOptions:
    run = staged_run("aaa", 1, *tags)
    claim = Claim("aaa", "me", ME, ME, 2, run.requirements.amounts, devices=devices or {})
    return options_for(run, claim, worker or StarterOptions(), limit)


def test_attempt_of_the_claim_is_passed_on() -> None:
    assert options().attempt == 2


@pytest.mark.parametrize(
    ("tags", "limit", "expected"),
    [((), None, 0.0), ((), 60.0, 60.0), (("dask-time:30s",), 60.0, 30.0), (("dask-time:30s",), None, 30.0)],
)
def test_time_limit_of_the_run_wins_over_that_of_the_scheduler(
    tags: tuple[str, ...], limit: float | None, expected: float
) -> None:
    assert options(*tags, limit=limit).time_limit == expected


def test_time_limit_of_the_scheduler_is_for_trials_and_not_for_their_search() -> None:
    run = dataclasses.replace(staged_run("aaa", 1), is_search=True)
    claim = Claim("aaa", "me", ME, ME, 1, {})
    assert options_for(run, claim, StarterOptions(), 60.0).time_limit == 0.0


@pytest.mark.parametrize(("tag", "threads"), [("dask:gpu=1", 0), ("dask:cpu=4", 4), ("dask:cpu=0.5", 1)])
def test_cpus_become_threads(tag: str, threads: int) -> None:
    assert options(tag).threads == threads


def test_memory_in_a_unit_of_the_users_own_is_not_enforced() -> None:
    assert options("dask:mem=8GB").memory == 8e9
    assert options("dask:mem=8").memory == 0.0


def test_devices_of_the_claim_are_seen_and_else_what_the_worker_decides() -> None:
    assert options(devices={"0": 1.0, "3": 0.5}).devices == "0,3"
    assert options(worker=StarterOptions(devices="")).devices == ""
    assert options().devices is None


# Retries


def test_policy_of_a_run_whose_tags_cannot_be_read_now_is_not_that_of_the_scheduler(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = make_run(tmp_path / "runs" / "aaa", tags="['dask-retries:3']\n")
    me = processes.identity(os.getpid())
    assert me
    nothing: Any = None  # what has no part in it
    home = GuildHome(str(tmp_path), Heartbeat(str(tmp_path), "me", me))
    dispatcher = Dispatcher(Identity("me", me, {}, ""), home, nothing, nothing, nothing, retries=0)
    dead = dataclasses.replace(me, boot="before")
    (run,) = home.staged().staged
    assert home.claim([(run, Claim("aaa", "other", dead, dead))]).taken
    assert claims.mark_started(claims.path(home.claims_folder, "aaa"))
    recovery = Recover(frozenset(), frozenset(), may_retry=True)
    with monkeypatch.context() as short, contextlib.suppress(HomeUnavailable):
        short.setattr(files, "content", _fails_for_tags(files.content))
        dispatcher.recover(recovery)
    ended = dispatcher.recover(recovery).ended
    assert [result.end for _, result in ended] == [End.RETRIED]
    assert (run_dir / ".guild" / "STAGED").exists()


def _fails_for_tags(content: Callable[..., bytes]) -> Callable[..., bytes]:
    def fail(file: Any, *args: Any, **options: Any) -> bytes:
        if os.path.basename(file) == "tags":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return content(file, *args, **options)

    return fail


# Claims


@pytest.mark.parametrize("broken", ["folder", "attribute", "record"])
def test_run_that_cannot_be_read_now_keeps_no_other_from_being_claimed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    # As on a mount of which the server is gone, or with a bad block.
    elsewhere = tmp_path / "elsewhere"
    bad = make_run(tmp_path / "runs" / "aaa", flags="{}\n")
    (bad / ".guild" / "ENV").write_text(f"export CMD_DIR={elsewhere}\n")
    make_run(tmp_path / "runs" / "bbb")
    me = processes.identity(os.getpid())
    assert me
    nothing: Any = None  # what has no part in it
    cluster: Any = SimpleNamespace(options=lambda _worker: StarterOptions())
    follower: Any = SimpleNamespace(follow=str, finish=str)
    home = GuildHome(str(tmp_path), Heartbeat(str(tmp_path), "me", me))
    home.heartbeat.renew()
    dispatcher = Dispatcher(Identity("me", me, {}, "/"), home, cluster, follower, nothing)
    wanted = [(run, Claim(run.id, "me", me, me)) for run in home.staged().staged]
    guild_dir = bad / ".guild"
    unreadable = {"folder": elsewhere, "attribute": guild_dir / "attrs" / "flags", "record": guild_dir / "LOCK"}[broken]
    with unreadable_file(monkeypatch, str(unreadable)):
        answered = dispatcher.claim(wanted)
    assert [active.run.id for active in answered.taken] == ["bbb"]
    assert list(answered.postponed) == ["aaa"]
    assert "Input/output error" in answered.postponed["aaa"]
    assert not answered.missing
    assert status(str(bad)) is Status.STAGED


# Submission


@pytest.mark.parametrize("error", [OverflowError("too large"), HomeUnavailable("the disk is gone"), KeyError("w")])
def test_run_that_cannot_be_sent_is_lost_whatever_the_error(tmp_path: pathlib.Path, error: Exception) -> None:
    def fail(_running: object) -> None:
        raise error

    scheduler = tmp_path / "runs" / "me"
    scheduler.mkdir(parents=True)
    nothing: Any = None  # what has no part in it
    home = GuildHome(str(tmp_path), Heartbeat(str(tmp_path), "me", ME))
    cluster: Any = SimpleNamespace(workers=list)
    publisher: Any = SimpleNamespace(started=fail)
    dispatcher = Dispatcher(Identity("me", ME, {}, ""), home, cluster, nothing, publisher)
    active = ActiveRun(staged_run("aaa", 1), Claim("aaa", "me", ME, ME, worker="worker"), "host")
    is_ours = not isinstance(error, HomeUnavailable)
    problem = repr(error) if is_ours else str(error)
    assert dispatcher.submit(active) == JobLost("aaa", problem, may_be_of_run=is_ours)
    assert (scheduler / "error.log").exists() == is_ours
    assert not is_ours or repr(error).partition("(")[0] in (scheduler / "error.log").read_text()


def test_run_that_a_failing_home_does_not_let_be_sent_is_lost_and_not_forgotten() -> None:
    def fail(_running: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    nothing: Any = None  # what has no part in it
    cluster: Any = SimpleNamespace(workers=list)
    publisher: Any = SimpleNamespace(started=fail)
    dispatcher = Dispatcher(Identity("me", ME, {}, ""), nothing, cluster, nothing, publisher)
    active = ActiveRun(staged_run("aaa", 1), Claim("aaa", "me", ME, ME, worker="worker"), "host")
    assert dispatcher.submit(active) == JobLost("aaa", os.strerror(errno.EIO))
