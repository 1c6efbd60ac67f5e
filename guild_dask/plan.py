"""Which staged runs start now, on which worker, and why the others wait.

Pure: values in, values out. Runs come in the order in which they should start. Each takes one slot of one worker and
the amounts that it asks for. A run that fits may pass an earlier one that does not; a run that has been passed over
PATIENCE times has what it needs reserved, so that it cannot wait for ever.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from guild_dask.devices import GPU, could_be_given, is_pin
from guild_dask.reasons import (
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
from guild_dask.resources import fits
from guild_dask.rooms import TIME, Room, Worker

__all__ = ["DAY", "PATIENCE", "Kind", "Plan", "StagedRun", "Worker", "is_impossible", "kind_of", "place_for", "plan"]

# How many later runs may start ahead of a run that waits for something they use too. Large enough that a mixed queue
# packs well, small enough that a big run starts within a few rounds of the small ones.
PATIENCE = 16

# How long, in microseconds, a run has to wait to be level with one of the next higher priority that comes now: a day.
DAY = 86_400_000_000


@dataclass(frozen=True)
class StagedRun:
    """A run that waits, and what it asks for."""

    id: str
    asks: Mapping[str, float] = field(default_factory=dict)


# What a run asks for, as a value that can be looked up. Runs of one kind fit in the same places.
Kind = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Plan:
    """What to start where, why the rest waits, who was passed over how often, and who gets which devices."""

    starts: tuple[tuple[StagedRun, str], ...]
    held: Mapping[str, Reason]
    passed: Mapping[str, int]
    devices: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # run id -> device -> its share of it


class _Passes:
    """Counts, for each kind of request, the starts that used something it asks for."""

    def __init__(self) -> None:
        self._counts: dict[Kind, int] = {}

    def so_far(self, kind: Kind) -> int:
        return self._counts.setdefault(kind, 0)

    def started(self, kind: Kind) -> None:
        names = {_common(name) for name, _ in kind if name != TIME}  # nobody takes of the time that a worker lasts
        for other in self._counts:
            if any(_common(name) in names for name, _ in other):
                self._counts[other] += 1


def _common(name: str) -> str:
    """Returns what a device and the devices it is one of are counted as."""
    return GPU if is_pin(name) else name


def plan(
    staged: Sequence[StagedRun],
    workers: Sequence[Worker],
    passed: Mapping[str, int] | None = None,
    patience: int = PATIENCE,
) -> Plan:
    """Returns the starts that fit now, in order, and a reason for every other run."""
    rooms = _rooms(workers)
    before = passed or {}
    passes = _Passes()
    starts: list[tuple[StagedRun, str]] = []
    given: dict[str, Mapping[str, float]] = {}
    held: dict[str, Reason] = {}
    waiting: dict[str, tuple[Kind, int]] = {}
    # Nothing comes free while a plan is made: what did not fit for one run does not fit for the next of its kind.
    reasons: dict[Kind, Reason] = {}
    for run in staged:
        kind = kind_of(run.asks)
        asks = dict(kind)
        room = None if kind in reasons else _best_room(rooms, asks)
        if room:
            given[run.id] = room.take(asks)
            starts.append((run, room.worker.name))
            passes.started(kind)
            continue
        reason = reasons.get(kind) or _reason(rooms, asks)
        reasons[kind] = held[run.id] = reason
        if not isinstance(reason, IMPOSSIBLE):
            waiting[run.id] = (kind, passes.so_far(kind))
            if before.get(run.id, 0) >= patience:
                _reserve(rooms, run, asks)
    counts = {run_id: before.get(run_id, 0) + passes.so_far(kind) - n for run_id, (kind, n) in waiting.items()}
    devices = {run_id: shares for run_id, shares in given.items() if shares}
    return Plan(tuple(starts), held, {run_id: count for run_id, count in counts.items() if count}, devices)


def place_for(since: int, priority: int) -> int:
    """Returns where a run stands in the line: the lowest comes first.

    Higher priorities come first, and within one priority what was staged first. As a run gains a point of priority
    for each day that it waits, none can be overtaken for ever, and no place changes while time goes by.
    """
    return since - priority * DAY


def kind_of(asks: Mapping[str, float]) -> Kind:
    """Returns what is asked for as a value that can be looked up; nothing of something is nothing."""
    return tuple(sorted((name, amount) for name, amount in asks.items() if amount > 0))


def is_impossible(run: StagedRun, workers: Sequence[Worker]) -> Reason | None:
    """Returns why the run could not start on these workers even if all of them were idle, if so."""
    return _impossible(_rooms(workers), dict(kind_of(run.asks)))


def _rooms(workers: Iterable[Worker]) -> list[Room]:
    return [Room(worker) for worker in workers if worker.slots > 0]


def _best_room(rooms: Iterable[Room], asks: Mapping[str, float]) -> Room | None:
    """Returns the room that the run may take with the least to spare, so that large gaps stay for large runs."""
    able = [room for room in rooms if room.could_hold(asks) and room.may_take(asks)]
    return min(able, key=_spare) if able else None


def _spare(room: Room) -> tuple[float, int]:
    total = room.worker.total
    shares = [room.free[name] / total[name] for name in total if total[name] > 0]
    return (sum(shares), -room.slots)


def _reserve(rooms: Iterable[Room], run: StagedRun, asks: Mapping[str, float]) -> None:
    """Keeps what the run needs on the worker that has most of it already, if one is not yet kept for another."""
    able = [room for room in rooms if room.reserved_for is None and room.could_hold(asks)]
    if able:
        min(able, key=lambda room: _missing(room, asks)).reserve(run.id, asks)


def _missing(room: Room, asks: Mapping[str, float]) -> float:
    missing = (max(0.0, amount - room.available(name, amount)) / amount for name, amount in asks.items())
    return sum(missing) + (room.slots < 1)


def _reason(rooms: Sequence[Room], asks: Mapping[str, float]) -> Reason:
    if not rooms:
        return NoWorker()
    impossible = _impossible(rooms, asks)
    if impossible:
        return impossible
    able = [room for room in rooms if room.could_hold(asks)]
    if all(room.worker.is_to_come for room in able):
        return NoWorker()
    kept = next((room for room in able if room.has_room(asks)), None)
    if kept and kept.reserved_for:
        return Reserved(kept.reserved_for)
    with_slot = [room for room in able if room.slots > 0]
    if not with_slot:
        return NoFreeSlot(sum(room.worker.slots for room in able))
    nearest = min(with_slot, key=lambda room: _missing(room, asks))
    free = {name: nearest.available(name, amount) for name, amount in asks.items()}
    # Of several devices each may be free for itself, and all the same not all of them together.
    name = next((name for name in sorted(asks) if not fits(asks[name], free[name])), max(asks, key=is_pin))
    return InUse(name, asks[name], free[name])


def _impossible(rooms: Sequence[Room], asks: Mapping[str, float]) -> Reason | None:
    """Returns why no worker could hold the run even when idle, or None if one could (or there is none to judge by)."""
    if not rooms or any(room.could_hold(asks) for room in rooms):
        return None
    undefined = tuple(sorted(name for name in asks if not any(room.defines(name) for room in rooms)))
    if undefined:
        return NotDefined(undefined)
    for name in sorted(asks):
        largest = max(room.most(name) for room in rooms)
        if asks[name] > largest:
            if name == TIME:
                return TooLong(asks[name], largest)
            return TooLarge(name, asks[name], largest)
    if any(room.devices for room in rooms) and not could_be_given(asks.get(GPU, 0.0)):
        return NotWhole(GPU, asks[GPU])
    return NoSingleWorker(tuple(sorted(asks)))
