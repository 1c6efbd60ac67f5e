"""A scheduler with a hundred thousand staged runs: its first start, its memory, and `guild-dask status`."""

import os
import pathlib
import subprocess
import time
from dataclasses import asdict, dataclass

import click

from benchmarks.contenders import WORKERS
from benchmarks.homes import Home, Template
from benchmarks.measuring import Scheduler, scheduler, wait_until
from benchmarks.sizes import Sizes

# Runs that are real copies, since they may start; the others share their files.
_REAL = 400

# How many runs share the same files: file systems limit the links of a file.
_SHARING = 20_000


@dataclass(frozen=True)
class Backlog:
    """What a scheduler costs with very many staged runs."""

    staged: int
    first: float  # seconds from the command to the first instruction of a run
    first_cpu: float  # seconds of the scheduler's CPU up to then
    memory: float  # megabytes, at most
    status: list[float]  # seconds of `guild-dask status`
    status_cpu: list[float]

    def as_data(self) -> dict[str, object]:
        return asdict(self)


def measure(home: Home, template: Template, sizes: Sizes) -> Backlog:
    """Returns what a scheduler costs with that many staged runs."""
    click.echo(f"staging {sizes.backlog} runs", err=True)
    run_dirs = _staged(home, template, sizes.backlog)
    with scheduler(home, f"workers={WORKERS}") as ours:
        begun = run_dirs[0] / "ended"
        wait_until(begun.exists, "the first run to end", every=0.1)
        first, cpu = home.began(run_dirs[0]) - ours.since, ours.cpu()
        memory, status, status_cpu = _watched(ours, home, sizes.ready)
    home.clear()
    return Backlog(sizes.backlog, first, cpu, memory, status, status_cpu)


def _watched(ours: Scheduler, home: Home, times: int) -> tuple[float, list[float], list[float]]:
    """Returns the scheduler's memory, and what `guild-dask status` takes, while runs start and end."""
    memory, taken, cpu = [ours.memory()], [], []
    command = [str(pathlib.Path(home.environment.guild).with_name("guild-dask")), "status"]
    for _ in range(times):
        since, before = time.monotonic(), os.times()
        subprocess.run(command, check=True, env=home.variables, stdout=subprocess.DEVNULL)
        after = os.times()
        taken.append(time.monotonic() - since)
        cpu.append(after.children_user + after.children_system - before.children_user - before.children_system)
        memory.append(ours.memory())
        time.sleep(1)
    return max(memory), taken, cpu


def _staged(home: Home, template: Template, count: int) -> list[pathlib.Path]:
    """Returns staged runs, oldest first; those at the end share their files, since they will not start."""
    real = home.staged(template, min(count, _REAL))
    original = real[-1]
    for number in range(count - len(real)):
        if number % _SHARING == 0:
            original = home.stage(template)
        home.link_staged(original)
    return real
