"""What an installed guild-dask costs each Guild command, in CPU time.

    python -m benchmarks.plugin_cost RESULTS

makes three virtual environments with the same versions of all packages that they share:

- guild: guildai, and what it needs to work without guild-dask
- dask: the same with Dask and all other requirements of guild-dask, but without guild-dask
- plugin: the same with guild-dask

and runs each command in all three, many times. The differences within a round count, so that a machine that is slower
for a while affects all three. `plugin - dask` is the cost of the plugin itself, which the target limits;
`plugin - guild` is the cost for a user who had only Guild before. Writes plugin-cost.json and plugin-cost.md to
RESULTS. The exit code is 1 if the target is missed.
"""

import dataclasses
import json
import os
import pathlib
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

import click

from benchmarks.environments import (
    PROJECT,
    Environment,
    dask_environment,
    guild_environment,
    plugin_environment,
)

# Milliseconds of CPU that the plugin may add to a command.
TARGET = 30.0

COMMANDS = ("--version", "runs", "run op --stage -y")
RUNS_IN_HOME = 5
WARM_UP = 2


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference between two environments, in milliseconds of CPU, measured round by round."""

    median: float
    quartiles: tuple[float, float]
    interval: tuple[float, float]  # the 95 % confidence interval of the median

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.median:+.1f} ({low:+.1f} to {high:+.1f})"


@click.command()
@click.argument("results", type=click.Path(file_okay=False, path_type=pathlib.Path))
@click.option("--rounds", default=40, show_default=True, help="How many times each command is run in each environment.")
@click.option(
    "--environments",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    help="Where the virtual environments are, or will be made; by default in a temporary folder.",
)
def main(results: pathlib.Path, rounds: int, environments: pathlib.Path | None) -> None:
    """Measure what an installed guild-dask costs each Guild command."""
    with tempfile.TemporaryDirectory(prefix="plugin-cost-") as scratch:
        made = make_environments(environments or pathlib.Path(scratch) / "environments")
        project = pathlib.Path(scratch) / "project"
        shutil.copytree(PROJECT / "examples" / "parallel-runs", project)
        for environment in made:
            make_home(environment, project)
        seconds = measure(made, project, rounds)
        versions = made[-1].pip("freeze").splitlines()
    report = report_for(seconds)
    results.mkdir(parents=True, exist_ok=True)
    write_json(results / "plugin-cost.json", seconds, report, versions)
    text = markdown_for(seconds, report)
    (results / "plugin-cost.md").write_text(text, encoding="utf-8")
    click.echo(text)
    sys.exit(any(differences["plugin - dask"].median > TARGET for differences in report.values()))


def make_environments(folder: pathlib.Path) -> list[Environment]:
    """Returns the three environments, and creates missing ones; guild-dask is installed from this checkout."""
    plugin = plugin_environment(folder)
    return [guild_environment(folder, plugin), dask_environment(folder, plugin), plugin]


def make_home(environment: Environment, project: pathlib.Path) -> None:
    """Makes a new Guild home with a few runs."""
    home = pathlib.Path(environment.variables["GUILD_HOME"])
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    for _ in range(RUNS_IN_HOME):
        cpu_seconds(environment, "run op sleep=0 -y", project)


def measure(
    environments: Sequence[Environment], project: pathlib.Path, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Returns the CPU seconds of each round, for each command and environment."""
    seconds: dict[str, dict[str, list[float]]] = {c: {e.name: [] for e in environments} for c in COMMANDS}
    order = list(environments)
    with click.progressbar(range(WARM_UP + rounds), label="measuring", file=sys.stderr) as numbers:
        for number in numbers:
            random.shuffle(order)  # the order of the environments varies
            for command in COMMANDS:
                for environment in order:
                    taken = cpu_seconds(environment, command, project)
                    if number >= WARM_UP:
                        seconds[command][environment.name].append(taken)
            for environment in order:
                cpu_seconds(environment, "runs rm --staged --permanent -y", project)
    return seconds


def cpu_seconds(environment: Environment, command: str, project: pathlib.Path) -> float:
    """Runs a Guild command, and returns its user and system time, with the processes that it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    finished = subprocess.run(
        [environment.guild, *command.split()],
        check=False,
        cwd=project,
        env=environment.variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if finished.returncode != 0:
        raise click.ClickException(f"guild {command} failed in environment {environment.name}:\n{finished.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def report_for(seconds: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, Difference]]:
    """Returns the differences between the environments, for each command."""
    return {
        command: {
            "plugin - dask": difference(taken["plugin"], taken["dask"]),
            "dask - guild": difference(taken["dask"], taken["guild"]),
            "plugin - guild": difference(taken["plugin"], taken["guild"]),
        }
        for command, taken in seconds.items()
    }


def difference(one: Sequence[float], other: Sequence[float]) -> Difference:
    """Returns the difference between two environments, from rounds in the same order."""
    by_round = [1000 * (a - b) for a, b in zip(one, other, strict=True)]
    low, _, high = statistics.quantiles(by_round, n=4)
    draw = random.Random(0)  # fixed, so that the same rounds give the same interval
    medians = [statistics.median(draw.choices(by_round, k=len(by_round))) for _ in range(2000)]
    fortieths = statistics.quantiles(medians, n=40)
    return Difference(statistics.median(by_round), (low, high), (fortieths[0], fortieths[-1]))


def write_json(
    path: pathlib.Path,
    seconds: Mapping[str, Mapping[str, Sequence[float]]],
    report: Mapping[str, Mapping[str, Difference]],
    versions: Sequence[str],
) -> None:
    """Writes all measurements."""
    data = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "target_ms": TARGET,
        "difference_ms": {
            command: {name: dataclasses.asdict(d) for name, d in differences.items()}
            for command, differences in report.items()
        },
        "cpu_seconds": seconds,
        "versions": list(versions),
    }
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def markdown_for(
    seconds: Mapping[str, Mapping[str, Sequence[float]]], report: Mapping[str, Mapping[str, Difference]]
) -> str:
    """Returns a Markdown table."""
    rounds = len(next(iter(next(iter(seconds.values())).values())))
    lines = [
        f"CPU milliseconds (user + system) of Guild commands, Python {platform.python_version()}, {rounds} rounds.",
        "Medians; in brackets the interval in which the median of the differences is with 95 % confidence.",
        f"Target: the plugin costs at most {TARGET:g} ms.",
        "",
        "| command | guild | dask | plugin | plugin - dask | dask - guild | plugin - guild |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for command, differences in report.items():
        medians = [f"{1000 * statistics.median(taken):.0f}" for taken in seconds[command].values()]
        cells = [f"`guild {command}`", *medians, *(str(difference) for difference in differences.values())]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
