"""How quickly searches find good flags, what a trial costs beside its own time, and what early stopping saves.

Branin and Hartmann6 are functions with known minima. Each trial takes a fixed time, so that what is compared is how
many trials run at the same time, how well they are chosen, and what each costs. Contenders take turns, seed by seed.
"""

import pathlib
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import click

from benchmarks.environments import PROJECT, Environment
from benchmarks.homes import Home
from benchmarks.measuring import PATIENCE
from benchmarks.sizes import Sizes

SCRIPTS = pathlib.Path(__file__).parent / "scripts"

TPE = "dask:tpe"
GP = "Guild's gp, one at a time"
RANDOM = "Guild's random, one at a time"
BARE = "Optuna with bare processes"
DASK = "Optuna with DaskStorage, bare processes"
RAY = "Ray Tune with Optuna, bare processes"

# Contenders in environments of their own: the script, and the packages that it needs.
OTHERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    DASK: ("optuna_dask.py", ("optuna>=5,<6", "optuna-integration[dask]", "distributed")),
    RAY: ("ray_search.py", ("ray[tune]", "optuna")),
}

GUILD_FILE = """\
branin: {main: branin, flags-import: no, flags: {x: 0.0, y: 0.0, seconds: 1.0}}
hartmann: {main: hartmann, flags-import: no, flags: {a: 0.5, b: 0.5, c: 0.5, d: 0.5, e: 0.5, f: 0.5, seconds: 1.0}}
digits: {main: digits, flags-import: no, flags: {alpha: 0.0001, eta: 0.1, epochs: 27}}
"""

_HEAD = """\
import argparse, math, time
parser = argparse.ArgumentParser()
for name in NAMES: parser.add_argument("--" + name, type=float)
given = vars(parser.parse_args())
time.sleep(given.pop("seconds"))
"""

BRANIN = """\
x, y = given["x"], given["y"]
value = (y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6) ** 2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10
print("loss:", value)
"""

HARTMANN = """\
A = [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
P = [[1312, 1696, 5569, 124, 8283, 5886], [2329, 4135, 8307, 3736, 1004, 9991], [2348, 1451, 3522, 2883, 3047, 6650],
     [4047, 8828, 8732, 5743, 1091, 381]]
point = [given[name] for name in "abcdef"]
distances = [sum(a * (x - p / 1e4) ** 2 for a, x, p in zip(row, point, other)) for row, other in zip(A, P)]
print("loss:", -sum(w * math.exp(-d) for w, d in zip([1.0, 1.2, 3.0, 3.2], distances)))
"""

# Real training, with one value for each epoch.
_DIGITS = """\
import argparse
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split
parser = argparse.ArgumentParser()
for name in ("alpha", "eta", "epochs"): parser.add_argument("--" + name, type=float)
given = parser.parse_args()
data = load_digits()
train, test, labels, expected = train_test_split(data.data / 16, data.target, test_size=0.3, random_state=0)
model = SGDClassifier(alpha=given.alpha, eta0=given.eta, learning_rate="constant", random_state=0)
for epoch in range(1, int(given.epochs) + 1):
    model.partial_fit(train, labels, classes=range(10))
    print("step:", epoch, flush=True)
    print("error:", 1 - model.score(test, expected), flush=True)
"""


@dataclass(frozen=True)
class Problem:
    """A function to minimize: its operation, and the range of each flag."""

    operation: str
    ranges: Mapping[str, tuple[float, float]]


PROBLEMS = (
    Problem("branin", {"x": (-5.0, 10.0), "y": (0.0, 15.0)}),
    Problem("hartmann", dict.fromkeys("abcdef", (0.0, 1.0))),
)

# A trace: when trials ended, in seconds since the command, and their values.
Trace = list[tuple[float, float]]


@dataclass(frozen=True)
class Searches:
    """The traces by problem and contender, one for each seed."""

    traces: dict[str, dict[str, list[Trace]]]
    slots: int
    seconds: float  # that a trial takes
    count: int  # trials of the contenders that run one at a time

    def as_data(self) -> dict[str, object]:
        medians = {
            problem: {name: statistics.median(best(trace) for trace in found) for name, found in traces.items()}
            for problem, traces in self.traces.items()
        }
        sooner = {problem: self._sooner(traces) for problem, traces in self.traces.items()}
        return {**asdict(self), "medians": medians, "sooner": sooner}

    def _sooner(self, traces: Mapping[str, list[Trace]]) -> dict[str, float]:
        """Returns how many times sooner than Guild's gp each contender reaches its best value, as a median over seeds.

        A contender that does not reach it counts as infinitely late.
        """
        return {
            name: statistics.median(
                reached(gp, best(gp)) / reached(trace, best(gp)) for trace, gp in zip(found, traces[GP], strict=True)
            )
            for name, found in traces.items()
        }


@dataclass(frozen=True)
class Overhead:
    """How long many trials take from the command to the end, by contender."""

    walls: dict[str, list[float]]
    last_ends: dict[str, list[float]]  # until the last trial has ended; then, ours writes a report
    count: int
    slots: int
    seconds: float  # that a trial takes

    def as_data(self) -> dict[str, object]:
        return asdict(self)


def best(trace: Trace) -> float:
    """Returns the lowest value."""
    return min(value for _, value in trace)


def reached(trace: Trace, value: float) -> float:
    """Returns when a trace reached a value; infinity if it did not."""
    return min((at for at, found in trace if found <= value), default=float("inf"))


def make_search_project(folder: pathlib.Path) -> pathlib.Path:
    """Returns a Guild project with the operations to search."""
    folder.mkdir(parents=True)
    (folder / "guild.yml").write_text(GUILD_FILE)
    names = {"branin": '["x", "y", "seconds"]', "hartmann": '[*"abcdef", "seconds"]'}
    (folder / "branin.py").write_text(_HEAD.replace("NAMES", names["branin"]) + BRANIN)
    (folder / "hartmann.py").write_text(_HEAD.replace("NAMES", names["hartmann"]) + HARTMANN)
    (folder / "digits.py").write_text(_DIGITS)
    return folder


Contender = Callable[[Problem, int, int], tuple[float, Trace]]


def parallel_contenders(home: Home, others: Mapping[str, Environment], sizes: Sizes) -> dict[str, Contender]:
    """Returns the contenders that run several trials at a time; `others` are the environments of those that have one.

    Each is called with a problem, a seed and a number of trials.
    """

    def by_script(environment: Environment, script: str) -> Contender:
        return lambda problem, seed, count: _by_script(home, environment, script, problem, seed, count, sizes)

    return {
        TPE: lambda problem, seed, count: _by_guild(home, problem, seed, count, sizes, TPE, sizes.search_slots),
        BARE: by_script(home.environment, "optuna_processes.py"),
        **{name: by_script(environment, OTHERS[name][0]) for name, environment in others.items()},
    }


def measure(home: Home, others: Mapping[str, Environment], sizes: Sizes) -> Iterator[Searches]:
    """Yields how good the trials are, over time, after each seed; the home's project has the operations to search."""
    parallel = parallel_contenders(home, others, sizes)
    one_at_a_time: dict[str, Contender] = {
        GP: lambda problem, seed, count: _by_guild(home, problem, seed, count, sizes, "gp", None),
        RANDOM: lambda problem, seed, count: _by_guild(home, problem, seed, count, sizes, "random", None),
    }
    everyone = {**parallel, **one_at_a_time}
    traces: dict[str, dict[str, list[Trace]]] = {
        problem.operation: {name: [] for name in everyone} for problem in PROBLEMS
    }
    for seed in range(1, sizes.search_seeds + 1):
        for problem in PROBLEMS:
            for name, search in everyone.items():
                _, trace = search(problem, seed, sizes.search_more if name in parallel else sizes.search_trials)
                traces[problem.operation][name].append(trace)
                click.echo(f"seed {seed}: {problem.operation}, {name}, best {best(trace):.4g}", err=True)
        yield Searches(traces, sizes.search_slots, sizes.search_seconds, sizes.search_trials)


def measure_overhead(home: Home, others: Mapping[str, Environment], sizes: Sizes) -> Overhead:
    """Returns how long many trials take."""
    parallel = parallel_contenders(home, others, sizes)
    walls: dict[str, list[float]] = {name: [] for name in parallel}
    last_ends: dict[str, list[float]] = {name: [] for name in parallel}
    for seed in range(1, sizes.trial_rounds + 1):
        for name, search in parallel.items():
            wall, trace = search(PROBLEMS[0], seed, sizes.search_many)
            walls[name].append(wall)
            last_ends[name].append(max(at for at, _ in trace))
            click.echo(f"round {seed}: {sizes.search_many} trials, {name}, {wall:.1f} s", err=True)
    return Overhead(walls, last_ends, sizes.search_many, sizes.search_slots, sizes.search_seconds)


def measure_stopping(home: Home, sizes: Sizes) -> dict[str, list[dict[str, float]]]:
    """Returns how many epochs all trials trained, and the best error, by rule and seed."""
    found: dict[str, list[dict[str, float]]] = {"never": [], "asha": []}
    for seed in range(1, sizes.stopping_seeds + 1):
        for rule, results in found.items():
            results.append(_stopping(home, rule, seed, sizes))
            click.echo(f"seed {seed}: {rule}, {results[-1]}", err=True)
    return found


def _by_guild(  # noqa: PLR0913, PLR0917  # all that makes a search
    home: Home, problem: Problem, seed: int, count: int, sizes: Sizes, optimizer: str, slots: int | None
) -> tuple[float, Trace]:
    flags = [f"{name}=[{low}:{high}]" for name, (low, high) in problem.ranges.items()]
    options = ["--optimizer", optimizer, "--minimize", "loss", "--max-trials", str(count), "--random-seed", str(seed)]
    options += [] if slots is None else _scheduler(slots)
    wall, began = _search(home, problem.operation, *flags, f"seconds={sizes.search_seconds}", *options)
    return wall, _trace(home, problem.operation, "loss", began)


def _scheduler(slots: int) -> list[str]:
    return ["-Fo", f"workers={slots}", "-Fo", "dashboard-address=no"]


def _search(home: Home, *words: str) -> tuple[float, float]:
    """Runs a search in an empty home; returns how long it took, and when it began."""
    home.clear()
    began, begun = time.time(), time.monotonic()
    home.guild("run", *words, "-y")
    return time.monotonic() - begun, began


def _trace(home: Home, operation: str, scalar: str, began: float) -> Trace:
    """Returns when each completed trial ended, and the last value that it printed."""
    found: Trace = []
    for run_dir in home.runs.iterdir():
        attributes = run_dir / ".guild" / "attrs"
        has_completed = _exit_status(attributes) == 0  # one that was ended early has no result
        values = _values(run_dir, scalar)
        if _is_trial(run_dir, operation) and has_completed and values:
            found.append((int((attributes / "stopped").read_text()) / 1e6 - began, values[-1]))
    if not found:
        raise click.ClickException(f"no trial of {operation} has printed {scalar}")
    return sorted(found)


def _is_trial(run_dir: pathlib.Path, operation: str) -> bool:
    return (run_dir / ".guild" / "opref").read_text().split()[-1].strip("'\"") == operation


def _exit_status(attributes: pathlib.Path) -> int | None:
    file = attributes / "exit_status"
    return int(file.read_text()) if file.exists() else None


def _values(run_dir: pathlib.Path, scalar: str) -> list[float]:
    output = run_dir / ".guild" / "output"
    lines = output.read_text(errors="replace").splitlines() if output.exists() else []
    printed = (line.partition(":")[2].strip() for line in lines if line.startswith(f"{scalar}:"))
    return [float(text) for text in printed if text]  # the last line of a run that was ended may be cut short


def _by_script(  # noqa: PLR0913, PLR0917  # all that makes a search
    home: Home, environment: Environment, script: str, problem: Problem, seed: int, count: int, sizes: Sizes
) -> tuple[float, Trace]:
    spaces = [f"{name}={low}:{high}" for name, (low, high) in problem.ranges.items()]
    numbers = map(str, (sizes.search_slots, count, seed, sizes.search_seconds))
    searched = home.project / f"{problem.operation}.py"
    command: Sequence[str] = (environment.python, str(SCRIPTS / script), str(searched), *numbers, *spaces)
    variables = {**environment.variables, "PYTHONPATH": str(PROJECT)}
    begun = time.monotonic()
    # Ray reports to standard error what nobody needs to know.
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=variables, timeout=PATIENCE)
    wall = time.monotonic() - begun
    if done.returncode:
        raise click.ClickException(f"{script} failed:\n{done.stderr}")
    pairs = [line.split() for line in done.stdout.splitlines()]
    return wall, sorted((float(at), float(value)) for at, value in pairs)


def _stopping(home: Home, rule: str, seed: int, sizes: Sizes) -> dict[str, float]:
    """Returns how many epochs all trials trained, and the best error."""
    flags = ["alpha=loguniform[1e-6:1e-1]", "eta=loguniform[1e-4:1.0]", f"epochs={sizes.search_epochs}"]
    options = ["--optimizer", "dask:random", "--minimize", "error", "--max-trials", str(sizes.search_stopped)]
    options += ["--random-seed", str(seed), "-Fo", f"stop-early={rule}", *_scheduler(sizes.search_slots)]
    _, began = _search(home, "digits", *flags, *options)
    # The search's own output has that of its trials, too.
    steps = sum(len(_values(run_dir, "error")) for run_dir in home.runs.iterdir() if _is_trial(run_dir, "digits"))
    return {"steps": steps, "error": best(_trace(home, "digits", "error", began))}
