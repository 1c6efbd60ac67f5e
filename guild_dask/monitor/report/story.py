"""Events to what they tell: runs on workers, the use of each resource over time, and waiting. Pure."""

import heapq
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from guild_dask.home.outcome import End
from guild_dask.monitor.state import EndedRun, WorkerState, ended_for_data, left_for_data
from guild_dask.plan import records
from guild_dask.plan.reasons import AnyReason

# The name under which the runs themselves are counted beside the resources that they use.
RUNS = "runs"

# The end of an attempt that goes on.
RUNNING = "running"


@dataclass(frozen=True)
class Span:
    """An attempt at a run: where, from when to when, and how it ended. One that goes on has no end yet.

    That of a run that outlived its scheduler stops with the story; how long the run took is in the run.
    """

    run: EndedRun
    start: float
    stop: float
    lane: int = 0  # which of the worker's places it had


@dataclass(frozen=True)
class Use:
    """How much of a resource was used from which time on, and how much of it there was."""

    name: str
    times: tuple[float, ...]
    used: tuple[float, ...]
    total: tuple[float, ...]

    @property
    def mean_share(self) -> float:
        """Returns the share that was used over the whole time."""
        pairs = list(zip(self.times, self.times[1:], self.used, self.total, strict=False))
        there = sum((stop - start) * total for start, stop, _, total in pairs)
        # A worker that was lost is gone before it is known what became of its runs.
        return sum((stop - start) * min(used, total) for start, stop, used, total in pairs) / there if there else 0.0


@dataclass(frozen=True)
class Story:
    """All that a report shows."""

    start: float
    stop: float
    is_over: bool
    is_killed: bool  # it is over, and the scheduler did not say so
    workers: tuple[WorkerState, ...]
    spans: tuple[Span, ...]
    uses: tuple[Use, ...]
    ends: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[str, AnyReason | None] = field(default_factory=dict)  # runs that were left staged, and why

    @property
    def unfinished(self) -> list[Span]:
        """Returns the attempts that did not complete, the latest first."""
        return [span for span in reversed(self.spans) if span.run.end not in (End.COMPLETED.value, RUNNING)]

    @property
    def waits(self) -> list[float]:
        """Returns how long each run waited."""
        return [span.run.waited for span in self.spans]

    def operations(self) -> dict[str, list[Span]]:
        """Returns the attempts by operation."""
        found: dict[str, list[Span]] = {}
        for span in self.spans:
            found.setdefault(span.run.operation, []).append(span)
        return found


@dataclass(frozen=True)
class Aftermath:
    """What is known of a scheduler that is not at work any more, beside its events."""

    last_sign: float  # when it was last heard of
    ends: Sequence[Mapping[str, Any]] = ()  # of runs that outlived it, as events


def story_for(events: Sequence[Mapping[str, Any]], now: float, after: Aftermath | None = None) -> Story | None:
    """Returns what the events tell, or None where there is nothing to tell. What cannot be read is left out.

    A scheduler with an aftermath is at work no more: its story ends where it was last heard of.
    """
    if not events:
        return None
    is_stopped = any(event["event"] == "stopped" for event in events)
    last = float(events[-1]["at"])
    stop = last if is_stopped else max(last, after.last_sign if after else now)
    spans = _with_lanes(_spans([*events, *(after.ends if after else ())], stop, now if after else stop))
    changes = list(_worker_changes(events))
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
    return Story(start, stop, is_over, is_killed, tuple(workers.values()), tuple(spans), uses, ends, left)


def goes_on(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the starts of the runs of which no end is told."""
    running: dict[str, Mapping[str, Any]] = {}
    for event in events:
        if event["event"] == "started":
            running[str(event.get("run"))] = event
        elif event["event"] == "ended":
            running.pop(str(event.get("run")), None)
    return list(running.values())


def _spans(events: Sequence[Mapping[str, Any]], stop: float, now: float) -> list[Span]:
    """Returns the attempts, none beyond the end of the story, however long the run itself went on."""
    spans: list[Span] = []
    going: dict[str, Any] = {"end": RUNNING, "exit_code": None, "used": {}}
    for event in (
        *(event for event in events if event["event"] == "ended"),
        *({**event, "at": now, "ran": now - float(event["at"]), **going} for event in goes_on(events)),
    ):
        ended = _ended(event)
        if ended:
            start = ended.at - ended.ran
            spans.append(Span(ended, start, max(start, min(ended.at, stop))))
    return sorted(spans, key=lambda span: (span.start, span.run.run))


def _ended(event: Mapping[str, Any]) -> EndedRun | None:
    try:
        return ended_for_data(event)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _with_lanes(spans: list[Span]) -> list[Span]:
    """Returns the spans with a lane each, so that no two on one worker overlap."""
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


def _worker_changes(events: Iterable[Mapping[str, Any]]) -> Iterable[tuple[float, tuple[WorkerState, ...]]]:
    for event in events:
        if event["event"] == "workers":
            try:
                yield float(event["at"]), tuple(records.value_for(WorkerState, each) for each in event["workers"])
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                continue


def _uses(
    spans: Iterable[Span], changes: Sequence[tuple[float, Sequence[WorkerState]]], start: float, stop: float
) -> tuple[Use, ...]:
    """Returns the use of the runs' places, and of each resource that workers have."""
    steps: dict[str, dict[float, list[float]]] = {}
    before: dict[str, float] = {}
    for at, workers in changes:
        now: dict[str, float] = {RUNS: float(sum(worker.slots for worker in workers))}
        for worker in workers:
            for name, amount in worker.total.items():
                now[name] = now.get(name, 0.0) + amount
        for name in now.keys() | before.keys():
            _step(steps, name, at, 1, now.get(name, 0.0) - before.get(name, 0.0))
        before = now
    for span in spans:
        for name, amount in {RUNS: 1.0, **span.run.asks}.items():
            _step(steps, name, span.start, 0, amount)
            _step(steps, name, span.stop, 0, -amount)
    names = [RUNS, *sorted(name for name in steps if name != RUNS)]
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
    """Returns the median, or 0 of nothing."""
    return statistics.median(values) if values else 0.0
