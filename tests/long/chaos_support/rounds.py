"""One round: stages runs, starts and kills schedulers, and then checks the invariants."""

import json
import math
import pathlib
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.long.chaos_support import invariants, people_rules
from tests.long.chaos_support.aftermath import CAPACITY, Aftermath
from tests.long.chaos_support.home import ChaosHome, Plan, plan_for_dice, plan_with_tags
from tests.long.chaos_support.invariants import Capacity, Seen, Violation
from tests.long.chaos_support.monkey import Monkey
from tests.long.chaos_support.people import People
from tests.long.chaos_support.schedulers import LONGEST_STOP, Crew, Settings
from tests.support.sandbox import Sandbox, wait_until

CRASH_POINTS = pathlib.Path(__file__).with_name("crash_points")

_TICK = 0.05
_LOOK = 1.0  # seconds between looks at all runs, which may be thousands

_KILLS_WITH_ONE = {
    "scheduler KILL": 4.0,
    "scheduler TERM": 1.5,
    "scheduler TERM, then KILL": 1.0,
    "scheduler and guild KILL": 1.0,
    "operation KILL": 1.0,
    "operation TERM": 1.0,
}
_KILLS_WITH_MANY = {
    **_KILLS_WITH_ONE,
    "guild KILL": 0.5,
    "starter KILL": 4.0,
    "starter TERM": 2.0,
    "forkserver KILL": 2.0,
    "warm server KILL": 2.0,
    "supervisor KILL": 2.0,
    "something STOP, then CONT": 2.0,
    "operation KILL": 3.0,
    "operation TERM": 3.0,
}

# A scheduler has about ten steps for each run, a starter twenty, a forkserver two.
_RATES = {"scheduler": 0.005, "forkserver": 0.02, "starter": 0.012, "warm server": 0.01, "supervisor": 0.01}


@dataclass(frozen=True)
class Kind:
    """What happens in a round."""

    name: str
    most_schedulers: int
    has_queue: bool
    capacity: Capacity | None
    kills: Mapping[str, float]
    seconds_between_kills: float
    rates: Mapping[str, float]  # the probability of a kill at each step, by role
    has_all_tags: bool = False
    deeds: Mapping[str, float] = field(default_factory=dict)  # what people do, between kills
    seconds_between_deeds: float = 1.0
    rules: Sequence[invariants.Rule] = invariants.RULES
    backlog: int | None = None  # how many runs wait at most; None: half of all are staged at the beginning


ONE_AT_A_TIME = Kind(
    name="one scheduler at a time",
    most_schedulers=1,
    has_queue=False,
    capacity=CAPACITY,
    kills=_KILLS_WITH_ONE,
    seconds_between_kills=4.0,
    rates=_RATES,
)
MANY_AT_ONCE = Kind(
    name="schedulers and a queue",
    most_schedulers=3,
    has_queue=True,
    capacity=None,
    kills=_KILLS_WITH_MANY,
    seconds_between_kills=1.5,
    rates=_RATES,
)
# Mostly kills around runs: schedulers that are killed each second would do nothing but start.
MARATHON = Kind(
    name="marathon",
    most_schedulers=3,
    has_queue=False,
    capacity=None,
    kills={
        "scheduler KILL": 1.0,
        "scheduler TERM": 0.5,
        "scheduler and guild KILL": 0.5,
        "guild KILL": 0.5,
        "starter KILL": 4.0,
        "starter TERM": 2.0,
        "forkserver KILL": 1.0,
        "warm server KILL": 1.0,
        "supervisor KILL": 2.0,
        "something STOP, then CONT": 2.0,
        "operation KILL": 4.0,
        "operation TERM": 2.0,
    },
    seconds_between_kills=1.0,
    rates={},
    backlog=300,
)
# People do all that they can do, while schedulers and what they start are killed and suspended.
PEOPLE = Kind(
    name="people and kills",
    most_schedulers=2,
    has_queue=False,
    capacity=None,
    kills=_KILLS_WITH_MANY,
    seconds_between_kills=4.0,
    rates={role: rate / 3 for role, rate in _RATES.items()},
    has_all_tags=True,
    deeds={
        "retag": 2.0,
        "priority": 1.0,
        "pause": 0.7,
        "drain": 0.7,
        "stop": 2.0,
        "guild stop": 2.0,
        "delete and restore": 4.0,
        "retry": 3.0,
        "stage again": 2.0,
        "Ctrl-C twice": 0.7,
        "look-alike of another user": 1.0,
    },
    rules=people_rules.RULES,
)
KINDS = {"people": PEOPLE, "one": ONE_AT_A_TIME, "many": MANY_AT_ONCE, "marathon": MARATHON}


@dataclass(frozen=True)
class Outcome:
    """The result of a round, and its violations."""

    kind: Kind
    seed: str
    seconds: float
    schedulers: int
    slowest_stop: float
    seen: Seen
    violations: list[Violation]


class Round:
    """One round on a Guild home of its own."""

    def __init__(self, kind: Kind, seed: str, runs: int, root: pathlib.Path, settings: Settings) -> None:
        package = settings.package
        self._kind = kind
        self._seed = seed
        self._dice = random.Random(seed)
        variables = {"CHAOS_FOLDER": str(root / "chaos"), **({"PYTHONPATH": package} if package else {})}
        self.box = Sandbox(root, variables)
        for folder in (self.box.home, self.box.guild_home, self.box.folder):
            folder.mkdir(parents=True)
        self.home = ChaosHome(self.box)
        self._crash_points = {
            "CHAOS_SEED": seed,
            "CHAOS_RATES": json.dumps(dict(kind.rates)),
            "PYTHONPATH": ":".join([str(CRASH_POINTS), *([package] if package else [])]),
        }
        self.crew = Crew(self.home, f"'foo={CAPACITY.foo:g} mem=4GB'", settings)
        self.monkey = Monkey(self.home, self.crew, self._dice)
        self._plans: list[Plan] = []
        for _ in range(runs):
            plan = plan_with_tags(self._dice, self._plans) if kind.has_all_tags else plan_for_dice(self._dice)
            self._plans.append(plan)
        self._unstaged = list(reversed(self._plans))
        self.aftermath = Aftermath(self.home, self.crew, self._plans, kind.capacity)
        self.people = People(self.home, self.crew, random.Random(f"{seed} people"), self._plans)
        self._slowest_stop = 0.0
        self._stuck: list[Violation] = []

    def run(self, seconds: float) -> Outcome:
        """Runs the whole round, with chaos for at most that long."""
        begun = time.monotonic()
        try:
            self.home.prepare()
            try:
                self._chaos(begun + seconds)
                self._stop_all()
                self.aftermath.work_off()
            except AssertionError as e:
                self._stuck.append(Violation("stuck", str(e)))
            seen = self.aftermath.look(self.monkey.kills, self.people.deeds)
        finally:
            self.box.end_processes()
        return Outcome(
            self._kind,
            self._seed,
            time.monotonic() - begun,
            len(self.crew.schedulers),
            self._slowest_stop,
            seen,
            [*self._stuck, *self.aftermath.stuck, *invariants.violations(seen, self._kind.rules), *self._too_slow()],
        )

    # Chaos

    def _chaos(self, deadline: float) -> None:
        """Stages runs, replaces dead schedulers and kills processes, until no run waits or the time is over."""
        self.home.set_crash_points(True)
        if self._kind.has_queue:
            self.crew.start_queue()
        next_kill = time.monotonic() + self._interval()
        next_deed = time.monotonic() if self._kind.deeds else math.inf
        self._stage_some(len(self._plans) // 2 if self._kind.backlog is None else self._kind.backlog)
        waiting, next_look = 1, 0.0
        while time.monotonic() < deadline and (self._unstaged or waiting):
            if time.monotonic() >= next_look:
                waiting, next_look = len(self._waiting()), time.monotonic() + _LOOK
                self._stage_some((self._kind.backlog or 0) - waiting)
            self._replace_dead()
            if self._kind.backlog is None:
                self._stage_some(int(self._dice.random() < 0.1) * self._dice.randint(1, 5))
            if time.monotonic() >= next_kill:
                self.monkey.act(self._kind.kills)
                next_kill = time.monotonic() + self._interval()
            if time.monotonic() >= next_deed:
                self.people.act(self._kind.deeds)
                next_deed = time.monotonic() + self._dice.expovariate(1 / self._kind.seconds_between_deeds)
            self.monkey.resume()
            threading.Event().wait(_TICK)
        if self._kind.backlog is None:
            self._stage_some(len(self._unstaged))
        else:  # the time is over for runs that are not staged yet
            del self._plans[len(self._plans) - len(self._unstaged) :]
        self.monkey.resume(is_over=True)
        if self._kind.deeds:
            self.people.rest()
        self.home.set_crash_points(False)

    def _interval(self) -> float:
        return self._dice.expovariate(1 / self._kind.seconds_between_kills)

    def _waiting(self) -> list[str]:
        may_start = [plan for plan in self._plans if not plan.never_starts and not plan.after]
        return self.home.markers(may_start, "STAGED") + self.home.markers(may_start, "PENDING")

    def _stage_some(self, count: int) -> None:
        for _ in range(min(count, len(self._unstaged))):
            self.home.stage(self._unstaged.pop())

    def _replace_dead(self) -> None:
        while len(self.crew.living()) < self._kind.most_schedulers:
            workers = CAPACITY.runs if self._kind.capacity else self._dice.randint(1, 3)
            self.crew.start_scheduler(workers, self._crash_points)

    # After it

    def _stop_all(self) -> None:
        """Stops all live schedulers; this must not take longer than Guild waits."""
        begun = time.monotonic()
        living = self.crew.living()
        for scheduler in living:
            scheduler.stop()
        wait_until(lambda: not self.crew.living(), 2 * LONGEST_STOP, "the end of the schedulers")
        self._slowest_stop = time.monotonic() - begun if living else 0.0
        self.crew.stop_queue()

    def _too_slow(self) -> Iterator[Violation]:
        if self._slowest_stop > LONGEST_STOP:
            yield Violation("slow to stop", f"schedulers took {self._slowest_stop:.1f} seconds to stop")
