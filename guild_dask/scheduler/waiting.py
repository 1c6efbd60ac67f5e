"""The staged runs that this scheduler knows: which may start, in which order, and why the others are held. Pure."""

import bisect
import heapq
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from guild_dask.home.listing import Listing
from guild_dask.home.run_directory import Staged
from guild_dask.plan import dependencies
from guild_dask.plan.capacity import SEARCH, TIME
from guild_dask.plan.dependencies import Found, Links
from guild_dask.plan.devices import GPU, is_pin, requests_with_pins
from guild_dask.plan.placement import Kind, StagedRun, kind_of, position_for
from guild_dask.plan.reasons import Broken, Hold, IsScheduler, Obstacle
from guild_dask.plan.tags import obstacle_in

# How many of the runs that depend on others are listed for observers.
_MOST_LISTED = 100


@dataclass(frozen=True)
class Demand:
    """What is known of all runs of this scheduler when their requests are read."""

    has_devices: bool = False  # GPUs are devices with names, rather than an amount
    do_workers_end: bool = False  # a worker may end before a run does, so a run's time limit counts
    time_limit: float | None = None  # of runs that have none of their own

    def requests_of(self, run: Staged) -> Mapping[str, float]:
        """Returns the amounts that a run requests, and the very devices that it was staged for."""
        if run.is_search:
            return {SEARCH: 1.0}
        amounts = run.requirements.amounts
        return requests_with_pins(amounts, run.gpus) if self.has_devices else amounts

    def obstacle_for(self, run: Staged) -> Obstacle | None:
        """Returns why a run cannot be started as it is, by what it is and by its tags."""
        if run.is_queue:
            return IsScheduler(run.id)
        return obstacle_in(run.requirements, self.has_devices) if run.requirements.unreadable else None

    def sees_no_device(self, run: Staged) -> bool:
        """Returns whether a run that requests no device sees none, though the workers have some."""
        if run.is_search or not self.has_devices:
            return False
        return not any(is_pin(name) or name == GPU for name in self.requests_of(run))

    def candidate_for(self, run: Staged) -> StagedRun:
        """Returns a run as the plan sees it; its time limit is a request where workers end."""
        requests = self.requests_of(run)
        seconds = (
            (run.requirements.time_limit or self.time_limit) if self.do_workers_end and not run.is_search else None
        )
        return StagedRun(run.id, {**requests, TIME: seconds} if seconds else requests)


@dataclass
class Changes:
    """Which runs joined a queue or left one since the last call of take_changes()."""

    joined: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)


class WaitingRuns:
    """The staged runs. Those that may start are in queues: one for each kind, in the order in which they should start.

    A run that depends on others is in none until they have ended as it requires.
    """

    def __init__(self, demand: Demand | None = None) -> None:
        self._demand = demand or Demand()
        # All staged runs that are in a queue or have a hold; `_unstartable` and `_broken` are not among them.
        self._runs: dict[str, tuple[Staged, StagedRun]] = {}
        self._queues: dict[Kind, list[tuple[int, str]]] = {}
        # For each run in a queue: which one, and its key there.
        self._positions: dict[str, tuple[Kind, tuple[int, str]]] = {}
        # For each run that depends on others, what it depends on.
        self._links: dict[str, Links] = {}
        # For each run that must wait for others, why; it is in no queue.
        self._holds: dict[str, Hold] = {}
        # Runs that cannot be started as they are. They come back when they are staged or tagged anew.
        self._unstartable: dict[str, Staged] = {}
        # Why runs cannot be started as they are: those in `_unstartable`, and those that will be when they are listed.
        self._obstacles: dict[str, Obstacle] = {}
        self._broken: dict[str, str] = {}
        # Whether a run waits for one that goes on, here or elsewhere.
        self.waits_for_active = False
        self._changes = Changes()

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._runs

    def __getitem__(self, run_id: str) -> Staged:
        return self._runs[run_id][0]

    def requests_of(self, run_id: str) -> Mapping[str, float]:
        """Returns the amounts that a run requests, with the very devices that it was staged for."""
        return self._demand.requests_of(self._runs[run_id][0])

    def sees_no_device(self, run_id: str) -> bool:
        """Returns whether a run sees no device because it requests none, though the workers have some."""
        return self._demand.sees_no_device(self._runs[run_id][0])

    # The queues

    def first(self, count: int) -> list[StagedRun]:
        """Returns the first `count` runs of each queue, in order: with `count` free slots, no more of one can start."""
        heads = [queue[:count] for queue in self._queues.values()]
        return [self._runs[run_id][1] for _, run_id in heapq.merge(*heads)]

    def in_order(self) -> list[str]:
        """Returns all runs in queues, in the order in which they should start."""
        return [run_id for _, run_id in heapq.merge(*self._queues.values())]

    def key(self, run_id: str) -> tuple[int, str]:
        """Returns what a run in a queue is ordered by."""
        return self._positions[run_id][1]

    def kind(self, run_id: str) -> Kind:
        """Returns what a run in a queue requests."""
        return self._positions[run_id][0]

    def kinds(self) -> dict[Kind, int]:
        """Returns how many runs of each kind are in the queue."""
        return {kind: len(queue) for kind, queue in self._queues.items()}

    def members(self, kind: Kind) -> list[str]:
        """Returns the runs of a kind, in order."""
        return [run_id for _, run_id in self._queues[kind]]

    def take(self, run_id: str) -> None:
        """Removes a run that does not wait any more."""
        if run_id not in self._holds:
            self._dequeue(run_id)
        self._holds.pop(run_id, None)
        self._links.pop(run_id, None)
        del self._runs[run_id]

    def take_changes(self) -> Changes:
        """Returns which runs joined and left queues since the last call."""
        changes, self._changes = self._changes, Changes()
        return changes

    def _enqueue(self, run_id: str) -> None:
        run, candidate = self._runs[run_id]
        kind, position = kind_of(candidate.requests), (position_for(run.since, run.requirements.priority), run_id)
        self._positions[run_id] = kind, position
        bisect.insort(self._queues.setdefault(kind, []), position)
        self._changes.joined.add(run_id)
        self._changes.left.discard(run_id)

    def _dequeue(self, run_id: str) -> None:
        kind, position = self._positions.pop(run_id)
        queue = self._queues[kind]
        del queue[bisect.bisect_left(queue, position)]
        if not queue:
            del self._queues[kind]
        self._changes.left.add(run_id)
        self._changes.joined.discard(run_id)

    # What is held

    @property
    def holds(self) -> Mapping[str, Hold]:
        """Returns why runs wait for others."""
        return self._holds

    @property
    def broken(self) -> Mapping[str, str]:
        """Returns the staged runs that cannot be read, and why."""
        return self._broken

    @property
    def staged_count(self) -> int:
        """Returns how many runs are staged, held and unreadable ones included."""
        return len(self._runs) + self.unstartable_count

    @property
    def unstartable_count(self) -> int:
        """Returns how many staged runs cannot be started as they are, or cannot be read."""
        return len(self._unstartable) + len(self._broken)

    @property
    def held_count(self) -> int:
        """Returns how many staged runs are in no queue."""
        return self.unstartable_count + len(self._holds)

    def listed_holds(self) -> dict[str, Hold | Obstacle | Broken]:
        """Returns why runs are held: of those that depend on others the first hundred, and all others."""
        found: dict[str, Hold | Obstacle | Broken] = {run_id: self._obstacles[run_id] for run_id in self._unstartable}
        found |= itertools.islice(self._holds.items(), _MOST_LISTED)
        return found | {run_id: Broken(problem) for run_id, problem in self._broken.items()}

    def hold(self, run_id: str, obstacle: Obstacle) -> None:
        """Holds a run that cannot be started as it is, now or when it is listed again."""
        self._obstacles[run_id] = obstacle
        if run_id in self._runs:
            self._unstartable[run_id] = self._runs[run_id][0]
            self.take(run_id)

    # The runs directory

    def update(self, listing: Listing) -> dict[str, Obstacle]:
        """Takes in what changed in the runs directory, and returns the new runs that cannot be started as they are."""
        for run_id in listing.gone:
            if run_id in self._runs:
                self.take(run_id)
            self._unstartable.pop(run_id, None)
        self._broken = dict(listing.broken)
        new = [run for run in listing.staged if self._takes_in(run)]
        listed = {run.id for run in listing.staged}
        for run_id in [each for each in self._obstacles if each not in self._unstartable]:
            # A run that was just staged again is not listed yet; one that was listed and is not held has changed.
            if run_id in listed or run_id in listing.gone:
                del self._obstacles[run_id]
        return {run.id: obstacle for run in new if (obstacle := self._demand.obstacle_for(run))}

    def _takes_in(self, run: Staged) -> bool:
        """Takes in a run that is listed; False if it is known as it is."""
        before = self._unstartable.get(run.id)
        if before == run:
            return False
        if before is None and run.id in self._obstacles and run.id not in self._runs:
            self._unstartable[run.id] = run
            return False
        self._unstartable.pop(run.id, None)
        known = self._runs.get(run.id)
        if known and known[0] == run:
            return False
        if known:
            self.take(run.id)
        self._runs[run.id] = run, self._demand.candidate_for(run)
        self._enqueue(run.id)
        if run.requirements.after or run.needs:
            self._links[run.id] = Links(run.requirements.after, run.needs)
        return True

    # Dependencies

    def references(self) -> frozenset[str]:
        """Returns what runs name that they depend on."""
        return frozenset(reference for link in self._links.values() for reference in link.references)

    def has_dependents(self) -> bool:
        """Returns whether a run depends on another."""
        return bool(self._links)

    def hold_back(self, found: Mapping[str, Found]) -> None:
        """Takes runs out of their queues while they depend on others that have not ended, and puts them back after."""
        decided = dependencies.decide(self._links, found)
        for run_id in self._holds.keys() - decided.holds.keys():
            self._enqueue(run_id)
        for run_id in decided.holds.keys() - self._holds.keys():
            self._dequeue(run_id)
        self._holds, self.waits_for_active = dict(decided.holds), decided.waits_for_active
