"""What runs cost that import scikit-learn and pandas: each in a process of its own, forked from one that has them.

They are compared with their own processes, and with pools that call the same function in reused processes, without a
process or a record for each call.
"""

import functools
import pathlib
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import click

from benchmarks import contenders, throughput
from benchmarks.contenders import FLOOR, OURS, WORKERS, Contender
from benchmarks.environments import Environment
from benchmarks.homes import Home, Template
from benchmarks.measuring import Command, Cost, cost_of
from benchmarks.sizes import EMPTY, Sizes
from benchmarks.throughput import Throughput

SCRIPTS = pathlib.Path(__file__).parent / "scripts"

LOKY = "joblib's loky pool"
RAY = "Ray Tune, reused workers"

# What the operation `trial` imports, and what the pools are made of.
IMPORTED = ("scikit-learn", "pandas")
POOLS: Mapping[str, tuple[str, str]] = {LOKY: ("joblib", "joblib_trials.py"), RAY: ("ray[tune]", "ray_trials.py")}

PRELOAD = "preload=pandas,sklearn.ensemble,sklearn.datasets,sklearn.model_selection"

# Operations whose function takes some milliseconds, and half a second.
SMALL, LARGER = "trial", "training"


@dataclass(frozen=True)
class Trials:
    """The costs of runs, and of the same number of calls in pools."""

    one_more: list[Throughput]
    totals: list["Totals"]

    def as_data(self) -> dict[str, object]:
        one_more, totals = ([entry.as_data() for entry in each] for each in (self.one_more, self.totals))
        return {"one_more": one_more, "totals": totals}


@dataclass(frozen=True)
class Totals:
    """What so many runs of an operation, or calls of its function, cost from the command to the end, by contender."""

    operation: str
    count: int
    costs: dict[str, list[Cost]]

    def as_data(self) -> dict[str, object]:
        medians = {name: statistics.median(cost.wall for cost in costs) for name, costs in self.costs.items() if costs}
        return {**asdict(self), "medians": medians}


def install(environment: Environment, *packages: str) -> bool:
    """Returns whether pip could install packages."""
    try:
        environment.pip("install", "--quiet", *packages)
    except subprocess.CalledProcessError:
        click.echo(f"{', '.join(packages)} cannot be installed, and is left out", err=True)
        return False
    return True


def measure(ours: Home, others: Environment, templates: Mapping[str, Template], sizes: Sizes) -> Trials:
    """Returns the costs, given a template of each operation; the contenders are measured in turn."""
    a_scheduler = functools.partial(contenders.a_scheduler, flags=(PRELOAD,))
    compared = [
        Contender(FLOOR, "plugin", contenders.floor, frozenset((EMPTY,))),
        Contender(OURS, "plugin", a_scheduler, frozenset((EMPTY,))),
    ]
    few, more = sizes.trials_of_own
    own_sizes = replace(sizes, few=few, more=more)
    one_more = throughput.measure(compared, {("plugin", EMPTY): ours}, {"plugin": templates[SMALL]}, own_sizes)
    pools = {name: script for name, (package, script) in POOLS.items() if install(others, package, *IMPORTED)}
    totals = []
    for operation, count in ((SMALL, sizes.trials), (LARGER, sizes.trainings)):
        calls: dict[str, Callable[[], Cost]] = {
            OURS: functools.partial(throughput.once, compared[1], ours, templates[operation], count)
        }
        for name, script in pools.items():
            calls[name] = functools.partial(_cost_of_pool, ours, others, script, count, operation)
        totals.append(Totals(operation, count, _costs_of(calls, f"{count} of {operation}", sizes.trial_rounds)))
    return Trials(one_more, totals)


def _costs_of(calls: Mapping[str, Callable[[], Cost]], what: str, rounds: int) -> dict[str, list[Cost]]:
    found: dict[str, list[Cost]] = {name: [] for name in calls}
    for number in range(rounds):
        for name, call in calls.items():
            cost = call()
            found[name].append(cost)
            click.echo(f"round {number + 1}: {name}, {what}, wall {cost.wall:.2f} s, CPU {cost.cpu:.2f} s", err=True)
    return found


def _cost_of_pool(home: Home, environment: Environment, script: str, count: int, operation: str) -> Cost:
    words: Sequence[str] = (
        environment.python, str(SCRIPTS / script), str(home.project), str(WORKERS), str(count), operation,
    )  # fmt: skip
    return cost_of([Command(words)], home)
