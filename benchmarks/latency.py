"""How long a run waits for its scheduler: after it was staged, and after the run that held its place has ended."""

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

# How many runs one worker starts one after the other before it is xargs' turn.
IN_A_ROW = 6


@dataclass(frozen=True)
class Latencies:
    """Seconds, sample by sample. All are up to the first instruction of a run."""

    own: list[float]  # from the start of the run's own process
    start: list[float]  # from `guild run --start`
    staged: list[float]  # from staging, with our scheduler idle
    staged_built_in: list[float]  # the same with guildai's built-in scheduler
    next_own: list[float]  # from the last instruction of the run before, started by xargs one after the other
    next: list[float]  # the same with our scheduler and one worker

    @property
    def beyond(self) -> float:
        """Returns what a run waits after staging, beyond what its own process takes to start."""
        return statistics.median(self.staged) - statistics.median(self.own)

    @property
    def next_beyond(self) -> float:
        """Returns what a run waits after the end of another one, beyond what both processes take themselves."""
        return statistics.median(self.next) - statistics.median(self.next_own)

    def as_data(self) -> dict[str, object]:
        return {**asdict(self), "beyond": self.beyond, "next_beyond": self.next_beyond}


def measure(ours: Home, built_in: Home, templates: Mapping[str, Template], sizes: Sizes) -> Latencies:
    """Returns the latencies. What is compared is measured in turns, while the scheduler waits."""
    own, start, staged = _after_staging(ours, templates["plugin"], sizes.latencies)
    slow = _built_in(built_in, templates["dask"], sizes.built_in_latencies)
    next_own, following = _after_another(ours, templates["plugin"], sizes.latencies)
    return Latencies(own, start, staged, slow, next_own, following)


def _after_staging(home: Home, template: Template, samples: int) -> tuple[list[float], list[float], list[float]]:
    own: list[float] = []
    start: list[float] = []
    staged: list[float] = []
    # In a home of their own, where no scheduler takes them.
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
    # Ended for the scheduler, too: the next one finds it idle.
    wait_until((run_dir / ".guild" / "attrs" / "exit_status").exists, "the exit status of a run")
    time.sleep(0.2)
    return home.began(run_dir) - since


def _built_in(home: Home, template: Template, samples: int) -> list[float]:
    taken = []
    with scheduler(home) as it:
        wait_until(lambda: it.has_said(WAITING), WAITING)
        for number in range(samples):
            time.sleep(random.uniform(0, 10))  # at any time between two of its polls
            taken.append(_staged(home, template))
            click.echo(f"built-in scheduler, run {number + 1}: started after {taken[-1]:.1f} s", err=True)
    home.clear()
    return taken


def _after_another(home: Home, template: Template, samples: int) -> tuple[list[float], list[float]]:
    """Returns the gaps between runs that are started one after the other: by xargs, and in turns by our scheduler."""
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
