"""How long a mixed set of runs that share resources takes, from the first start to the last end.

The same runs, in the same order, are started by guild-dask, by plain Dask (all tasks submitted at once with
`resources=`, each task the run's own process), and by guildai's built-in scheduler.
"""

import pathlib
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import click

from benchmarks.contenders import BUILT_IN, OURS
from benchmarks.homes import Home, Template, make_template
from benchmarks.measuring import Command, cost_of
from benchmarks.sizes import Sizes

PLAIN_DASK = "plain Dask resources"
PLAIN_DASK_SCRIPT = pathlib.Path(__file__).parent / "scripts" / "dask_runs.py"

SLOTS = 4
CAPACITY = {"gpu": 2.0, "mem": 8.0}

# What runs request, and how many of ten request it.
KINDS: tuple[tuple[Mapping[str, float], int], ...] = (
    ({"gpu": 1.0, "mem": 1.0}, 3),
    ({"gpu": 2.0, "mem": 2.0}, 2),
    ({"mem": 4.0}, 2),
    ({"mem": 1.0}, 3),
)


@dataclass(frozen=True)
class Item:
    """A run: its kind, and how long it sleeps."""

    kind: int
    seconds: float


@dataclass(frozen=True)
class Makespans:
    """Seconds, round by round."""

    items: list[Item]
    lower_bound: float
    taken: dict[str, list[float]]

    def over_bound(self, name: str) -> float:
        """Returns the time of one contender over the lower bound."""
        return statistics.median(self.taken[name]) / self.lower_bound

    def as_data(self) -> dict[str, object]:
        return {**asdict(self), "over_bound": {name: self.over_bound(name) for name in self.taken}}


def workload(count: int, longest: float, seed: int = 4) -> list[Item]:
    """Returns a random set of runs; the same seed gives the same one."""
    draw = random.Random(seed)
    kinds = [number for number, (_, share) in enumerate(KINDS) for _ in range(share)]
    return [Item(draw.choice(kinds), round(draw.uniform(longest / 5, longest), 2)) for _ in range(count)]


def lower_bound(items: Sequence[Item]) -> float:
    """Returns the lower bound in seconds: the longest run, all slots busy, or one resource fully used."""
    bounds = [max(item.seconds for item in items), sum(item.seconds for item in items) / SLOTS]
    for name, amount in CAPACITY.items():
        bounds.append(sum(item.seconds * KINDS[item.kind][0].get(name, 0.0) for item in items) / amount)
    return max(bounds)


def measure(ours: Home, others: Home, sizes: Sizes) -> Makespans:
    """Returns the time of each contender, measured alternately."""
    items = workload(sizes.mixed, sizes.mixed_longest)
    contenders = ((OURS, ours), (PLAIN_DASK, others), (BUILT_IN, others))
    templates = {home.folder: _templates(home) for home in (ours, others)}
    taken: dict[str, list[float]] = {name: [] for name, _ in contenders}
    for number in range(sizes.mixed_rounds):
        for name, home in contenders:
            seconds = _once(name, home, templates[home.folder], items)
            taken[name].append(seconds)
            click.echo(f"round {number + 1}: {name}, {len(items)} mixed runs, {seconds:.1f} s", err=True)
    return Makespans(items, lower_bound(items), taken)


def _templates(home: Home) -> list[Template]:
    return [make_template(home, "stamped", "--tag", f"dask:{_text(requests)}") for requests, _ in KINDS]


def _text(amounts: Mapping[str, float]) -> str:
    return " ".join(f"{name}={amount:g}" for name, amount in amounts.items())


def _once(name: str, home: Home, templates: Sequence[Template], items: Sequence[Item]) -> float:
    run_dirs = [home.stage(templates[item.kind], item.seconds) for item in items]
    cost_of([_plain_dask(home, items, run_dirs) if name == PLAIN_DASK else _scheduler(home)], home)
    begun = min(float((path / "begun").read_text()) for path in run_dirs)
    ended = max(float((path / "ended").read_text()) for path in run_dirs)
    home.clear()
    return ended - begun


def _scheduler(home: Home) -> Command:
    flags = (f"workers={SLOTS}", f"resources={_text(CAPACITY)}", "run-once=yes", "dashboard-address=no")
    return Command([home.environment.guild, "run", "dask:scheduler", *flags, "-y"])


def _plain_dask(home: Home, items: Sequence[Item], run_dirs: Sequence[pathlib.Path]) -> Command:
    """Returns the script, which reads a line for each run: its request, its directory and its command."""
    lines = []
    for item, path in zip(items, run_dirs, strict=True):
        command = (path / ".guild" / "attrs" / "cmd").read_bytes()
        arguments = Template("", {".guild/attrs/cmd": command}).command
        lines.append("\t".join((_text(KINDS[item.kind][0]), str(path), *arguments)) + "\n")
    script = [home.environment.python, str(PLAIN_DASK_SCRIPT), str(SLOTS), _text(CAPACITY)]
    return Command(script, "".join(lines))
