"""How long a run waits for its scheduler: after it was staged, and after the previous run in its slot has ended."""

import pathlib
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import click

from benchmarks import contenders
from benchmarks.homes import Home, Template
from benchmarks.measuring import WAITING, Command, cost_of, scheduler, wait_until
from benchmarks.sizes import Sizes

# How many runs one slot runs one after the other, alternately with xargs.
IN_A_ROW = 6


@dataclass(frozen=True)
class Latencies:
    """Seconds up to the first instruction of a run, sample by sample."""

    own: list[float]  # from the start of the run's own process
    start: list[float]  # from `guild run --start`
    staged: list[float]  # from staging, with an idle guild-dask scheduler
    staged_built_in: list[float]  # the same with guildai's built-in scheduler
    next_own: list[float]  # from the last instruction of the previous run, both started by xargs
    next: list[float]  # the same with guild-dask and one slot

    @property
    def beyond(self) -> float:
        """Returns how long a run waits after staging, without the start of its own process."""
        return statistics.median(self.staged) - statistics.median(self.own)

    @property
    def next_beyond(self) -> float:
        """Returns how long a run waits after the end of another one, without the time of both processes."""
        return statistics.median(self.next) - statistics.median(self.next_own)

    def as_data(self) -> dict[str, object]:
        return {**asdict(self), "beyond": self.beyond, "next_beyond": self.next_beyond}


def measure(ours: Home, built_in: Home, templates: Mapping[str, Template], sizes: Sizes) -> Latencies:
    """Returns the latencies. Things that are compared are measured alternately, while the scheduler is idle."""
    own, start, staged = _after_staging(ours, templates["plugin"], sizes.latencies)
    slow = _built_in(built_in, templates["dask"], sizes.built_in_latencies)
    next_own, following = _after_another(ours, templates["plugin"], sizes.latencies)
    return Latencies(own, start, staged, slow, next_own, following)


def _after_staging(home: Home, template: Template, samples: int) -> tuple[list[float], list[float], list[float]]:
    own: list[float] = []
    start: list[float] = []
    staged: list[float] = []
    # In a home of their own, without a scheduler.
    apart = Home(home.environment, home.folder.with_name("apart"), home.project, 0, frozenset())
    apart.runs.mkdir(parents=True, exist_ok=True)
    with scheduler(home) as ours:
        wait_until(lambda: ours.has_said(WAITING), WAITING)
        for _ in range(samples):
            run_dir = apart.stage(template)
            own.append(_started_by(contenders.floor(apart, template, [run_dir]), apart, run_dir))
            run_dir = apart.stage(template)
            start.append(_started_by(contenders.xargs(apart, template, [run_dir]), apart, run_dir))
            staged.append(_staged(home, template))
    home.clear()
    apart.clear()
    return own, start, staged


def _started_by(commands: list[Command], home: Home, run_dir: pathlib.Path) -> float:
    begun = time.time()
    cost_of(commands, home)
    return home.began(run_dir) - begun


def _staged(home: Home, template: Template) -> float:
    run_dir = home.stage(template)
    since = time.time()
    wait_until((run_dir / "ended").exists, "the end of a run")
    # Wait until the scheduler has settled it, so that the next run finds it idle.
    wait_until((run_dir / ".guild" / "attrs" / "exit_status").exists, "the exit status of a run")
    time.sleep(0.2)
    return home.began(run_dir) - since


def _built_in(home: Home, template: Template, samples: int) -> list[float]:
    taken = []
    with scheduler(home) as it:
        wait_until(lambda: it.has_said(WAITING), WAITING)
        for number in range(samples):
            time.sleep(random.uniform(0, 10))  # at a random time between two polls
            taken.append(_staged(home, template))
            click.echo(f"built-in scheduler, run {number + 1}: started after {taken[-1]:.1f} s", err=True)
    home.clear()
    return taken


def _after_another(home: Home, template: Template, samples: int) -> tuple[list[float], list[float]]:
    """Returns the gaps between consecutive runs, alternately by xargs and by guild-dask."""
    own: list[float] = []
    following: list[float] = []
    while len(own) < samples:
        run_dirs = home.staged(template, IN_A_ROW)
        cost_of(contenders.floor(home, template, run_dirs, workers=1), home)
        own += _gaps(run_dirs)
        home.clear()
        run_dirs = home.staged(template, IN_A_ROW)
        cost_of(contenders.a_scheduler(home, template, run_dirs, workers=1), home)
        following += _gaps(run_dirs)
        home.clear()
    return own, following


def _gaps(run_dirs: Sequence[pathlib.Path]) -> list[float]:
    begun = sorted(float((path / "begun").read_text()) for path in run_dirs)
    ended = sorted(float((path / "ended").read_text()) for path in run_dirs)
    return [begin - end for begin, end in zip(begun[1:], ended, strict=False)]
