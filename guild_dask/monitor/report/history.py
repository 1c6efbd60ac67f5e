"""The history of a scheduler, from its events: attempts on workers, use of resources, and waiting times. Pure."""

import heapq
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from guild_dask.home.outcome import End
from guild_dask.home.process_start import WARM, ProcessStart
from guild_dask.monitor.journal import BEGAN, LAST_HEARTBEAT
from guild_dask.monitor.state import EndedRun, WorkerState, ended_for_data, left_for_data
from guild_dask.plan import records
from guild_dask.plan.reasons import AnyReason

# The key for slots among the resources; scripts read it in `report --json`.
SLOTS = "runs"

# Seconds by which a run may seem to have started before the process that started it began.
_ROUNDING = 0.01

# The end of an attempt that is still running.
RUNNING = "running"


@dataclass(frozen=True)
class Span:
    """An attempt: where and when it ran, and how it ended.

    If the run outlived its scheduler, the span stops when the history does; the full duration is in `run`.
    """

    run: EndedRun
    start: float
    stop: float
    lane: int = 0  # index of the worker's slot


@dataclass(frozen=True)
class Use:
    """The used and total amount of a resource, as step functions over time."""

    name: str
    times: tuple[float, ...]
    used: tuple[float, ...]
    total: tuple[float, ...]

    @property
    def mean_share(self) -> float:
        """Returns the used share over the whole time."""
        pairs = list(zip(self.times, self.times[1:], self.used, self.total, strict=False))
        there = sum((stop - start) * total for start, stop, _, total in pairs)
        # When a worker is lost, its capacity ends before its runs do.
        return sum((stop - start) * min(used, total) for start, stop, used, total in pairs) / there if there else 0.0


@dataclass(frozen=True)
class History:
    """Everything that a report shows."""

    start: float
    stop: float
    is_over: bool
    is_killed: bool  # it ended without an event `stopped`
    workers: tuple[WorkerState, ...]
    spans: tuple[Span, ...]
    uses: tuple[Use, ...]
    ends: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[str, AnyReason | None] = field(
        default_factory=dict
    )  # staged runs at the end, and why they had not started
    pauses: tuple[tuple[float, float], ...] = ()  # when no process worked for the scheduler, between two that did

    @property
    def worked(self) -> float:
        """Returns for how many seconds the scheduler worked."""
        return self.stop - self.start - sum(max(0.0, end - begin) for begin, end in self.pauses)

    @property
    def unfinished(self) -> list[Span]:
        """Returns the attempts that did not complete, the latest first."""
        return [span for span in reversed(self.spans) if span.run.end not in (End.COMPLETED.value, RUNNING)]

    @property
    def waits(self) -> list[float]:
        """Returns how long each run waited."""
        return [span.run.waited for span in self.spans]

    def warm_starts(self) -> dict[str, "WarmStarts"]:
        """Returns what warm starts saved, for each operation that has any."""
        found = {name: warm_starts_in([span.run.start for span in spans]) for name, spans in self.operations().items()}
        return {name: starts for name, starts in found.items() if starts.count}

    def operations(self) -> dict[str, list[Span]]:
        """Returns the attempts by operation."""
        found: dict[str, list[Span]] = {}
        for span in self.spans:
            found.setdefault(span.run.operation, []).append(span)
        return found


@dataclass(frozen=True)
class WarmStarts:
    """The warm starts of one operation, and what they saved, in seconds."""

    count: int
    of: int  # all starts whose kind is recorded
    each: float  # the median of a warm start
    fresh: float  # the median of what a fresh process takes on the same workers
    saved: float  # by all of them together
    preload: float  # the most that preloaded modules saved, if every run that was started warm imports all of them


def warm_starts_in(starts: Sequence[ProcessStart]) -> WarmStarts:
    """Returns how much some starts of an operation saved."""
    warm = [start for start in starts if start.kind == WARM]
    return WarmStarts(
        len(warm),
        sum(bool(start.kind) for start in starts),
        median([start.seconds for start in warm]),
        median([start.fresh for start in warm]),
        sum(start.saved for start in warm),
        sum(start.preload for start in warm),
    )


@dataclass(frozen=True)
class EndedScheduler:
    """What is known about an ended scheduler besides its events."""

    last_heartbeat: float
    ends: Sequence[Mapping[str, Any]] = ()  # of runs that outlived it, in the form of events


def history_for(
    events: Sequence[Mapping[str, Any]],
    now: float,
    after: EndedScheduler | None = None,
    outlived: Sequence[Mapping[str, Any]] = (),
) -> History | None:
    """Returns the history, or None without events. Unreadable events are left out.

    `after` is given for a scheduler that has ended; without an event `stopped`, its history ends at its last heartbeat.
    `outlived` are the ends of runs that outlived a former process of a scheduler that is at work, as events.
    """
    if not events:
        return None
    is_stopped = events[-1]["event"] == "stopped"
    last = float(events[-1]["at"])
    stop = last if is_stopped else max(last, after.last_heartbeat if after else now)
    sessions = _sessions(events, stop)
    ends_after = after.ends if after else outlived
    spans = _with_lanes(_spans([*events, *ends_after], sessions, now if after else stop))
    pauses = tuple((end, begin) for (_, end), (begin, _) in itertools.pairwise(sessions))
    changes = list(_worker_changes(events, sessions))
    workers: dict[str, WorkerState] = {}
    for _, present in changes:
        workers.update({worker.name: worker for worker in present})
    ends: dict[str, int] = {}
    for span in spans:
        ends[span.run.end] = ends.get(span.run.end, 0) + 1
    start = float(events[0]["at"])
    uses = _uses(spans, changes, start, stop)
    left = left_for_data(events[-1].get("left"))
    is_over, is_killed = is_stopped or after is not None, not is_stopped and after is not None
    return History(start, stop, is_over, is_killed, tuple(workers.values()), tuple(spans), uses, ends, left, pauses)


def last_begin(events: Sequence[Mapping[str, Any]]) -> int:
    """Returns the index of the first event of the last process that worked for a scheduler."""
    return max((number for number, _ in enumerate(events) if _is_begin(events, number)), default=0)


def _is_begin(events: Sequence[Mapping[str, Any]], number: int) -> bool:
    return number == 0 or events[number]["event"] == BEGAN or events[number - 1]["event"] == "stopped"


def _sessions(events: Sequence[Mapping[str, Any]], stop: float) -> list[tuple[float, float]]:
    """Returns from when to when each process worked for a scheduler; the last one did so until `stop`.

    One that was killed did so until its last heartbeat or, if that is not known, until its last event.
    """
    begins = [number for number, _ in enumerate(events) if _is_begin(events, number)]
    found = []
    for number, following in itertools.pairwise([*begins, len(events)]):
        begin, end = float(events[number]["at"]), stop
        if following < len(events):
            heartbeat = events[following].get(LAST_HEARTBEAT)
            seen = [float(events[following - 1]["at"]), *([heartbeat] if isinstance(heartbeat, (int, float)) else [])]
            end = min(max(seen), float(events[following]["at"]))
        found.append((begin, max(begin, end)))
    return found


def unfinished_starts(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the events `started` without an event `ended`."""
    running: dict[str, Mapping[str, Any]] = {}
    for event in events:
        if event["event"] == "started":
            running[str(event.get("run"))] = event
        elif event["event"] == "ended":
            running.pop(str(event.get("run")), None)
    return list(running.values())


def _spans(events: Sequence[Mapping[str, Any]], sessions: Sequence[tuple[float, float]], now: float) -> list[Span]:
    """Returns the attempts; spans are cut where the process ends that started them, though a run may have continued."""
    spans: list[Span] = []
    going: dict[str, Any] = {"end": RUNNING, "exit_code": None, "used": {}}
    for event in (
        *(event for event in events if event["event"] == "ended"),
        *({**event, "at": now, "ran": now - float(event["at"]), **going} for event in unfinished_starts(events)),
    ):
        ended = _ended(event)
        if ended:
            start = ended.at - ended.ran
            stop = next((end for begin, end in reversed(sessions) if begin <= start + _ROUNDING), sessions[0][1])
            spans.append(Span(ended, start, max(start, min(ended.at, stop))))
    return sorted(spans, key=lambda span: (span.start, span.run.run))


def _ended(event: Mapping[str, Any]) -> EndedRun | None:
    try:
        return ended_for_data(event)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _with_lanes(spans: list[Span]) -> list[Span]:
    """Returns the spans with lanes, so that spans in a worker's lane do not overlap."""
    free: dict[str, list[int]] = {}
    busy: dict[str, list[tuple[float, int]]] = {}
    placed = []
    for span in spans:
        lanes, taken = free.setdefault(span.run.worker, []), busy.setdefault(span.run.worker, [])
        while taken and taken[0][0] <= span.start:
            heapq.heappush(lanes, heapq.heappop(taken)[1])
        lane = heapq.heappop(lanes) if lanes else len(taken)
        heapq.heappush(taken, (span.stop, lane))
        placed.append(replace(span, lane=lane))
    return placed


def _worker_changes(
    events: Sequence[Mapping[str, Any]], sessions: Sequence[tuple[float, float]]
) -> Iterable[tuple[float, tuple[WorkerState, ...]]]:
    ends = iter([end for _, end in sessions])
    for number, event in enumerate(events):
        if number > 0 and _is_begin(events, number):
            yield next(ends), ()
        if event["event"] == "workers":
            try:
                yield float(event["at"]), tuple(records.value_for(WorkerState, each) for each in event["workers"])
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                continue


def _uses(
    spans: Iterable[Span], changes: Sequence[tuple[float, Sequence[WorkerState]]], start: float, stop: float
) -> tuple[Use, ...]:
    """Returns the use of slots and of each resource of the workers."""
    steps: dict[str, dict[float, list[float]]] = {}
    before: dict[str, float] = {}
    for at, workers in changes:
        now: dict[str, float] = {SLOTS: float(sum(worker.slots for worker in workers))}
        for worker in workers:
            for name, amount in worker.total.items():
                now[name] = now.get(name, 0.0) + amount
        for name in now.keys() | before.keys():
            _step(steps, name, at, 1, now.get(name, 0.0) - before.get(name, 0.0))
        before = now
    for span in spans:
        for name, amount in {SLOTS: 1.0, **span.run.requests}.items():
            _step(steps, name, span.start, 0, amount)
            _step(steps, name, span.stop, 0, -amount)
    names = [SLOTS, *sorted(name for name in steps if name != SLOTS)]
    return tuple(_use(name, steps.get(name, {}), start, stop) for name in names if name in steps)


def _step(steps: dict[str, dict[float, list[float]]], name: str, at: float, which: int, by: float) -> None:
    steps.setdefault(name, {}).setdefault(at, [0.0, 0.0])[which] += by


def _use(name: str, steps: Mapping[float, Sequence[float]], start: float, stop: float) -> Use:
    times, used, total = [start], [0.0], [0.0]
    for at in sorted(steps):
        by = steps[at]
        times.append(max(start, at))
        used.append(max(0.0, used[-1] + by[0]))
        total.append(max(0.0, total[-1] + by[1]))
    return Use(name, (*times, max(stop, times[-1])), (*used, used[-1]), (*total, total[-1]))


def median(values: Sequence[float]) -> float:
    """Returns the median; 0 without values."""
    return statistics.median(values) if values else 0.0
