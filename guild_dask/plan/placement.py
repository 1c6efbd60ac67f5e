"""Which staged runs start now, on which worker, and why the others wait.

Pure: values in, values out. Runs are given in the order in which they should start. Each takes one slot of one worker
and the amounts that it requests. A run that fits may pass an earlier one that does not. For a run that has been passed
over PATIENCE times, what it requests is reserved, so that it cannot wait for ever.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from guild_dask.plan.capacity import TIME, FreeCapacity, Worker
from guild_dask.plan.devices import GPU, could_be_given, is_pin
from guild_dask.plan.reasons import (
    IMPOSSIBLE,
    InUse,
    NoFreeSlot,
    NoSingleWorker,
    NotDefined,
    NotWhole,
    NoWorker,
    Reason,
    Reserved,
    TooLarge,
    TooLong,
)
from guild_dask.plan.resources import fits

__all__ = ["DAY", "PATIENCE", "Kind", "Plan", "StagedRun", "Worker", "is_impossible", "kind_of", "plan", "position_for"]

# How many later runs may start before a run that waits for something that they use, too. Large enough for a mixed queue
# to pack well, small enough for a large run to start within a few rounds of the small ones.
PATIENCE = 16

# A day in microseconds: the wait that makes up for one point of priority.
DAY = 86_400_000_000


@dataclass(frozen=True)
class StagedRun:
    """A waiting run, and the amounts that it requests."""

    id: str
    requests: Mapping[str, float] = field(default_factory=dict)


# The requests of a run as a hashable value. Runs of one kind fit on the same workers.
Kind = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Plan:
    """Which runs start where, why the others wait, how often each was passed over, and who gets which devices."""

    starts: tuple[tuple[StagedRun, str], ...]
    held: Mapping[str, Reason]
    passed: Mapping[str, int]
    devices: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # run id -> device -> its share of it


class _Queue:
    """The waiting runs of one kind, while a plan is made.

    Nothing becomes free in that time: a worker that cannot take one of them cannot take the next one either, and the
    reason why one of them waits is that of all behind it.
    """

    def __init__(self, kind: Kind, capacities: Iterable[FreeCapacity]) -> None:
        self.requests = dict(kind)
        # Runs do not compete for time.
        self.names = frozenset(_shared_name(name) for name in self.requests if name != TIME)
        self.able = [capacity for capacity in capacities if capacity.could_hold(self.requests)]
        self._open = self._unreserved = list(self.able)
        self.reason: Reason | None = None
        self.passes = 0  # starts of later runs that use something that these request

    def best_fit(self) -> FreeCapacity | None:
        """Returns the worker that can take a run with the least to spare, so that large gaps stay for large runs."""
        while self._open:
            capacity = min(self._open, key=_spare)
            if capacity.may_take(self.requests):
                return capacity
            self._open = [other for other in self._open if other is not capacity]
        return None

    def reserve(self, run_id: str) -> None:
        """Reserves what a run requests on the worker that lacks the least of it, if one has no reservation yet."""
        if self._unreserved:
            self._unreserved = [capacity for capacity in self._unreserved if capacity.reserved_for is None]
        if self._unreserved:
            nearest = min(self._unreserved, key=lambda capacity: _missing(capacity, self.requests))
            nearest.reserve(run_id, self.requests)


def _spare(capacity: FreeCapacity) -> tuple[float, int]:
    return capacity.spare


def _shared_name(name: str) -> str:
    """Returns the name under which runs compete for it: a particular device is one of the GPUs."""
    return GPU if is_pin(name) else name


def plan(
    staged: Sequence[StagedRun],
    workers: Sequence[Worker],
    passed: Mapping[str, int] | None = None,
    patience: int = PATIENCE,
) -> Plan:
    """Returns the starts that fit now, in order, and a reason for every other run."""
    capacities = _capacities(workers)
    queues = _Queues(capacities)
    before = passed or {}
    starts: list[tuple[StagedRun, str]] = []
    given: dict[str, Mapping[str, float]] = {}
    held: dict[str, Reason] = {}
    waiting: list[tuple[str, _Queue, int]] = []
    for run in staged:
        queue = queues.of(run.requests)
        capacity = None if queue.reason else queue.best_fit()
        if capacity:
            given[run.id] = capacity.take(queue.requests)
            starts.append((run, capacity.worker.name))
            queues.count_start(queue)
            continue
        queue.reason = held[run.id] = queue.reason or _reason(capacities, queue)
        if not isinstance(queue.reason, IMPOSSIBLE):
            waiting.append((run.id, queue, queue.passes))
            if before.get(run.id, 0) >= patience:
                queue.reserve(run.id)
    counts = {run_id: before.get(run_id, 0) + queue.passes - n for run_id, queue, n in waiting}
    devices = {run_id: shares for run_id, shares in given.items() if shares}
    return Plan(tuple(starts), held, {run_id: count for run_id, count in counts.items() if count}, devices)


class _Queues:
    """The queues of a plan, one for each kind of run."""

    def __init__(self, capacities: Sequence[FreeCapacity]) -> None:
        self._capacities = capacities
        self._queues: dict[Kind, _Queue] = {}
        self._known: dict[int, _Queue] = {}  # by identity: runs with the same tags share one mapping

    def of(self, requests: Mapping[str, float]) -> _Queue:
        queue = self._known.get(id(requests))
        if queue is None:
            kind = kind_of(requests)
            queue = self._queues.get(kind) or self._queues.setdefault(kind, _Queue(kind, self._capacities))
            self._known[id(requests)] = queue
        return queue

    def count_start(self, started: _Queue) -> None:
        """Counts a start for the waiting runs of other kinds that it passed over."""
        for queue in self._queues.values():
            if queue.reason and not queue.names.isdisjoint(started.names):
                queue.passes += 1


def position_for(since: int, priority: int) -> int:
    """Returns a run's key in the order of the queue: the lowest key is first.

    Higher priorities come first, and within one priority the run that was staged first. A run gains a point of priority
    for each day that it waits, so it cannot be overtaken for ever. Keys do not change with time.
    """
    return since - priority * DAY


def kind_of(requests: Mapping[str, float]) -> Kind:
    """Returns the requests as a hashable value; requests for 0 of a resource are left out."""
    return tuple(sorted((name, amount) for name, amount in requests.items() if amount > 0))


def is_impossible(run: StagedRun, workers: Sequence[Worker]) -> Reason | None:
    """Returns why the run could not start on these workers even if all of them were idle, or None if it could."""
    return _impossible(_capacities(workers), dict(kind_of(run.requests)))


def _capacities(workers: Iterable[Worker]) -> list[FreeCapacity]:
    return [FreeCapacity(worker) for worker in workers if worker.slots > 0]


def _missing(capacity: FreeCapacity, requests: Mapping[str, float]) -> float:
    missing = (max(0.0, amount - capacity.available(name, amount)) / amount for name, amount in requests.items())
    return sum(missing) + (capacity.slots < 1)


def _has_all(capacity: FreeCapacity, requests: Mapping[str, float]) -> bool:
    return all(fits(amount, capacity.available(name, amount)) for name, amount in requests.items())


def _reason(capacities: Sequence[FreeCapacity], queue: _Queue) -> Reason:
    requests, able = queue.requests, queue.able
    impossible = None if able else _impossible(capacities, requests)
    if impossible:
        return impossible
    if all(capacity.worker.is_to_come for capacity in able):
        return NoWorker()
    kept = next((capacity for capacity in able if capacity.is_enough(requests)), None)
    if kept and kept.reserved_for:
        return Reserved(kept.reserved_for)
    with_slot = [capacity for capacity in able if capacity.slots > 0]
    if not with_slot and any(_has_all(capacity, requests) for capacity in able):
        return NoFreeSlot(sum(capacity.worker.slots for capacity in able))
    # On a worker without a free slot, the runs that end next may free a slot only, and nothing that is requested.
    nearest = min(with_slot or able, key=lambda capacity: _missing(capacity, requests))
    free = {name: nearest.available(name, amount) for name, amount in requests.items()}
    # Each of several requested devices may be free by itself, although they are not free together.
    name = next((name for name in sorted(requests) if not fits(requests[name], free[name])), max(requests, key=is_pin))
    return InUse(name, requests[name], free[name])


def _impossible(capacities: Sequence[FreeCapacity], requests: Mapping[str, float]) -> Reason | None:
    """Returns why no worker could hold the run even when idle; None if one could, or if there is no worker for it."""
    capacities = [capacity for capacity in capacities if capacity.is_for(requests)]
    if not capacities or any(capacity.could_hold(requests) for capacity in capacities):
        return None
    undefined = tuple(sorted(name for name in requests if not any(each.defines(name) for each in capacities)))
    if undefined:
        return NotDefined(undefined)
    for name in sorted(requests):
        largest = max(capacity.most(name) for capacity in capacities)
        if requests[name] > largest:
            if name == TIME:
                return TooLong(requests[name], largest)
            return TooLarge(name, requests[name], largest)
    if any(capacity.devices for capacity in capacities) and not could_be_given(requests.get(GPU, 0.0)):
        return NotWhole(GPU, requests[GPU])
    return NoSingleWorker(tuple(sorted(requests)))
