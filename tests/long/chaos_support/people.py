"""What people do to the runs and schedulers of a round, with the commands that they have, and what that explains."""

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from guild_dask.home import status
from tests.long.chaos_support.home import ChaosHome, Plan
from tests.long.chaos_support.impostors import pretend_to_stop
from tests.long.chaos_support.schedulers import Crew
from tests.support.sandbox import run_command

# Commands that run at the same time.
_HANDS = 2

_LONGEST_COMMAND = 120.0

Status = status.Status


class Deed(NamedTuple):
    """Something that a person has done to a run, or to schedulers, with the time by the monotonic clock."""

    kind: str
    run_id: str
    begun: float
    ended: float
    exit_code: int | None

    @property
    def is_restaging(self) -> bool:
        """Returns whether the run may be started again, even if it had completed."""
        return self.kind in ("retry", "stage again")

    @property
    def may_end_run(self) -> bool:
        return self.kind in ("stop", "guild stop", "delete")


class People:
    """Does what people do, in the background. All dice are rolled in the caller's thread."""

    def __init__(self, home: ChaosHome, crew: Crew, dice: random.Random, plans: Sequence[Plan]) -> None:
        self._home = home
        self._crew = crew
        self._dice = dice
        self._plans = plans
        self._hands = ThreadPoolExecutor(_HANDS)
        self._at_work: dict[Future[None], str] = {}  # with the run that each is about
        self.deeds: list[Deed] = []
        self._ways: Mapping[str, Callable[[], None]] = {
            "retag": self._retag,
            "priority": self._change_priority,
            "pause": self._pause,
            "drain": lambda: self._do("drain", "", ["guild-dask", "drain"]),
            "stop": lambda: self._end_run("stop", "guild-dask", "stop"),
            "guild stop": lambda: self._end_run("guild stop", "guild", "stop", "-y"),
            "delete and restore": self._delete_and_restore,
            "retry": lambda: self._stage_again("retry", "guild-dask", "retry", "-y"),
            "stage again": lambda: self._stage_again("stage again", "guild", "run", "--stage", "-y", "--restart"),
            "Ctrl-C twice": self._interrupt_twice,
            "look-alike of another user": self._pretend,
        }

    def act(self, weights: Mapping[str, float]) -> None:
        """Does one random thing, if there is a run or scheduler for it, and a hand."""
        self._at_work = {each: run_id for each, run_id in self._at_work.items() if not each.done()}
        if len(self._at_work) < _HANDS:
            self._ways[self._dice.choices(list(weights), list(weights.values()))[0]]()

    def rest(self) -> None:
        """Waits for what is being done, and takes back what would keep runs from starting."""
        self._hands.shutdown(wait=True)
        self._command("resume", "", ["guild-dask", "resume"])

    # Runs

    def _retag(self) -> None:
        if plan := self._one_of(Status.STAGED):
            tag = self._dice.choice((f"dask:foo={self._dice.randint(0, 3)}", "dask-priority:3", "any other"))
            self._do("retag", plan.run_id, ["guild", "tag", "-y", "-a", tag, plan.run_id])

    def _change_priority(self) -> None:
        if plan := self._one_of(Status.STAGED):
            priority = str(self._dice.randint(0, 20))
            self._do("priority", plan.run_id, ["guild-dask", "priority", plan.run_id, priority])

    def _end_run(self, kind: str, *words: str) -> None:
        if plan := self._one_of(Status.RUNNING):
            self._do(kind, plan.run_id, [*words, plan.run_id])

    def _delete_and_restore(self) -> None:
        chosen = self._dice.choice((Status.STAGED, Status.PENDING, Status.RUNNING, Status.COMPLETED))
        if plan := self._one_of(chosen):
            deletion = ["guild", "runs", "rm", "-y", plan.run_id]
            self._start(plan.run_id, lambda pause: self._delete(plan.run_id, deletion, pause), 2.0)

    def _delete(self, run_id: str, deletion: Sequence[str], pause: float) -> None:
        self._command("delete", run_id, deletion)
        time.sleep(pause)  # the person's own
        self._command("restore", run_id, ["guild", "runs", "restore", "-y", run_id])

    def _stage_again(self, kind: str, *words: str) -> None:
        if plan := self._one_of(*status.ENDED):
            self._do(kind, plan.run_id, [*words, plan.run_id])

    def _one_of(self, *wanted: Status) -> Plan | None:
        """Returns a random run with one of the statuses that nobody is about to do anything to."""
        taken = set(self._at_work.values())
        for plan in self._dice.sample(self._plans, len(self._plans)):
            run_dir = self._home.runs / plan.run_id
            if plan.run_id not in taken and run_dir.exists() and status.status(str(run_dir)) in wanted:
                return plan
        return None

    # Schedulers

    def _pause(self) -> None:
        self._start("", self._pause_and_resume, 3.0)

    def _pause_and_resume(self, pause: float) -> None:
        self._command("pause", "", ["guild-dask", "pause"])
        time.sleep(pause)  # the person's own
        self._command("resume", "", ["guild-dask", "resume"])

    def _interrupt_twice(self) -> None:
        if living := self._crew.living():
            scheduler = self._dice.choice(living)

            def interrupt(pause: float) -> None:
                begun = time.monotonic()
                with contextlib.suppress(ProcessLookupError):
                    scheduler.interrupt()
                    time.sleep(pause)  # the person's own
                    scheduler.interrupt()
                self.deeds.append(Deed("Ctrl-C twice", "", begun, time.monotonic(), 0))

            self._start("", interrupt, 1.0)

    def _pretend(self) -> None:
        """Another user of the host has processes that look like `guild stop` of a run."""
        if plan := self._one_of(Status.RUNNING, Status.STAGED):
            self._start("", lambda pause: pretend_to_stop(plan.run_id, str(self._home.box.guild_home), pause), 4.0)

    # Both

    def _do(self, kind: str, run_id: str, command: Sequence[str]) -> None:
        self._start(run_id, lambda _pause: self._command(kind, run_id, command), 0.0)

    def _start(self, run_id: str, do: Callable[[float], None], longest_pause: float) -> None:
        pause = self._dice.uniform(0, longest_pause)
        self._at_work[self._hands.submit(do, pause)] = run_id

    def _command(self, kind: str, run_id: str, command: Sequence[str]) -> None:
        begun = time.monotonic()
        done = run_command(command, self._home.box.environ, self._home.box.folder, _LONGEST_COMMAND)
        self.deeds.append(Deed(kind, run_id, begun, time.monotonic(), done.exit_code))
        if "Traceback" in done.output or done.exit_code is None:
            with (self._home.box.root / "people.log").open("a") as f:
                f.write(f"{done}\n")
