"""The staged runs as last seen: what each asks for, and what has been said about it."""

import bisect
import heapq
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from guild_dask.home.listing import Listing
from guild_dask.home.run_directory import Staged
from guild_dask.plan import dependencies
from guild_dask.plan.capacity import TIME
from guild_dask.plan.dependencies import Links
from guild_dask.plan.devices import asks_with_pins
from guild_dask.plan.placement import Kind, StagedRun, Worker, is_impossible, kind_of, place_for
from guild_dask.plan.reasons import (
    AfterRuns,
    AnyReason,
    Broken,
    Hold,
    IsScheduler,
    NotDefined,
    Obstacle,
    Reason,
    Reserved,
)
from guild_dask.plan.resources import MEMORY
from guild_dask.plan.tags import Demands, few_bytes
from guild_dask.scheduler import messages
from guild_dask.scheduler.dependency_lookup import Awaited, Find
from guild_dask.scheduler.ledger import Ledger

log = logging.getLogger("guild")

# How many waiting runs are spoken of at a time. It takes as long to say it as to read them, and what starts should not
# have to wait until all of it has been said.
_AT_ONCE = 500

# How many of the runs that come after others are shown to those who look.
_MOST_SHOWN = 100


class WaitingRuns:
    """The waiting runs, with those that ask for the same in one line, in the order in which they should start.

    A run that comes after others is in no line until they have ended; `find` tells what has become of those.
    """

    def __init__(
        self,
        ledger: Ledger,
        find: Find,
        time_of: Callable[[Demands], float | None] = lambda _demands: None,
        has_devices: bool = False,
    ) -> None:
        self._ledger = ledger
        self._time_of = time_of  # how long a run may take, where workers do not last for ever
        self._has_devices = has_devices  # GPUs are devices with names, rather than an amount
        self._awaited = Awaited(find, ledger.in_flight)
        self._runs: dict[str, tuple[Staged, Demands]] = {}
        self._lines: dict[Kind, list[tuple[int, str]]] = {}
        self._places: dict[str, tuple[Kind, tuple[int, str]]] = {}  # of those in a line: in which, and where
        self._links: dict[str, Links] = {}  # of those that come after others
        self._holds: dict[str, Hold] = {}  # of those of them that are in no line
        self._untold: set[str] = set()  # of those in a line, of which it has not been said that they are in the plan
        self._reasons: dict[Kind, Reason | None] = {}  # why no run of a kind can start, as it was last said
        self._memory = 0.0  # the most that a worker has
        self._doubts: set[str] = set()  # what was said of tags that mean something else, perhaps
        self._set_aside: dict[str, Staged] = {}  # cannot be started as they are
        self._to_set_aside: set[str] = set()
        self._obstacles: dict[str, Obstacle] = {}  # of those that are set aside, or to be
        self._broken: dict[str, str] = {}
        self.has_more_to_say = False  # of runs that wait
        self.has_hope = False  # a run waits for one that goes on, here or elsewhere

    def is_awaited(self, run_id: str) -> bool:
        """Tells whether the end of a run may be what another one waits for."""
        return bool(self._links) and self._awaited.is_meant(run_id)

    @property
    def left(self) -> int:
        """Returns how many runs are staged, those that cannot be started or read included."""
        return len(self._runs) + len(self._set_aside) + len(self._broken)

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, run_id: str) -> tuple[Staged, Demands]:
        return self._runs[run_id]

    def first(self, count: int) -> list[StagedRun]:
        """Returns the first so many of each line, in order. No more of a line can start when so many slots are free."""
        heads = [line[:count] for line in self._lines.values()]
        return [StagedRun(run_id, self._asks(run_id)) for _, run_id in heapq.merge(*heads)]

    def _asks(self, run_id: str) -> Mapping[str, float]:
        demands = self._runs[run_id][1]
        seconds = self._time_of(demands)
        return {**demands.amounts, TIME: seconds} if seconds else demands.amounts

    @property
    def due(self) -> float:
        """Returns when to go on with what is to be said, by time.monotonic()."""
        return 0.0 if self.has_more_to_say else math.inf

    def start(self, run_id: str) -> None:
        """Takes out a run that starts, of which something has been said by then."""
        if run_id in self._untold:
            self._tell(run_id, None)
        self.take(run_id)

    def take(self, run_id: str) -> None:
        """Takes out a run that is waiting no more."""
        if run_id not in self._holds:
            self._leave_line(run_id)
        self._holds.pop(run_id, None)
        self._links.pop(run_id, None)
        del self._runs[run_id]

    def _join_line(self, run_id: str) -> None:
        run, demands = self._runs[run_id]
        kind, place = kind_of(self._asks(run_id)), (place_for(run.since, demands.priority), run_id)
        self._places[run_id] = kind, place
        bisect.insort(self._lines.setdefault(kind, []), place)
        self._untold.add(run_id)

    def _leave_line(self, run_id: str) -> None:
        kind, place = self._places.pop(run_id)
        line = self._lines[kind]
        del line[bisect.bisect_left(line, place)]
        if not line:
            del self._lines[kind]
        self._untold.discard(run_id)

    def kind(self, run_id: str) -> Kind:
        """Returns what a run that is in a line asks for."""
        return self._places[run_id][0]

    def reason(self, kind: Kind) -> Reason | None:
        """Returns why no run of a kind could ever start, if so, as it was last said."""
        return self._reasons.get(kind)

    def kinds(self) -> dict[Kind, int]:
        """Returns how many wait of each kind."""
        return {kind: len(line) for kind, line in self._lines.items()}

    def problems(self) -> dict[str, AnyReason]:
        """Returns the first of the staged runs that cannot be started as they are, with why."""
        found: dict[str, AnyReason] = {run_id: self._obstacles[run_id] for run_id in self._set_aside}
        found.update(itertools.islice(self._holds.items(), _MOST_SHOWN))
        return found | {run_id: Broken(problem) for run_id, problem in self._broken.items()}

    @property
    def held(self) -> int:
        """Returns how many of those there are."""
        return len(self._set_aside) + len(self._holds) + len(self._broken)

    def set_aside(self, run_id: str, obstacle: Obstacle) -> None:
        """Takes out a run that cannot be started as it is; it comes back when it is staged or tagged anew."""
        self._obstacles[run_id] = obstacle
        if run_id in self._runs:
            self._set_aside[run_id] = self._runs[run_id][0]
            self.take(run_id)
        else:
            self._to_set_aside.add(run_id)  # it has just been staged again

    def update(self, listing: Listing) -> None:
        """Takes in what was found in the runs directory, and says which directories cannot be read."""
        self.has_more_to_say = False
        self._let_go(listing)
        self._broken = dict(listing.broken)
        for run in listing.staged:
            if run.id in self._to_set_aside:
                self._to_set_aside.discard(run.id)
                self._set_aside[run.id] = run
            if self._set_aside.get(run.id) == run:
                continue
            self._set_aside.pop(run.id, None)
            known = self._runs.get(run.id)
            if known and known[0] == run:
                continue
            if known:
                self.take(run.id)
            if run.is_queue:
                self._leave_to_user(run)
            else:
                self._take_in(run)
        self._hold_back()
        kept = self._set_aside.keys() | self._to_set_aside
        self._obstacles = {run_id: each for run_id, each in self._obstacles.items() if run_id in kept}
        for run_id, problem in listing.broken.items():
            if self._ledger.is_news(run_id, problem):
                log.warning("Ignoring staged run %s: %s", run_id, problem)

    def _leave_to_user(self, run: Staged) -> None:
        """Sets a scheduler aside: started here, it would hold a slot until it is stopped."""
        self._set_aside[run.id] = run
        self._obstacles[run.id] = obstacle = IsScheduler(run.id)
        if self._ledger.is_news(run.id, obstacle):
            log.warning("Leaving run %s staged (%s)", run.id, obstacle)

    def _let_go(self, listing: Listing) -> None:
        for run_id in listing.gone:
            if run_id in self._runs:
                self.take(run_id)
            self._set_aside.pop(run_id, None)
        for run_id in (*listing.gone, *(self._broken.keys() - listing.broken.keys())):
            self._ledger.forget(run_id)

    def _take_in(self, run: Staged) -> None:
        demands = run.demands
        if self._has_devices:
            demands = replace(demands, amounts=asks_with_pins(demands.amounts, run.gpus))
        self._runs[run.id] = (run, demands)
        self._join_line(run.id)
        if demands.after or run.needs:
            self._links[run.id] = Links(demands.after, run.needs)

    def _hold_back(self) -> None:
        """Keeps runs out of their lines as long as they come after others that have not ended as they should."""
        references = {reference for link in self._links.values() for reference in link.references}
        decided = dependencies.decide(self._links, self._awaited.found(references, self._runs))
        for run_id in self._holds.keys() - decided.holds.keys():
            self._join_line(run_id)
        for run_id in decided.holds.keys() - self._holds.keys():
            self._leave_line(run_id)
        self._holds, self.has_hope = dict(decided.holds), decided.has_hope

    def tell_blocked(self, running: Iterable[str]) -> None:
        """Says once for each waiting run that runs of others hold it back."""
        text = ", ".join(running)
        for run_id in self._in_order():
            self._untold.add(run_id)
            if self._ledger.is_news(run_id, "waits for running"):
                log.info("Found staged run %s (waiting for runs to finish: %s)", run_id, text)

    def tell_places(self, workers: Sequence[Worker], may_start: bool = True) -> None:
        """Says once for each waiting run that it is in the plan, or why it cannot be; or for some, with more to say.

        While none may start, it is only said of those that never could.
        """
        reasons = {kind: is_impossible(StagedRun("", dict(kind)), workers) for kind in self._lines}
        for run_id, hold in self._holds.items():
            self._tell(run_id, hold)
        for kind, reason in reasons.items():
            if reason != self._reasons.get(kind):
                self._untold.update(run_id for _, run_id in self._lines[kind])
        self._reasons = reasons
        self._memory = max((worker.total.get(MEMORY, 0.0) for worker in workers), default=0.0)
        places = (self._places[run_id] for run_id in self._untold)
        to_tell = [place for kind, place in places if may_start or reasons[kind]]
        for _, run_id in heapq.nsmallest(_AT_ONCE, to_tell):
            self._tell(run_id, reasons[self._places[run_id][0]])
            self._untold.discard(run_id)
        self.has_more_to_say = len(to_tell) > _AT_ONCE

    def tell_held(self, held: Mapping[str, Reason]) -> None:
        """Says why runs wait, to those who want all the detail; that one is kept back for another, to everybody."""
        for run_id, reason in held.items():
            if self._ledger.held.get(run_id) != reason:
                log.log(logging.INFO if isinstance(reason, Reserved) else logging.DEBUG, "Run %s %s", run_id, reason)
        self._ledger.held = dict(held)

    def _tell(self, run_id: str, reason: Reason | Hold | None) -> None:
        run, demands = self._runs[run_id]
        before = self._ledger.told.get(run_id)
        # That a run waits for others is told once, however many of them are left.
        if not self._ledger.is_news(run_id, (run.tags, AfterRuns if isinstance(reason, AfterRuns) else reason)):
            return
        if not isinstance(before, tuple) or before[0] != run.tags:
            for part in demands.unreadable:
                log.warning("%s", part)
        doubt = few_bytes(run.tags, self._memory)
        if doubt and doubt not in self._doubts:
            self._doubts.add(doubt)
            log.warning("%s", doubt)
        if reason is None:
            log.info("%s", messages.starting(run_id, demands.amounts))
        elif isinstance(reason, NotDefined):
            log.info("Ignorning staged run %s (%s)", run_id, reason)
        elif isinstance(reason, AfterRuns):
            log.info("Found staged run %s (%s)", run_id, reason)
        else:
            log.warning("Leaving run %s staged (%s)", run_id, reason)

    def _in_order(self) -> list[str]:
        return [run_id for _, run_id in heapq.merge(*self._lines.values())]
