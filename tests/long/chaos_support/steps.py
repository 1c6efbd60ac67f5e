"""Stories that are repeated, each time with a process that is killed at another step."""

import collections
import contextlib
import json
import pathlib
import signal
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import psutil

from tests.long.chaos_support import invariants, journal
from tests.long.chaos_support.aftermath import CAPACITY, Aftermath
from tests.long.chaos_support.home import ChaosHome, Plan
from tests.long.chaos_support.invariants import ENDS, Seen, Violation
from tests.long.chaos_support.monkey import Kill
from tests.long.chaos_support.schedulers import LONGEST_STOP, Crew, Settings, Working, is_living
from tests.support.sandbox import Sandbox, Started, wait_until

_CRASH_POINTS = pathlib.Path(__file__).with_name("crash_points")
_STEPS = "steps"
_LONGEST_STORY = 180.0

_TO_START = "rename dask/claims/RUN.claimed to dask/claims/RUN.started"


@dataclass(frozen=True)
class Point:
    """The nth time that a process of the role reaches the step."""

    role: str
    step: str
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.role}, {self.step}" + (f" ({self.nth})" if self.nth > 1 else "")


NOWHERE = Point("", "")


def _plan(number: int, seconds: float, exit_code: int = 0, **more: object) -> Plan:
    return Plan(f"{number:032x}", foo=1, seconds=seconds, exit_code=exit_code, **{"has_runaway": False, **more})  # type: ignore[arg-type]


class Told:
    """One repetition of a story, on a Guild home of its own, with a process that is killed at one point."""

    plans: tuple[Plan, ...]

    def __init__(self, point: Point, fault: str, root: pathlib.Path, settings: Settings) -> None:
        package = settings.package
        # Stories are told beside each other, and a supervisor is known by its run only.
        only_here = uuid.uuid4().hex[8:]
        self.plans = tuple(replace(plan, run_id=plan.run_id[-8:] + only_here) for plan in self.plans)
        self.point = point
        self._fault = fault
        self._path = ":".join([str(_CRASH_POINTS), *([package] if package else [])])
        variables = {"CHAOS_FOLDER": str(root / "chaos"), **({"PYTHONPATH": package} if package else {})}
        self.box = Sandbox(root, variables)
        for folder in (self.box.home, self.box.guild_home, self.box.folder):
            folder.mkdir(parents=True)
        self.home = ChaosHome(self.box)
        self.crew = Crew(self.home, f"foo={CAPACITY.foo:g}", settings)
        self.aftermath = Aftermath(self.home, self.crew, list(self.plans), None)
        self.kills: list[Kill] = []

    def tell(self) -> tuple[Seen, list[Violation]]:
        """Runs the story to its end, and returns what was observed, and the violations."""
        stuck = []
        try:
            self.home.prepare()
            self.home.set_crash_points(True)
            try:
                self.act()
                self.home.set_crash_points(False)
                self.aftermath.work_off()
            except AssertionError as e:
                stuck.append(Violation("stuck", str(e)))
            seen = self.aftermath.look(self.kills)
        finally:
            self.box.end_processes()
        return seen, [*stuck, *self.aftermath.stuck, *invariants.violations(seen, rules_for(self._fault))]

    def act(self) -> None:
        """Carries out the story."""
        raise NotImplementedError

    def steps(self) -> list[tuple[str, str]]:
        """Returns each step that was reached, with the role of the process."""
        path = self.home.folder / _STEPS
        lines = path.read_text().splitlines() if path.exists() else []
        return [(role, step) for role, _, step in (line.partition("\t") for line in lines)]

    def start(self, workers: int) -> Working:
        """Starts a scheduler with the point of this repetition."""
        return self.crew.start_scheduler(workers, self.variables_here())

    def variables_here(self) -> Mapping[str, str]:
        """Returns the variables that inject the fault of this repetition."""
        return self.variables(self.point, self._fault, _STEPS)

    def variables(self, point: Point, fault: str, steps: str) -> Mapping[str, str]:
        """Returns the variables with which a process sends itself a signal, or a step fails, at a point."""
        said = {"role": point.role, "step": point.step, "nth": point.nth, "fault": fault, "steps": steps}
        return {"CHAOS_POINT": json.dumps(said), "PYTHONPATH": self._path}

    def has_started(self, plan: Plan) -> bool:
        """Returns whether a run has written its start to the journal."""
        lives = journal.read(self.home.folder / "journal")
        return plan.run_id in lives and bool(lives[plan.run_id].of("start"))

    def is_over(self, plan: Plan) -> bool:
        """Returns whether a run has ended and is settled: until its process is there, it is an error for Guild, too."""
        has_end = self.home.status(plan.run_id) in ENDS
        return has_end and not any(name.startswith(plan.run_id) for name in self.home.claims())

    def stop(self, scheduler: Working) -> None:
        """Stops a scheduler, unless it is dead already."""
        scheduler.stop()
        wait_until(lambda: scheduler.is_over, LONGEST_STOP, "the scheduler's end")

    def wait_for(self, scheduler: Working, condition: Callable[[], object]) -> None:
        """Waits for a condition, or for the scheduler's death."""
        wait_until(lambda: scheduler.is_over or condition(), _LONGEST_STORY, lambda: f"the story, {self.point}")


class WorkAndStop(Told):
    """Runs complete, fail and are retried, reach their time limit, and are ended when the scheduler is stopped."""

    plans = (
        _plan(1, 0.1),
        _plan(2, 0.1, exit_code=1, tags=("dask:foo=1", "dask-retries:1"), retries=1),
        _plan(3, 20.0, tags=("dask:foo=1", "dask-time:1s")),
        _plan(4, 3.0, has_runaway=True),
        _plan(5, 0.1),
    )

    def act(self) -> None:
        for plan in self.plans:
            self.home.stage(plan)
        last = self.plans[3]
        scheduler = self.start(workers=2)
        self.wait_for(scheduler, lambda: self.has_started(last) or self.is_over(last))
        self.stop(scheduler)


class WorkWarm(Told):
    """The same with operations that are forked from a warm server, which a first run has made the forkserver start."""

    first = tuple(_plan(number, 0.05, is_python=True) for number in range(11, 21))
    plans = (*first, *(replace(plan, is_python=True) for plan in WorkAndStop.plans))

    def act(self) -> None:
        scheduler = self.start(workers=2)
        waiting = list(self.plans)
        for plan in self.first:
            self.home.stage(waiting.pop(0))
            self.wait_for(scheduler, lambda plan=plan: self.is_over(plan))  # type: ignore[misc]
            if scheduler.is_over or self.home.was_warm(plan.run_id):
                break
        for plan in waiting:
            self.home.stage(plan)
        last = self.plans[-2]
        self.wait_for(scheduler, lambda: self.has_started(last) or self.is_over(last))
        self.stop(scheduler)


class TakeOver(Told):
    """A scheduler takes over from a dead one: one run still runs, one is dead, one was about to start."""

    plans = (
        _plan(1, 3.0),
        _plan(2, 3.0, exit_code=1, tags=("dask:foo=1", "dask-retries:1"), retries=1),
        _plan(3, 0.1),
        _plan(4, 0.1),
    )

    def act(self) -> None:
        self._die_with_runs()
        self.home.stage(self.plans[3])
        scheduler = self.start(workers=3)
        self.wait_for(scheduler, lambda: all(map(self.is_over, self.plans)))
        self.stop(scheduler)

    def _die_with_runs(self) -> None:
        """Kills a scheduler when its third run is about to start, and all processes of the second run."""
        goes_on, dies, waits = self.plans[:3]
        third = self.variables(Point("starter", _TO_START, 3), "SIGSTOP", "steps-before")
        scheduler = self.crew.start_scheduler(3, third)
        self.home.stage(goes_on)
        self.home.stage(dies)
        wait_until(lambda: self.has_started(goes_on) and self.has_started(dies), _LONGEST_STORY, "two runs")
        self.home.stage(waits)
        crashes = self.home.folder / "crashes"
        wait_until(crashes.exists, _LONGEST_STORY, "a starter that is about to start its run")
        scheduler.send(signal.SIGKILL)
        scheduler.kill_guild()
        died = journal.read(self.home.folder / "journal")[dies.run_id].of("start")[0]
        self._kill(json.loads(crashes.read_text())["pid"], waits)
        self._kill(died.parent, dies)
        self._kill(died.pid, dies)

    def _kill(self, pid: int, plan: Plan) -> None:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            process.kill()
            wait_until(lambda: not is_living(process), describe=f"the death of {pid}")
        self.kills.append(Kill("in the story", pid, plan.run_id))


class WorkAway(Told):
    """The same on workers of an existing Dask scheduler, of which one may be killed."""

    plans = tuple(replace(plan, retries=3 + plan.retries) for plan in WorkAndStop.plans)  # after a loss, three times

    def act(self) -> None:
        for plan in self.plans:
            self.home.stage(plan)
        last = self.plans[3]
        file = self.box.root / "scheduler.json"
        dask = [self._start_dask(f"scheduler --host 127.0.0.1 --port 0 --no-dashboard --scheduler-file {file}")]
        for name in ("one", "two"):
            place = self.box.root / f"scratch-{name}"
            options = f"--name {name} --nthreads 1 --resources foo=2 --no-nanny --no-dashboard"
            dask.append(self._start_dask(f"worker --scheduler-file {file} --local-directory {place} {options}"))
            wait_until(lambda: "Registered to" in dask[-1].output or not dask[-1].is_running, describe=dask[-1].so_far)
        scheduler = self.crew.start(f"cluster=scheduler-file:{file}", self.variables_here())
        self.wait_for(scheduler, lambda: self.has_started(last) or self.is_over(last))
        self.stop(scheduler)
        for process in reversed(dask):
            if process.is_running:  # and not the dead one
                process.signal(signal.SIGTERM)
                process.wait()

    def _start_dask(self, command: str) -> Started:
        """Starts a process of Dask, which is ended with the story at the latest."""
        count = len(list(self.box.root.glob("dask-*.log")))
        environ = {**self.box.environ, **self.variables_here()}
        return Started(command, environ, str(self.box.folder), self.box.root / f"dask-{count}.log", ("dask",))


STORIES: Mapping[str, type[Told]] = {
    "work-and-stop": WorkAndStop,
    "work-warm": WorkWarm,
    "take-over": TakeOver,
    "work-away": WorkAway,
}


def is_deadly(fault: str) -> bool:
    """Returns whether a fault is a signal, and not an error."""
    return fault in signal.Signals.__members__


# Errors that mean that the host, and not the run, lacks something.
_SHORTAGES = ("ENOSPC", "EDQUOT", "EMFILE", "ENFILE", "EAGAIN", "ENOMEM")


def rules_for(fault: str) -> tuple[invariants.Rule, ...]:
    """Returns what must hold after a fault."""
    if is_deadly(fault):
        return invariants.RULES
    return invariants.RULES_FOR_SHORTAGES if fault in _SHORTAGES else invariants.RULES_FOR_ERRORS


def points_of(told: Told, depth: int, fault: str) -> list[Point]:
    """Returns the points of an undisturbed story, with a maximum number for each repeated step."""
    # A fork is only reported afterwards, so it cannot be made to fail.
    steps = (step for step in told.steps() if is_deadly(fault) or not step[1].startswith(("forked", "fork (done)")))
    counts = collections.Counter(steps)
    return [Point(*step, nth) for step, count in sorted(counts.items()) for nth in range(1, min(count, depth) + 1)]
