"""The ways to start staged runs, two at a time, until all have ended."""

import pathlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.homes import Home, Template
from benchmarks.measuring import Command
from benchmarks.sizes import EMPTY, MANY, VERY_MANY

WORKERS = 2

FLOOR = "floor: the operations' own processes"
OURS = "guild-dask"
BUILT_IN = "guildai's built-in scheduler"
QUEUES = "two `guild run queue`"
XARGS = "xargs, `guild run --start`"
PARALLEL = "GNU parallel, `guild run --start`"
HYPERQUEUE = "HyperQueue, `guild run --start`"

HYPERQUEUE_SCRIPT = pathlib.Path(__file__).parent / "scripts" / "hyperqueue_runs.py"

CommandsFor = Callable[[Home, Template, Sequence[pathlib.Path]], list[Command]]


@dataclass(frozen=True)
class Contender:
    """A way to start staged runs."""

    name: str
    environment: str  # the name of its environment
    commands_for: CommandsFor
    homes: frozenset[str]  # the homes that it is measured in


def floor(home: Home, template: Template, run_dirs: Sequence[pathlib.Path], workers: int = WORKERS) -> list[Command]:
    """Returns the lower bound: each run's own command in its directory and environment, without Guild."""
    start = '. "$1/.guild/ENV" && cd "$1" && shift && exec "$@"'
    command = ["xargs", "-P", str(workers), "-I", "{}", "sh", "-c", start, "sh", "{}", *template.command]
    return [Command(command, _lines(run_dirs))]


def a_scheduler(
    home: Home,
    _template: Template,
    _run_dirs: Sequence[pathlib.Path],
    workers: int = WORKERS,
    flags: Sequence[str] = (),
) -> list[Command]:
    """Returns the environment's scheduler: guild-dask, or guildai's built-in one."""
    given = (f"workers={workers}", "run-once=yes", "dashboard-address=no", *flags)
    return [Command([home.environment.guild, "run", "dask:scheduler", *given, "-y"])]


def queues(home: Home, _template: Template, _run_dirs: Sequence[pathlib.Path]) -> list[Command]:
    """Returns Guild's queues, one for each slot."""
    return [Command([home.environment.guild, "run", "queue", "run-once=yes", "-y"])] * WORKERS


def xargs(home: Home, _template: Template, run_dirs: Sequence[pathlib.Path]) -> list[Command]:
    """Returns `guild run --start`, by xargs."""
    command = ["xargs", "-P", str(WORKERS), "-I", "{}", home.environment.guild, "run", "--start", "{}", "-y"]
    return [Command(command, _lines(run_dirs))]


def parallel(home: Home, _template: Template, run_dirs: Sequence[pathlib.Path]) -> list[Command]:
    """Returns `guild run --start`, by GNU parallel."""
    command = ["parallel", "-j", str(WORKERS), home.environment.guild, "run", "--start", "{}", "-y"]
    return [Command(command, _lines(run_dirs))]


def hyperqueue(home: Home, _template: Template, run_dirs: Sequence[pathlib.Path]) -> list[Command]:
    """Returns `guild run --start`, by HyperQueue's Python package."""
    command = [home.environment.python, str(HYPERQUEUE_SCRIPT), str(WORKERS), home.environment.guild]
    return [Command(command, _lines(run_dirs))]


def _lines(run_dirs: Sequence[pathlib.Path]) -> str:
    return "".join(f"{path}\n" for path in run_dirs)


CONTENDERS = (
    Contender(FLOOR, "plugin", floor, frozenset((EMPTY, MANY, VERY_MANY))),
    Contender(OURS, "plugin", a_scheduler, frozenset((EMPTY, MANY, VERY_MANY))),
    Contender(BUILT_IN, "dask", a_scheduler, frozenset((EMPTY, MANY))),
    Contender(QUEUES, "dask", queues, frozenset((EMPTY,))),
    Contender(XARGS, "dask", xargs, frozenset((EMPTY, MANY))),
    Contender(PARALLEL, "dask", parallel, frozenset((EMPTY,))),
    Contender(HYPERQUEUE, "dask", hyperqueue, frozenset((EMPTY,))),
)


# The contenders that are also measured with runs that print a scalar, and their homes.
OF_SCALARS = frozenset((FLOOR, OURS, BUILT_IN, PARALLEL, HYPERQUEUE))
HOMES_OF_SCALARS = frozenset((EMPTY, MANY))


def available(has_hyperqueue: bool) -> list[Contender]:
    """Returns the contenders that are installed on this machine."""
    missing = set()
    if not shutil.which("parallel"):
        missing.add(PARALLEL)
    if not has_hyperqueue:
        missing.add(HYPERQUEUE)
    return [contender for contender in CONTENDERS if contender.name not in missing]
