"""What one plan costs: 10,000 waiting runs of 20 kinds on 100 workers, in CPU time.

    python -m benchmarks.plan_cost

prints the least of several tries for workers in different states. The exit code is 1 if the target is missed.
"""

import sys
import time
from collections.abc import Sequence

import click

from guild_dask.plan.placement import PATIENCE, StagedRun, Worker, plan
from guild_dask.plan.tags import requirements_for_tags

RUNS = 10_000
KINDS = 20
WORKERS = 100
TRIES = 15

# Milliseconds.
TARGET = 50.0

TOTAL = {"gpu": 4.0, "mem": 64e9}
DEVICES = {str(number): 1.0 for number in range(4)}


def runs() -> list[StagedRun]:
    """Returns the waiting runs, as many of each kind."""
    kinds = [
        requirements_for_tags((f"dask:gpu={number % 4 + 1} mem={(number % 5 + 1) * 8}GB",)).amounts
        for number in range(KINDS)
    ]
    return [StagedRun(f"run-{number:05}", kinds[number % KINDS]) for number in range(RUNS)]


def workers(slots: int, gpu: float, mem: float, has_devices: bool = False) -> list[Worker]:
    """Returns workers with these free amounts."""
    devices = DEVICES if has_devices else {}
    return [Worker(f"w{n:03}", 8, TOTAL, slots, {"gpu": gpu, "mem": mem}, devices) for n in range(WORKERS)]


def milliseconds(staged: Sequence[StagedRun], given: Sequence[Worker], passed: dict[str, int]) -> tuple[float, int]:
    """Returns the least CPU time of several tries, and the number of runs that the plan starts."""
    times = []
    for _ in range(TRIES):
        before = time.process_time()
        decided = plan(staged, given, passed)
        times.append(time.process_time() - before)
    return min(times) * 1e3, len(decided.starts)


@click.command()
def main() -> None:
    """Print what one plan costs."""
    staged = runs()
    states = {
        "idle": (workers(8, 4.0, 64e9), {}),
        "idle, with devices": (workers(8, 4.0, 64e9, has_devices=True), {}),
        "half busy": (workers(2, 1.0, 16e9), {}),
        "full": (workers(0, 0.0, 0.0), {}),
        "half busy, a hundred runs passed over": (workers(2, 1.0, 16e9), {run.id: PATIENCE for run in staged[:100]}),
    }
    worst = 0.0
    for name, (given, passed) in states.items():
        spent, starts = milliseconds(staged, given, passed)
        worst = max(worst, spent)
        click.echo(f"{name}: {spent:.1f} ms ({starts} runs start)")
    click.echo(f"{RUNS} runs of {KINDS} kinds, {WORKERS} workers: {worst:.1f} ms at most; the target is {TARGET:g} ms")
    sys.exit(worst > TARGET)


if __name__ == "__main__":
    main()
