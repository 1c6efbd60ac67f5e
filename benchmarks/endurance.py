"""How a scheduler's memory grows with the runs that it has started, and what it costs while idle.

    python -m benchmarks.endurance --results RESULTS

starts one scheduler, stages run after run, and records the scheduler's memory; then leaves it idle. The slope is that
of a straight line through the second half of the samples, because every Python process grows at first.
"""

import json
import pathlib
import shutil
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Any

import click

from benchmarks.contenders import WORKERS
from benchmarks.environments import plugin_environment
from benchmarks.homes import Home, Template, make_home, make_project, make_template
from benchmarks.measuring import WAITING, Scheduler, scheduler, wait_until


@dataclass(frozen=True)
class Note:
    """The scheduler's memory in megabytes, and its own CPU seconds, after a number of runs."""

    runs: int
    memory: float
    cpu: float


@dataclass(frozen=True)
class Endurance:
    """The samples, and what the scheduler cost while idle."""

    notes: list[Note]
    idle_minutes: float
    idle_percent: float
    idle_growth: float  # megabytes

    @property
    def slope(self) -> float:
        """Returns the kilobytes by which the scheduler grows with each run, in the second half."""
        half = self.notes[len(self.notes) // 2 :]
        if len(half) < 2:
            return 0.0
        return 1000 * statistics.linear_regression([n.runs for n in half], [n.memory for n in half]).slope

    def as_data(self) -> dict[str, object]:
        return {**asdict(self), "slope": self.slope}


@dataclass(frozen=True)
class Length:
    """The number of runs, the interval between samples, and how long the scheduler is idle."""

    runs: int
    every: int
    idle_minutes: float


QUICK = Length(100, 20, 0.5)


@click.command()
@click.option("--results", required=True, type=click.Path(file_okay=False, path_type=pathlib.Path))
@click.option("--runs", default=10_000, show_default=True, help="How many runs the scheduler starts.")
@click.option("--every", default=500, show_default=True, help="After how many runs its memory is noted.")
@click.option("--idle-minutes", default=60.0, show_default=True, help="How long it waits after them.")
@click.option("--quick", is_flag=True, help="100 runs and half a minute.")
@click.option("--environments", type=click.Path(file_okay=False, path_type=pathlib.Path))
def main(results: pathlib.Path, quick: bool, environments: pathlib.Path | None, **length: Any) -> None:
    """Let one scheduler start very many runs, then leave it idle; record its memory and CPU."""
    with tempfile.TemporaryDirectory(prefix="endurance-") as scratch:
        folder = pathlib.Path(scratch)
        environment = plugin_environment(environments or folder / "environments")
        home = make_home(environment, folder / "home", make_project(folder / "project"), 0)
        measured = measure(home, make_template(home, "nothing"), QUICK if quick else Length(**length))
    results.mkdir(parents=True, exist_ok=True)
    (results / "endurance.json").write_text(json.dumps(measured.as_data(), indent=2) + "\n", encoding="utf-8")
    text = markdown_for(measured)
    (results / "endurance.md").write_text(text, encoding="utf-8")
    click.echo(text)


def measure(home: Home, template: Template, length: Length) -> Endurance:
    """Returns what one scheduler costs for a number of runs, and then while idle."""
    with scheduler(home, f"workers={WORKERS}") as ours:
        wait_until(lambda: ours.has_said(WAITING), WAITING)
        notes = [_note(ours, 0)]
        for done in range(length.every, length.runs + 1, length.every):
            _let_run(home, template, length.every)
            notes.append(_note(ours, done))
            click.echo(f"{done} runs: {notes[-1].memory:.1f} MB", err=True)
        time.sleep(5)
        before, since = _note(ours, length.runs), time.monotonic()
        time.sleep(60 * length.idle_minutes)
        after, taken = _note(ours, length.runs), time.monotonic() - since
    return Endurance(notes, taken / 60, 100 * (after.cpu - before.cpu) / taken, after.memory - before.memory)


def _note(ours: Scheduler, runs: int) -> Note:
    return Note(runs, ours.memory(), ours.cpu())


def _let_run(home: Home, template: Template, count: int) -> None:
    """Stages runs, waits until they have ended, and removes them, so that the size of the home does not matter."""
    left = home.staged(template, count)
    while left:
        ended = [path for path in left if (path / ".guild" / "attrs" / "exit_status").exists()]
        left = [path for path in left if path not in set(ended)]
        time.sleep(0.5)
        for path in ended:
            shutil.rmtree(path, ignore_errors=True)


def markdown_for(measured: Endurance) -> str:
    """Returns a Markdown table."""
    lines = ["| runs | memory (MB) | CPU so far (s) |", "| ---: | ---: | ---: |"]
    lines += [f"| {note.runs} | {note.memory:.1f} | {note.cpu:.1f} |" for note in measured.notes]
    idle = f"{measured.idle_percent:.2f} % of a CPU, {measured.idle_growth:+.1f} MB"
    lines += [
        "",
        f"Growth over the second half: {measured.slope:.2f} kB a run.",
        f"Idle for {measured.idle_minutes:.1f} minutes: {idle}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
