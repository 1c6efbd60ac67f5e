"""Kills or stops random processes of a round, and records which."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import psutil

from guild_dask.home import claims
from tests.long.chaos_support.home import ChaosHome
from tests.long.chaos_support.schedulers import Crew, Working, is_living
from tests.support.sandbox import wait_until

LONGEST_DEATH = 10.0


class Kill(NamedTuple):
    """A process that was killed from outside, or that killed itself at a crash point."""

    kind: str
    pid: int
    run_id: str = ""
    # Whether the run is known not to have started; it must start later.
    is_before_start: bool = False


class Monkey:
    """Kills or stops processes of one round."""

    def __init__(self, home: ChaosHome, crew: Crew, dice: random.Random) -> None:
        self._home = home
        self._crew = crew
        self._dice = dice
        self._claims = home.box.guild_home / "dask" / "claims"
        self.kills: list[Kill] = []
        self._suspended: list[tuple[float, psutil.Process]] = []  # with the time to resume them
        self._ways: Mapping[str, Callable[[], None]] = {
            "scheduler KILL": self._kill_scheduler,
            "scheduler TERM": self._stop_scheduler,
            "scheduler TERM, then KILL": self._stop_and_kill_scheduler,
            "scheduler and guild KILL": self._kill_scheduler_and_guild,
            "guild KILL": self._kill_guild,
            "starter KILL": lambda: self._end_starter("starter KILL", signal.SIGKILL),
            "starter TERM": lambda: self._end_starter("starter TERM", signal.SIGTERM),
            "forkserver KILL": self._kill_forkserver,
            "warm server KILL": self._kill_warm_server,
            "supervisor KILL": self._kill_supervisor,
            "something STOP, then CONT": self._suspend_something,
            "operation KILL": lambda: self._end_operation("operation KILL", signal.SIGKILL),
            "operation TERM": lambda: self._end_operation("operation TERM", signal.SIGTERM),
        }

    def act(self, weights: Mapping[str, float]) -> None:
        """Does one random action, if there is a process for it."""
        kind = self._dice.choices(list(weights), list(weights.values()))[0]
        with contextlib.suppress(FileNotFoundError):  # there are no claims yet
            self._ways[kind]()

    def note(self, kind: str, process: psutil.Process, run_id: str = "", is_before_start: bool = False) -> None:
        self.kills.append(Kill(kind, process.pid, run_id, is_before_start))

    # Schedulers

    def _scheduler(self) -> tuple[Working, psutil.Process] | None:
        living = [(each, each.process) for each in self._crew.living() if each.process]
        return self._dice.choice(living) if living else None

    def _kill_scheduler(self) -> None:
        if found := self._scheduler():
            self.note("scheduler KILL", found[1])
            found[0].send(signal.SIGKILL)

    def _stop_scheduler(self) -> None:
        if found := self._scheduler():
            self.note("scheduler TERM", found[1])
            found[0].send(signal.SIGTERM)

    def _stop_and_kill_scheduler(self) -> None:
        """Kills a scheduler in the middle of its orderly stop."""
        if found := self._scheduler():
            self.note("scheduler TERM, then KILL", found[1])
            found[0].send(signal.SIGTERM)
            patience = time.monotonic() + self._dice.uniform(0, 0.5)
            with contextlib.suppress(AssertionError):
                wait_until(lambda: found[0].is_over, patience - time.monotonic())
            found[0].send(signal.SIGKILL)

    def _kill_scheduler_and_guild(self) -> None:
        if found := self._scheduler():
            self.note("scheduler and guild KILL", found[1])
            ends = [lambda: found[0].send(signal.SIGKILL), found[0].kill_guild]
            self._dice.shuffle(ends)
            for end in ends:
                end()

    def _kill_guild(self) -> None:
        """Kills the process that reads the scheduler's output. The scheduler continues."""
        if found := self._scheduler():
            self.note("guild KILL", found[1])
            found[0].kill_guild()

    # Processes that schedulers start

    def _end_starter(self, kind: str, number: signal.Signals) -> None:
        schedulers = {each.process.pid for each in self._crew.schedulers if each.process}
        found = [each.claim for each in claims.all_claims(self._claims) if each.claim]
        found = [claim for claim in found if claim.owner.pid not in schedulers]
        if not found:
            return
        claim = self._dice.choice(found)
        process = _process(claim.owner.pid)
        if process is None or not self._is_ours(process):
            return
        _send(process, number)
        if number == signal.SIGKILL:
            wait_until(lambda: not is_living(process), LONGEST_DEATH, f"the death of starter {process.pid}")
        # The claim of a dead starter no longer changes, and says whether the run was started.
        is_before_start = number == signal.SIGKILL and claims.path(self._claims, claim.run_id).exists()
        self.note(kind, process, claim.run_id, is_before_start)

    def _kill_forkserver(self) -> None:
        for each in self._forkservers()[:1]:
            self.note("forkserver KILL", each)
            _send(each, signal.SIGKILL)

    def _forkservers(self) -> list[psutil.Process]:
        """Returns the forkserver of a random scheduler, as a list of one or none."""
        if found := self._scheduler():
            with contextlib.suppress(psutil.Error):
                return [each for each in found[1].children() if _is_forkserver(each)]
        return []

    def _warm_servers(self) -> list[psutil.Process]:
        """Returns the warm servers of a random scheduler."""
        found: list[psutil.Process] = []
        for each in self._forkservers():
            with contextlib.suppress(psutil.Error):
                found += [child for child in each.children() if _command(child).endswith("-um guild.op_main")]
        return found

    def _kill_warm_server(self) -> None:
        for each in self._warm_servers()[:1]:
            self.note("warm server KILL", each)
            _send(each, signal.SIGKILL)

    def _kill_supervisor(self) -> None:
        if found := self._home.supervisors():
            process = self._dice.choice(found)
            run_id = _command(process).rpartition(" ")[2]
            if run_id:  # else it has just ended
                self.note("supervisor KILL", process, run_id)
                _send(process, signal.SIGKILL)

    def _suspend_something(self) -> None:
        """Suspends a process for a while: a scheduler, or one that it starts."""
        found = self._scheduler()
        schedulers = [found[1]] if found else []
        groups = (schedulers, self._forkservers(), self._warm_servers(), self._home.supervisors(), self._starters())
        if chosen := [group for group in groups if group]:
            process = self._dice.choice(self._dice.choice(chosen))
            self.note("STOP, then CONT", process)
            _send(process, signal.SIGSTOP)
            self._suspended.append((time.monotonic() + self._dice.uniform(0.01, 4.0), process))

    def resume(self, is_over: bool = False) -> None:
        """Resumes processes whose time has come, or all."""
        due = [each for each in self._suspended if is_over or time.monotonic() >= each[0]]
        for each in due:
            _send(each[1], signal.SIGCONT)
            self._suspended.remove(each)

    def _starters(self) -> list[psutil.Process]:
        schedulers = {each.process.pid for each in self._crew.schedulers if each.process}
        pids = {each.claim.owner.pid for each in claims.all_claims(self._claims) if each.claim} - schedulers
        return [each for each in map(_process, sorted(pids)) if each and self._is_ours(each)]

    def _end_operation(self, kind: str, number: signal.Signals) -> None:
        """Sends a signal to an operation's own process, as `guild stop` does.

        Operations of Guild's queue are excluded: the queue would wait for the processes that they leave behind.
        """
        claimed = [found.run_id for found in claims.all_claims(self._claims) if found.is_started]
        # Runs with a runaway first: the runaway must end, too.
        shuffled = self._dice.sample(claimed, len(claimed))
        for run_id in sorted(shuffled, key=self._home.has_runaway, reverse=True):
            with contextlib.suppress(OSError, ValueError):
                process = _process(int((self._home.runs / run_id / ".guild" / "LOCK").read_text()))
                if process and _variable(process, "RUN_ID") == run_id and "operation.py" in _command(process):
                    self.note(kind, process, run_id)
                    _send(process, number)
                    return

    def _is_ours(self, process: psutil.Process) -> bool:
        return _variable(process, "GUILD_HOME") == str(self._home.box.guild_home)


def _process(pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
    except psutil.Error:
        return None
    return process if is_living(process) else None


def _is_forkserver(process: psutil.Process) -> bool:
    """Returns whether a process is a forkserver, and not a starter forked from one, whose output goes to a file."""
    try:
        return "forkserver.py" in _command(process) and "run-output" not in os.readlink(f"/proc/{process.pid}/fd/1")
    except OSError:
        return False


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _variable(process: psutil.Process, name: str) -> str | None:
    try:
        value: str | None = process.environ().get(name)
    except (psutil.Error, OSError):
        return None
    return value


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)
