"""A file that cannot be read at any step, for too many open files or a file server that fails, is unknown.

What it shows is neither missing nor dead.
"""

import contextlib
import errno
import itertools
import os
import pathlib
import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from guild_dask.cli.predecessors import predecessors_of
from guild_dask.home import claims, end_note, lookup, run_directory
from guild_dask.home.errors import HomeUnavailable
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.home.listing import RunsDirectory
from guild_dask.home.recovery import recover
from guild_dask.home.run_filter import Selection
from guild_dask.home.run_queue import Claimed, GuildHome
from guild_dask.home.status import Status, status
from guild_dask.home.working_directory import working_directory
from guild_dask.host import processes
from guild_dask.plan.dependencies import RunStatus
from tests.home.test_run_directory import make_run
from tests.support.failing_files import Files
from tests.support.sandbox import Guild, Sandbox
from tests.support.scheduling import a_project, stage, statuses

RUN = "short-of-files-test"


@pytest.fixture
def home(user: Sandbox, guild: Guild) -> GuildHome:
    """A Guild home with a run that had started, under a scheduler that is gone."""
    a_project(user, "quick: {exec: echo quick}")
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


def _change(home: GuildHome, **facts: Any) -> None:
    """Changes the claim on the run."""
    found = claims.present(home.claims_folder, RUN)
    assert found
    assert found.claim
    claimed = claims.write(home.claims_folder, replace(found.claim, **facts))
    os.replace(claimed, claimed.with_suffix(claims.STARTED))


def _has_recorded_its_end(home: GuildHome) -> str:
    run_directory.record_end(home.run_dir(RUN), 0)
    return "completed"


def _has_left_its_exit_code(home: GuildHome) -> str:
    found = claims.present(home.claims_folder, RUN)
    assert found
    assert found.claim
    end_note.write_exit(claims.path(home.claims_folder, RUN), end_note.Exit(0, found.claim.owner))
    return "completed"


def _lives_under_another_scheduler(home: GuildHome) -> str:
    parent = processes.identity(os.getppid())
    assert parent
    _change(home, owner=parent, scheduler=parent)
    return "pending"


def _lives_without_a_scheduler(home: GuildHome) -> str:
    parent = processes.identity(os.getppid())
    assert parent
    _change(home, owner=parent)
    return "pending"


def _lives_on_another_host(home: GuildHome) -> str:
    _change(home, owner=replace(home.heartbeat.process, host="elsewhere"), lease=60.0)
    claims.path(home.claims_folder, RUN).with_suffix(claims.HEARTBEAT).touch()
    return "pending"


STORIES = (
    _has_recorded_its_end,
    _has_left_its_exit_code,
    _lives_under_another_scheduler,
    _lives_without_a_scheduler,
    _lives_on_another_host,
)


@pytest.mark.parametrize("story", STORIES, ids=lambda each: each.__name__.strip("_"))
def test_run_is_not_started_again_whatever_file_cannot_be_opened(
    user: Sandbox, home: GuildHome, opened: Files, story: Callable[[GuildHome], str]
) -> None:
    expected = story(home)
    kept = user.root / "kept"
    shutil.copytree(user.guild_home, kept)
    chosen = 0
    while chosen == 0 or opened.count >= chosen:
        chosen += 1
        shutil.rmtree(user.guild_home)
        shutil.copytree(kept, user.guild_home)
        with opened.failing(chosen), contextlib.suppress(HomeUnavailable, OSError):
            recover(home, again=lambda _dir, _is_loss: True)
        recover(home, again=lambda _dir, _is_loss: True)
        assert statuses(user) == {RUN: expected}, f"after file {chosen} could not be opened"
        assert (claims.present(home.claims_folder, RUN) is None) == (expected == "completed")
    assert chosen > 3


def test_living_process_is_not_dead_if_there_are_too_many_open_files() -> None:
    me = processes.identity(os.getpid())
    assert me
    assert processes.is_alive(me)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        for ask in (lambda: processes.is_alive(me), lambda: processes.variable_of(me.pid, "PATH")):
            with pytest.raises(OSError, match="Too many open files"):
                ask()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_staged_runs_are_found_once_there_are_files_again(user: Sandbox, guild: Guild, opened: Files) -> None:
    a_project(user, "quick: {exec: echo quick}")
    stage(guild, "quick", "aaa")
    runs = user.guild_home / "runs"
    for name in ("bbb", "ccc"):
        shutil.copytree(runs / "aaa", runs / name)
    chosen = 0
    while chosen == 0 or opened.count >= chosen:
        chosen += 1
        directory = RunsDirectory(str(runs))
        found: set[str] = set()
        with opened.failing(chosen), contextlib.suppress(HomeUnavailable):
            first = directory.poll()
            assert not first.broken, f"after file {chosen} could not be opened"
            found = {run.id for run in first.staged}
        later = directory.poll()
        assert found | {run.id for run in later.staged} == {"aaa", "bbb", "ccc"}, f"after file {chosen}"
        assert not later.gone
    assert chosen > 5


class _Claiming:
    """A scheduler that has listed the one staged run of a new Guild home, and is about to claim it."""

    def __init__(self, root: pathlib.Path) -> None:
        self._run = make_run(root / "runs" / RUN)
        me = processes.identity(os.getpid())
        assert me
        self.home = GuildHome(str(root), Heartbeat(str(root), "me", me))
        self.home.heartbeat.renew()
        (self.run,) = self.home.staged().staged
        self._claim = claims.Claim(RUN, "me", me, me)

    def claim(self) -> Claimed:
        try:
            return self.home.claim([(self.run, self._claim)])
        except HomeUnavailable as e:
            return Claimed((), {}, problem=str(e))

    @property
    def status(self) -> Status:
        return status(str(self._run))


def test_run_is_claimed_or_stays_staged_whatever_file_cannot_be_read(tmp_path: pathlib.Path, failing: Files) -> None:
    chosen = 0
    while chosen == 0 or failing.count >= chosen:
        chosen += 1
        story = _Claiming(tmp_path / str(chosen))
        with failing.failing(chosen):
            claimed = story.claim()
        assert not claimed.refused, f"after file {chosen} could not be read"
        if not claimed.taken:
            assert story.status is Status.STAGED, f"after file {chosen} could not be read"
            story.home.staged()
            assert story.claim().taken, f"after file {chosen} could not be read"
    assert chosen > 5


def test_run_is_staged_again_that_could_neither_be_claimed_nor_given_back(
    tmp_path: pathlib.Path, opened: Files
) -> None:
    story = _Claiming(tmp_path / "all")
    with opened.failing():
        assert story.claim().taken
    # The second fails while what the first left undone is taken back.
    for first, second in itertools.product(range(1, opened.count + 1), range(1, 7)):
        story = _Claiming(tmp_path / f"{first}-{second}")
        with opened.failing(first, first + second):
            claimed = story.claim()
        assert not claimed.refused
        if not claimed.taken:
            story.home.staged()
            recover(story.home)
            assert story.status is Status.STAGED, f"after files {first} and {first + second} could not be opened"


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_run_that_matches_is_seen_whatever_file_could_not_be_read(tmp_path: pathlib.Path, failing: Files) -> None:
    me = processes.identity(os.getpid())
    assert me
    runs = tmp_path / "runs"
    make_run(runs / "aaa", label="x\n")
    make_run(runs / "bbb", label="y\n")
    chosen = 0
    while chosen == 0 or failing.count >= chosen:
        chosen += 1
        home = GuildHome(str(tmp_path), Heartbeat(str(tmp_path), "me", me), Selection("label = x").of)
        seen: list[str] = []
        with failing.failing(chosen), contextlib.suppress(HomeUnavailable):
            seen += [run.id for run in home.staged().staged]
        later = home.staged()
        seen += [run.id for run in later.staged]
        assert seen == ["aaa"], f"after file {chosen} could not be read"
        assert not later.broken
    assert chosen > 5


def test_run_that_goes_on_is_not_over_whatever_file_cannot_be_read(tmp_path: pathlib.Path, failing: Files) -> None:
    run_dir = make_run(tmp_path / "aaa")
    (run_dir / ".guild" / "STAGED").unlink()
    (run_dir / ".guild" / "LOCK").write_text(str(os.getpid()))
    chosen = 0
    while chosen == 0 or failing.count >= chosen:
        chosen += 1
        with failing.failing(chosen), contextlib.suppress(OSError):
            assert status(str(run_dir)) is Status.RUNNING, f"file {chosen} could not be read"
    assert chosen > 1


def test_heartbeat_of_a_living_scheduler_stays_whatever_file_cannot_be_read(
    tmp_path: pathlib.Path, failing: Files
) -> None:
    me = processes.identity(os.getpid())
    assert me
    own = Heartbeat(str(tmp_path), "own", me)
    others = (Heartbeat(str(tmp_path), "same-host", me), Heartbeat(str(tmp_path), "other", replace(me, host="other")))
    for each in (own, *others):
        each.renew()
    chosen = 0
    while chosen == 0 or failing.count >= chosen:
        chosen += 1
        with failing.failing(chosen):
            own.sweep()
        assert all(os.path.exists(each.token) for each in others), f"after file {chosen} could not be read"
    assert chosen > 3


def test_run_starts_where_it_was_staged_whatever_file_cannot_be_read(tmp_path: pathlib.Path, failing: Files) -> None:
    run_dir = make_run(tmp_path / "runs" / "aaa")
    (run_dir / ".guild" / "ENV").write_text(f"export CMD_DIR={tmp_path}\n")
    chosen = 0
    while chosen == 0 or failing.count >= chosen:
        chosen += 1
        with failing.failing(chosen), contextlib.suppress(OSError):
            assert working_directory(str(run_dir), "elsewhere") == str(tmp_path), f"file {chosen} could not be read"


def test_scheduler_is_not_taken_for_a_run_whatever_file_cannot_be_read(tmp_path: pathlib.Path, failing: Files) -> None:
    # Nor is a batch of them.
    run_dir = make_run(tmp_path / "aaa")
    (run_dir / ".guild" / "opref").write_text("builtin:? '' '' +\n")
    (run_dir / ".guild" / "proto" / ".guild").mkdir(parents=True)
    (run_dir / ".guild" / "proto" / ".guild" / "opref").write_text("builtin:? '' '' queue\n")
    assert run_directory.read_staged(str(run_dir)).is_queue
    chosen = 0
    while chosen == 0 or failing.count >= chosen:
        chosen += 1
        with failing.failing(chosen), contextlib.suppress(OSError, run_directory.BrokenRun):
            assert run_directory.read_staged(str(run_dir)).is_queue, f"file {chosen} could not be read"


def test_run_is_found_by_those_that_come_after_it_whatever_file_could_not_be_read(
    tmp_path: pathlib.Path, failing: Files
) -> None:
    make_run(tmp_path / "runs" / "aaa")
    chosen = 0
    while chosen == 0 or failing.count >= chosen:
        chosen += 1
        with failing.failing(chosen), contextlib.suppress(HomeUnavailable):
            found = lookup.found(str(tmp_path / "runs"), tmp_path / "claims", (), ("aa",))
            # One that cannot be read may go on.
            assert found["aa"].status in (RunStatus.STAGED, RunStatus.GOES_ON), f"file {chosen} could not be read"
    assert chosen > 3


def test_explanation_has_what_can_be_read_whatever_file_cannot(tmp_path: pathlib.Path, failing: Files) -> None:
    make_run(tmp_path / "runs" / "aaa", tags="[dask-after:bbb, dask:gpu=1]")
    make_run(tmp_path / "runs" / "bbb", tags="[dask:gpu=2]")
    assert predecessors_of(str(tmp_path), "aaa").requests == {"bbb": {"gpu": 2.0}}
    chosen = 0
    while chosen == 0 or failing.count >= chosen:
        chosen += 1
        with failing.failing(chosen):
            predecessors_of(str(tmp_path), "aaa")
    assert chosen > 5


def test_runs_directory_that_may_not_be_read_for_a_while_is_the_homes_trouble(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on NFS with a Kerberos ticket that has expired. Another error would end the scheduler, and all its runs.
    make_run(tmp_path / "runs" / "aaa")
    refusing = Files(monkeypatch, errno.EACCES)
    problems: list[str] = []
    while len(problems) <= refusing.count:
        with refusing.failing(len(problems) + 1):
            try:
                lookup.found(str(tmp_path / "runs"), tmp_path / "claims", (), ("aa",))
            except HomeUnavailable as e:
                problems.append(str(e))
            else:
                problems.append("")
    assert f"cannot look up runs in {tmp_path / 'runs'}: Permission denied" in problems
