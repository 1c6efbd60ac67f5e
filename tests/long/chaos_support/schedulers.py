"""The schedulers and the queue of a round: Guild's process, and the operation's process below it."""

import contextlib
import os
import pathlib
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from tests.long.chaos_support.home import ChaosHome
from tests.support.sandbox import Started, wait_until

# Guild gives up on a scheduler after 30 seconds.
LONGEST_STOP = 30.0


class Working:
    """A `guild run` of a scheduler or queue, with the operation's process once that has started."""

    def __init__(
        self, name: str, words: Sequence[str], marks: str, home: ChaosHome, environ: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = home.box.root / f"{name}.log"
        self._marks = marks
        self._guild = Started(shlex.join(words[1:]), environ, str(home.box.folder), self.log, words[:1])
        self._process: psutil.Process | None = None
        self._is_over = False

    @property
    def process(self) -> psutil.Process | None:
        """Returns the operation's process, or None if it has not started."""
        if self._process is None:
            with contextlib.suppress(psutil.Error):
                below = psutil.Process(self._guild.pid).children()
                self._process = next((each for each in below if self._marks in each.cmdline()), None)
        return self._process

    @property
    def is_over(self) -> bool:
        """Returns whether the operation's process has ended; Guild's process may still be ending."""
        if not self._is_over:
            process = self.process
            self._is_over = not is_living(process) if process else not self._guild.is_running
        return self._is_over

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the operation's process."""
        if self.process:
            with contextlib.suppress(psutil.Error):
                self.process.send_signal(number)

    def stop(self) -> None:
        """Stops the operation, as soon as it has started."""
        wait_until(lambda: self.process or self.is_over, describe=f"the process of {self.name}")
        self.send(signal.SIGTERM)

    def interrupt(self) -> None:
        """Sends SIGINT to both processes, as Ctrl-C does."""
        self._guild.signal(signal.SIGINT)

    def kill_guild(self) -> None:
        """Kills only the process of the `guild run` command."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._guild.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> None:
        """Waits for the end of both processes."""
        wait_until(lambda: self.is_over and not self._guild.is_running, timeout, lambda: f"the end of {self.name}")

    @property
    def exit_code(self) -> int | None:
        return self._guild.so_far().exit_code


def is_living(process: psutil.Process) -> bool:
    """Returns whether it is still the same process, and not a zombie."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


@dataclass(frozen=True)
class Settings:
    """What all rounds have in common."""

    package: str | None = None  # the folder of the guild_dask that is tested; None: the installed one
    is_warm: bool = True  # whether operations may be forked from a warm server
    guild: Sequence[str] = ("guild",)  # the command


class Crew:
    """All schedulers and queues of a round, in the order of their start."""

    def __init__(self, home: ChaosHome, resources: str, settings: Settings) -> None:
        self._home = home
        self._resources = resources
        self._command = settings.guild
        self._common = f"poll-interval=0.3 dashboard-address=no warm={'yes' if settings.is_warm else 'no'} --yes"
        self.schedulers: list[Working] = []
        self.queue: Working | None = None

    def start_scheduler(
        self, workers: int, crash_points: Mapping[str, str] | None = None, options: str = ""
    ) -> Working:
        """Starts another scheduler on this machine, with crash points if their variables are given."""
        return self.start(f"workers={workers} resources={self._resources} {options}", crash_points)

    def start(self, flags: str, crash_points: Mapping[str, str] | None = None) -> Working:
        """Starts another scheduler with these flags."""
        words = [*self._command, *shlex.split(f"run dask:scheduler {flags} {self._common}")]
        environ = {**self._home.box.environ, **(crash_points or {})}
        name = f"scheduler-{len(self.schedulers) + 1}"
        started = Working(name, words, "guild_dask.scheduler", self._home, environ)
        self.schedulers.append(started)
        return started

    def start_queue(self) -> None:
        """Starts Guild's own queue."""
        words = ("guild", "run", "queue", "poll-interval=1", "--yes")
        self.queue = Working("queue", words, "guild.plugins.queue_main", self._home, self._home.box.environ)

    def living(self) -> list[Working]:
        return [each for each in self.schedulers if not each.is_over]

    def stop_queue(self) -> None:
        """Stops the queue between two runs: otherwise it would kill its current run, and cannot stage it again."""
        queue = self.queue
        if queue is None:
            return
        wait_until(lambda: queue.process, describe="the queue's process")
        with self._home.locked():
            wait_until(lambda: not _children(queue.process), describe="the end of the queue's run")
            queue.send(signal.SIGTERM)
            queue.wait(LONGEST_STOP)

    def logs(self) -> list[pathlib.Path]:
        return [each.log for each in self.schedulers]


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children())
    except psutil.Error:
        return []
