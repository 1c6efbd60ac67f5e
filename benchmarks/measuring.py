"""The cost of a command, and a scheduler that runs while it is measured."""

import contextlib
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import click
import psutil

from benchmarks.homes import Home

# Seconds after which a command counts as stuck.
PATIENCE = 600.0


@dataclass(frozen=True)
class Cost:
    """Wall time, and CPU time of all processes that were waited for, in seconds."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Command:
    """A command, and its standard input."""

    arguments: Sequence[str]
    reads: str = ""


def cost_of(commands: Sequence[Command], home: Home) -> Cost:
    """Runs the commands at the same time, and returns their total cost until the last has ended."""
    begun = time.monotonic()
    started = [_started(command, home) for command in commands]
    cpu = 0.0
    for process in started:
        # Not with Popen: only wait4() returns the CPU of the whole tree.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        cpu += usage.ru_utime + usage.ru_stime
        if process.returncode != 0:
            raise click.ClickException(f"exit code {process.returncode} of {process.args!r}")
    return Cost(time.monotonic() - begun, cpu)


def _started(command: Command, home: Home) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        command.arguments,
        cwd=home.project,
        env=home.variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(command.reads.encode())
    process.stdin.close()
    return process


@dataclass(frozen=True)
class Scheduler:
    """A running scheduler, with its output file."""

    guild: "subprocess.Popen[bytes]"
    output: pathlib.Path
    since: float  # when its command was typed, as seconds since 1970

    def has_said(self, text: str) -> bool:
        return text in self.output.read_text(errors="replace")

    def process(self) -> psutil.Process:
        """Returns the scheduler's own process, which Guild has started."""
        children = psutil.Process(self.guild.pid).children()
        return next(child for child in children if any("scheduler" in part for part in child.cmdline()))

    def cpu(self) -> float:
        """Returns the CPU seconds of the scheduler's own process, without the runs."""
        times = self.process().cpu_times()
        return float(times.user + times.system)

    def memory(self) -> float:
        """Returns the memory of the scheduler's own process, in megabytes."""
        return float(self.process().memory_info().rss / 1e6)


WAITING = "Waiting for staged runs"


@contextlib.contextmanager
def scheduler(home: Home, *flags: str) -> Iterator[Scheduler]:
    """Runs the scheduler of the home's environment while the block runs; then stops it."""
    output = home.folder / "scheduler-output"
    command = [home.environment.guild, "run", "dask:scheduler", "dashboard-address=no", *flags, "-y"]
    with output.open("wb") as file:
        since = time.time()
        guild = subprocess.Popen(
            command,
            cwd=home.project,
            env=home.variables,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Scheduler(guild, output, since)
    finally:
        os.killpg(guild.pid, signal.SIGINT)
        try:
            guild.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(guild.pid, signal.SIGKILL)
            guild.wait()


def wait_until(condition: Callable[[], object], what: str, every: float = 0.02) -> None:
    """Waits for a condition, and fails if it does not become true in time."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise click.ClickException(f"waited in vain for {what}")
        time.sleep(every)
