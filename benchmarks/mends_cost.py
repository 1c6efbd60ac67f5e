"""What the mends of Guild cost a Python that has nothing to do with Guild, in milliseconds.

    python -m benchmarks.mends_cost

makes two empty virtual environments, installs guild-dask without its requirements in one of them, and runs
`python -c pass` in both, many times, in random order. The exit code is 1 if the target is missed.
"""

import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import click

from benchmarks.environments import PROJECT

# Milliseconds that the hook may add to the start of Python.
TARGET = 1.0


@click.command()
@click.option("--rounds", default=300, show_default=True, help="How many times Python is started in each environment.")
def main(rounds: int) -> None:
    """Measure what the mends cost a Python without Guild."""
    with tempfile.TemporaryDirectory(prefix="mends-cost-") as scratch:
        without, mended = (_environment(pathlib.Path(scratch), name) for name in ("without", "with"))
        source = pathlib.Path(scratch) / "guild-dask"
        shutil.copytree(PROJECT, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info"))
        subprocess.run([mended, "-m", "pip", "install", "--quiet", "--no-deps", str(source)], check=True)
        pairs = [_round(without, mended) for _ in range(rounds + 10)][10:]
    cost = statistics.median(b - a for a, b in pairs)
    click.echo(f"without: {statistics.median(a for a, _ in pairs):.2f} ms, cost of the mends: {cost:.2f} ms")
    sys.exit(cost > TARGET)


def _environment(folder: pathlib.Path, name: str) -> str:
    subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
    return str(folder / name / "bin" / "python")


def _round(*pythons: str) -> tuple[float, float]:
    """Returns the milliseconds that each of two Pythons takes to start and end."""
    taken = {}
    for python in random.sample(pythons, len(pythons)):
        begun = time.perf_counter()
        subprocess.run([python, "-c", "pass"], check=True)
        taken[python] = (time.perf_counter() - begun) * 1000
    return taken[pythons[0]], taken[pythons[1]]


if __name__ == "__main__":
    main()
