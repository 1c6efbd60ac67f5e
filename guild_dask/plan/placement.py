"""Which staged runs start now, on which worker, and why the others wait.

Pure: values in, values out. Runs come in the order in which they should start. Each takes one slot of one worker and
the amounts that it asks for. A run that fits may pass an earlier one that does not; a run that has been passed over
PATIENCE times has what it needs reserved, so that it cannot wait for ever.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from guild_dask.plan.capacity import TIME, Room, Worker
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


class _Line:
    """What is known, while a plan is made, of the runs that ask for the same. Nothing comes free in that time.

    So a worker that has no room for one of them has none for the next, and the reason of one is that of all behind it.
    """

    def __init__(self, kind: Kind, rooms: Iterable[Room]) -> None:
        self.asks = dict(kind)
        # Nobody takes of the time that a worker lasts.
        self.names = frozenset(_common(name) for name in self.asks if name != TIME)
        self.able = [room for room in rooms if room.could_hold(self.asks)]
        self._open = self._unreserved = list(self.able)
        self.reason: Reason | None = None
        self.passes = 0  # starts of later runs that used something these ask for

    def best_room(self) -> Room | None:
        """Returns the room that a run may take with the least to spare, so that large gaps stay for large runs."""
        while self._open:
            room = min(self._open, key=_spare)
            if room.may_take(self.asks):
                return room
            self._open = [other for other in self._open if other is not room]
        return None

    def reserve(self, run_id: str) -> None:
        """Keeps what a run needs on the worker that has most of it already, if one is not yet kept for another."""
        if self._unreserved:
            self._unreserved = [room for room in self._unreserved if room.reserved_for is None]
        if self._unreserved:
            min(self._unreserved, key=lambda room: _missing(room, self.asks)).reserve(run_id, self.asks)


def _spare(room: Room) -> tuple[float, int]:
    return room.spare


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
    lines = _Lines(rooms)
    before = passed or {}
    starts: list[tuple[StagedRun, str]] = []
    given: dict[str, Mapping[str, float]] = {}
    held: dict[str, Reason] = {}
    waiting: list[tuple[str, _Line, int]] = []
    for run in staged:
        line = lines.of(run.asks)
        room = None if line.reason else line.best_room()
        if room:
            given[run.id] = room.take(line.asks)
            starts.append((run, room.worker.name))
            lines.count_start(line)
            continue
        line.reason = held[run.id] = line.reason or _reason(rooms, line)
        if not isinstance(line.reason, IMPOSSIBLE):
            waiting.append((run.id, line, line.passes))
            if before.get(run.id, 0) >= patience:
                line.reserve(run.id)
    counts = {run_id: before.get(run_id, 0) + line.passes - n for run_id, line, n in waiting}
    devices = {run_id: shares for run_id, shares in given.items() if shares}
    return Plan(tuple(starts), held, {run_id: count for run_id, count in counts.items() if count}, devices)


class _Lines:
    """The lines of a plan, by what their runs ask for."""

    def __init__(self, rooms: Sequence[Room]) -> None:
        self._rooms = rooms
        self._lines: dict[Kind, _Line] = {}
        self._known: dict[int, _Line] = {}  # by identity: runs with the same tags have the same value

    def of(self, asks: Mapping[str, float]) -> _Line:
        line = self._known.get(id(asks))
        if line is None:
            kind = kind_of(asks)
            line = self._lines.get(kind) or self._lines.setdefault(kind, _Line(kind, self._rooms))
            self._known[id(asks)] = line
        return line

    def count_start(self, started: _Line) -> None:
        """Counts a start for those in other lines that were passed over by it."""
        for line in self._lines.values():
            if line.reason and not line.names.isdisjoint(started.names):
                line.passes += 1


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


def _missing(room: Room, asks: Mapping[str, float]) -> float:
    missing = (max(0.0, amount - room.available(name, amount)) / amount for name, amount in asks.items())
    return sum(missing) + (room.slots < 1)


def _has_all(room: Room, asks: Mapping[str, float]) -> bool:
    return all(fits(amount, room.available(name, amount)) for name, amount in asks.items())


def _reason(rooms: Sequence[Room], line: _Line) -> Reason:
    asks, able = line.asks, line.able
    if not rooms:
        return NoWorker()
    impossible = None if able else _impossible(rooms, asks)
    if impossible:
        return impossible
    if all(room.worker.is_to_come for room in able):
        return NoWorker()
    kept = next((room for room in able if room.has_room(asks)), None)
    if kept and kept.reserved_for:
        return Reserved(kept.reserved_for)
    with_slot = [room for room in able if room.slots > 0]
    if not with_slot and any(_has_all(room, asks) for room in able):
        return NoFreeSlot(sum(room.worker.slots for room in able))
    # Where a slot is missing, too, runs may end that have no more to give than that.
    nearest = min(with_slot or able, key=lambda room: _missing(room, asks))
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
