"""Runs that the user deletes while they are claimed or staged again, and restores later: at every step in between."""

import contextlib
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from guild_dask.home import claims, layout, run_directory, snapshot
from guild_dask.home.errors import RunUnusable
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.home.outcome import End
from guild_dask.home.recovery import recover
from guild_dask.home.run_queue import GuildHome
from guild_dask.home.status import Status, status
from guild_dask.host import processes
from guild_dask.host.processes import ProcessIdentity
from guild_dask.worker.job import NOT_STARTED
from guild_dask.worker.operation import Operation
from guild_dask.worker.options import StarterOptions
from tests.support.sandbox import Guild, Sandbox
from tests.support.scheduling import a_project, stage

RUN = "aaa"


@dataclass
class _Steps:
    """Counts what this process does to files of a Guild home, and acts before some of it."""

    home: str = ""
    acts: dict[int, Callable[[], None]] | None = None  # None: nothing is counted
    count: int = 0

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        if self.acts is None or not event.startswith(("open", "os.")):
            return
        if not any(isinstance(arg, (str, os.PathLike)) and str(arg).startswith(self.home) for arg in args):
            return
        acts, number = self.acts, self.count
        self.count += 1
        if number in acts:
            self.acts = None  # what the user does is no step
            acts[number]()
            self.acts = acts


STEPS = _Steps()


@pytest.fixture(scope="module", autouse=True)
def _hook() -> None:
    sys.addaudithook(STEPS)  # for ever, but it does nothing outside of a story


@contextlib.contextmanager
def _acting(home: pathlib.Path, acts: dict[int, Callable[[], None]]) -> Iterator[None]:
    STEPS.home, STEPS.acts, STEPS.count = str(home), acts, 0
    try:
        yield
    finally:
        STEPS.acts = None


@dataclass(frozen=True)
class _World:
    """A Guild home with one staged run, which can be deleted and restored as Guild does it."""

    root: pathlib.Path

    @property
    def run(self) -> pathlib.Path:
        return self.root / "runs" / RUN

    @property
    def trash(self) -> pathlib.Path:
        return pathlib.Path(layout.trash_dir(str(self.root))) / RUN

    def delete(self) -> None:
        self.trash.parent.mkdir(parents=True, exist_ok=True)
        self.run.rename(self.trash)

    def restore(self) -> None:
        if self.trash.exists():
            self.trash.rename(self.run)

    def guild_home(self, process: ProcessIdentity) -> GuildHome:
        return GuildHome(str(self.root), Heartbeat(str(self.root), "me", process))


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run that is staged, as Guild leaves it."""
    run = tmp_path_factory.mktemp("staged") / RUN
    attributes = run / ".guild" / "attrs"
    attributes.mkdir(parents=True)
    for name, text in (("started", "1700000000000000"), ("flags", "lr: 0.1"), ("initialized", "1700000000000000")):
        (attributes / name).write_text(f"{text}\n")
    (run / ".guild" / "opref").write_text("guildfile:/project/guild.yml '' '' op\n")
    (run / ".guild" / "STAGED").touch()
    return run


def _me() -> ProcessIdentity:
    me = processes.identity(os.getpid())
    assert me
    return me


def _story(world: _World, home: GuildHome) -> None:
    """Claims the run, saves its records as a starter does that starts nothing in the end, and settles it."""
    run = next(iter(home.staged().staged), None)
    me = home.heartbeat.process
    if not run or not home.claim([(run, claims.Claim(RUN, "me", me, me))]).taken:
        return
    beside = claims.path(home.claims_folder, RUN)
    with contextlib.suppress(OSError):
        snapshot.save(str(world.run), beside.with_suffix(claims.SAVED))
        if world.run.exists():
            (world.run / ".guild" / "attrs" / "flags").write_text("")  # Guild, interrupted
    with contextlib.suppress(RunUnusable):
        home.settle(RUN, NOT_STARTED)


def _dying_story(world: _World, home: GuildHome) -> None:
    """The same, but the scheduler dies after the claim, and another one recovers the run."""
    me = home.heartbeat.process
    dead = world.guild_home(replace(me, started=me.started - 1))
    run = next(iter(dead.staged().staged), None)
    if run:
        dead.claim([(run, claims.Claim(RUN, "me", dead.heartbeat.process, dead.heartbeat.process))])
    recover(home)


def _steps_of(story: Callable[[_World, GuildHome], None], world: _World, staged: pathlib.Path) -> int:
    shutil.copytree(staged, world.run)
    with _acting(world.root, {}):
        story(world, world.guild_home(_me()))
    assert status(str(world.run)) is Status.STAGED
    return STEPS.count


@pytest.mark.parametrize("story", [_story, _dying_story])
def test_run_that_is_deleted_at_any_step_and_restored_at_any_later_one_is_staged(
    tmp_path: pathlib.Path, staged: pathlib.Path, story: Callable[[_World, GuildHome], None]
) -> None:
    last = _steps_of(story, _World(tmp_path / "first"), staged)
    assert last > 20
    before = {path.name: path.read_text() for path in (staged / ".guild" / "attrs").iterdir()}
    wrong = []
    for deleted in range(last):
        for restored in sorted({*(deleted + 2**n for n in range(7)), last + 100}):
            world = _World(tmp_path / f"{deleted}-{restored}")
            shutil.copytree(staged, world.run)
            home = world.guild_home(_me())
            with _acting(world.root, {deleted: world.delete, restored: world.restore}):
                story(world, home)
            world.restore()
            recover(home)  # the next poll
            attributes = {path.name: path.read_text() for path in (world.run / ".guild" / "attrs").iterdir()}
            left = sorted(path.name for path in home.claims_folder.glob("*"))
            if status(str(world.run)) is not Status.STAGED or attributes != before or left:
                wrong.append((deleted, restored, status(str(world.run)), left, attributes))
            shutil.rmtree(world.root)
    assert not wrong


def test_run_that_is_deleted_for_good_leaves_no_claim(tmp_path: pathlib.Path, staged: pathlib.Path) -> None:
    last = _steps_of(_story, _World(tmp_path / "first"), staged)
    for deleted in range(last):
        world = _World(tmp_path / str(deleted))
        shutil.copytree(staged, world.run)
        home = world.guild_home(_me())
        with _acting(world.root, {deleted: lambda run=world.run: shutil.rmtree(run)}):  # type: ignore[misc]
            _story(world, home)
        assert not list(home.claims_folder.glob("*")), deleted


def test_run_that_was_deleted_while_it_ran_is_neither_pending_nor_running_when_it_is_restored(
    tmp_path: pathlib.Path, staged: pathlib.Path
) -> None:
    world = _World(tmp_path)
    shutil.copytree(staged, world.run)
    home = world.guild_home(_me())
    (run,) = home.staged().staged
    assert home.claim([(run, claims.Claim(RUN, "me", _me(), _me()))]).taken
    assert claims.mark_started(claims.path(home.claims_folder, RUN))
    run_directory.set_marker(str(world.run), layout.REMOTE_LOCK)
    world.delete()
    assert home.settle(RUN, 1).end is End.GONE
    world.restore()
    assert status(str(world.run)) is Status.ERROR
    assert not list(home.claims_folder.glob("*"))


@pytest.mark.parametrize("is_restored", [True, False])
def test_run_that_guild_makes_anew_after_it_was_deleted_does_not_start(
    tmp_path: pathlib.Path, staged: pathlib.Path, is_restored: bool
) -> None:
    # Guild has read the run when the user deletes it, and then makes the folders that are missing.
    world = _World(tmp_path)
    shutil.copytree(staged, world.run)
    home = world.guild_home(_me())
    (run,) = home.staged().staged
    assert home.claim([(run, claims.Claim(RUN, "me", _me(), _me()))]).taken
    operation = Operation(str(world.run), claims.path(home.claims_folder, RUN), StarterOptions())
    operation.identity = _me()
    world.delete()
    if is_restored:
        world.restore()
        operation.begin()
        return
    (world.run / ".guild" / "attrs").mkdir(parents=True)
    (world.run / ".guild" / "PENDING").touch()
    with pytest.raises(SystemExit):
        operation.begin()
    assert home.settle(RUN, NOT_STARTED).end is End.GONE
    assert not world.run.exists()
    world.restore()
    assert status(str(world.run)) is Status.STAGED


def test_guild_restores_a_run_that_was_deleted_while_it_was_claimed_as_staged(user: Sandbox, guild: Guild) -> None:
    a_project(user, "op:\n  exec: echo\n")
    stage(guild, "op", RUN)
    home = GuildHome(str(user.guild_home), Heartbeat(str(user.guild_home), "me", _me()))
    (run,) = home.staged().staged
    assert home.claim([(run, claims.Claim(RUN, "me", _me(), _me()))]).taken
    guild(f"runs rm {RUN} -y")
    assert home.settle(RUN, NOT_STARTED).end is End.GONE
    guild(f"runs restore {RUN} -y")
    assert status(home.run_dir(RUN)) is Status.STAGED
