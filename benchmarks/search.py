"""How quickly searches find good flags, what a trial costs beside its own time, and what early stopping saves.

Branin and Hartmann6 are functions with known minima. Each trial takes a fixed time, so that what is compared is how
many trials run at the same time, how well they are chosen, and what each costs. Contenders take turns, seed by seed.
"""

import pathlib
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import click

from benchmarks.homes import Home
from benchmarks.measuring import PATIENCE
from benchmarks.sizes import Sizes

SCRIPTS = pathlib.Path(__file__).parent / "scripts"

TPE = "dask:tpe"
GP = "Guild's gp, one at a time"
RANDOM = "Guild's random, one at a time"
BARE = "Optuna with bare processes"

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

_BRANIN = """\
x, y = given["x"], given["y"]
value = (y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6) ** 2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10
print("loss:", value)
"""

_HARTMANN = """\
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
    """The traces by problem and contender, one for each seed; the many trials; and early stopping."""

    traces: dict[str, dict[str, list[Trace]]]
    slots: int
    seconds: float  # that a trial takes
    count: int  # trials of the contenders that run one at a time
    many: dict[str, list[float]]  # seconds from command to end of many trials, by contender
    many_count: int
    stopping: dict[str, dict[str, float]]  # steps in all, and the best error, by rule

    def as_data(self) -> dict[str, object]:
        medians = {
            problem: {name: statistics.median(best(trace) for trace in found) for name, found in traces.items()}
            for problem, traces in self.traces.items()
        }
        return {**asdict(self), "medians": medians, "gain": {each.operation: self._gain(each) for each in PROBLEMS}}

    def _gain(self, problem: Problem) -> float:
        """Returns how many times sooner ours reaches the best value of Guild's gp, as a median over seeds."""
        traces = self.traces[problem.operation]
        pairs = zip(traces[TPE], traces[GP], strict=True)
        gains = [reached(theirs, best(theirs)) / reached(ours, best(theirs)) for ours, theirs in pairs]
        return statistics.median(gains)


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
    (folder / "branin.py").write_text(_HEAD.replace("NAMES", names["branin"]) + _BRANIN)
    (folder / "hartmann.py").write_text(_HEAD.replace("NAMES", names["hartmann"]) + _HARTMANN)
    (folder / "digits.py").write_text(_DIGITS)
    return folder


def measure(home: Home, sizes: Sizes) -> Searches:
    """Returns all figures; the home's project has the operations to search."""
    contenders: dict[str, Callable[[Problem, int, int], tuple[float, Trace]]] = {
        TPE: lambda problem, seed, count: _by_guild(home, problem, seed, count, sizes, TPE, sizes.search_slots),
        GP: lambda problem, seed, count: _by_guild(home, problem, seed, count, sizes, "gp", None),
        RANDOM: lambda problem, seed, count: _by_guild(home, problem, seed, count, sizes, "random", None),
        BARE: lambda problem, seed, count: _by_optuna(home, problem, seed, count, sizes),
    }
    traces: dict[str, dict[str, list[Trace]]] = {
        problem.operation: {name: [] for name in contenders} for problem in PROBLEMS
    }
    for seed in range(1, sizes.search_seeds + 1):
        for problem in PROBLEMS:
            for name, search in contenders.items():
                is_parallel = name in (TPE, BARE)
                _, trace = search(problem, seed, sizes.search_more if is_parallel else sizes.search_trials)
                traces[problem.operation][name].append(trace)
                click.echo(f"seed {seed}: {problem.operation}, {name}, best {best(trace):.4g}", err=True)
    many: dict[str, list[float]] = {TPE: [], BARE: []}
    for seed in range(1, sizes.trial_rounds + 1):
        for name, walls in many.items():
            walls.append(contenders[name](PROBLEMS[0], seed, sizes.search_many)[0])
    stopping = {rule: _stopping(home, rule, sizes) for rule in ("never", "asha")}
    return Searches(
        traces, sizes.search_slots, sizes.search_seconds, sizes.search_trials, many, sizes.search_many, stopping
    )


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
        is_trial = (run_dir / ".guild" / "opref").read_text().split()[-1].strip("'\"") == operation
        values = _values(run_dir, scalar)
        if is_trial and values and (attributes / "stopped").exists():
            found.append((int((attributes / "stopped").read_text()) / 1e6 - began, values[-1]))
    if not found:
        raise click.ClickException(f"no trial of {operation} has printed {scalar}")
    return sorted(found)


def _values(run_dir: pathlib.Path, scalar: str) -> list[float]:
    output = run_dir / ".guild" / "output"
    lines = output.read_text(errors="replace").splitlines() if output.exists() else []
    return [float(line.partition(":")[2]) for line in lines if line.startswith(f"{scalar}:")]


def _by_optuna(home: Home, problem: Problem, seed: int, count: int, sizes: Sizes) -> tuple[float, Trace]:
    spaces = [f"{name}={low}:{high}" for name, (low, high) in problem.ranges.items()]
    script = home.project / f"{problem.operation}.py"
    numbers = map(str, (sizes.search_slots, count, seed, sizes.search_seconds))
    command: Sequence[str] = (
        home.environment.python,
        str(SCRIPTS / "optuna_processes.py"),
        str(script),
        *numbers,
        *spaces,
    )
    begun = time.monotonic()
    output = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=home.variables, timeout=PATIENCE
    ).stdout
    wall = time.monotonic() - begun
    pairs = [line.split() for line in output.splitlines()]
    return wall, sorted((float(at), float(value)) for at, value in pairs)


def _stopping(home: Home, rule: str, sizes: Sizes) -> dict[str, float]:
    """Returns how many epochs all trials trained, and the best error."""
    flags = ["alpha=loguniform[1e-6:1e-1]", "eta=loguniform[1e-4:1.0]", f"epochs={sizes.search_epochs}"]
    options = ["--optimizer", "dask:random", "--minimize", "error", "--max-trials", str(sizes.search_stopped)]
    options += ["--random-seed", "1", "-Fo", f"stop-early={rule}", *_scheduler(sizes.search_slots)]
    _, began = _search(home, "digits", *flags, *options)
    steps = sum(len(_values(run_dir, "error")) for run_dir in home.runs.iterdir())
    return {"steps": steps, "error": best(_trace(home, "digits", "error", began))}
