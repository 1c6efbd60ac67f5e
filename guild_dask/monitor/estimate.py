"""Estimates of when a waiting run starts and when all runs are done. Pure: a state and a time in, seconds out.

The work ahead of a run is the duration of each earlier run times its requests. Divided by the capacity of all workers,
that is how long the work keeps them busy. It is an estimate: runs do not pack perfectly, and the next run of an
operation may take longer than the last.
"""

import statistics
from collections.abc import Iterable, Mapping

from guild_dask.monitor.state import RunningRun, State, WaitingKind, WorkerState

# The key for slots among the resources; no resource can have this name.
_SLOT = ""

# Remaining time of a run that exceeds its expected duration, as a share of that duration.
_OVERTIME = 0.1


def seconds_until_starts(state: State, now: float) -> list[float | None]:
    """Returns the estimated start of each of the first waiting runs; None where it is unknown."""
    expected = _Durations(state, now)
    if not expected.is_known or state.blocked_by or state.phase != "working":
        return [None] * len(state.first)
    capacity = _capacity(state.workers)
    work = _running_work(state.running, expected, now)
    starts: list[float | None] = []
    for run in state.first:
        if run.why and run.why.is_final:
            starts.append(None)
            continue
        names = [_SLOT, *run.asks]
        starts.append(max((work.get(name, 0.0) / capacity[name] for name in names if capacity.get(name)), default=None))
        _add(work, run.asks, expected.of(run.operation))
    return starts


def seconds_left(state: State, now: float) -> float | None:
    """Returns the estimated time until all possible runs are done; None if it is unknown."""
    expected = _Durations(state, now)
    may_start = state.phase == "working" and not state.blocked_by
    if not expected.is_known or not (state.running or state.waiting) or (state.waiting and state.phase == "paused"):
        return None
    capacity = _capacity(state.workers)
    work = _running_work(state.running, expected, now)
    durations = [_remaining(run, expected.of(run.operation), now) for run in state.running]
    for kind in state.kinds if may_start else ():
        if not (kind.why and kind.why.is_final):
            seconds = expected.of_kind(kind)
            _add(work, kind.asks, seconds * kind.count)
            durations.append(seconds)
    return max([*durations, *(work[name] / capacity[name] for name in work if capacity.get(name))], default=None)


class _Durations:
    """Expected durations, by operation: the median of completed runs, else estimated from the running ones."""

    def __init__(self, state: State, now: float) -> None:
        self._state = state
        self._durations = state.durations
        self._usual = statistics.median(state.durations.values()) if state.durations else 0.0
        self._so_far: dict[str, float] = {}
        for run in state.running:
            self._so_far[run.operation] = max(now - run.since, self._so_far.get(run.operation, 0.0))
        self.is_known = bool(state.durations)

    def of(self, operation: str) -> float:
        """Returns the expected seconds for a run of an operation."""
        known = self._durations.get(operation)
        # None has completed yet: assume that the running ones are half done.
        return known if known is not None else max(self._usual, 2 * self._so_far.get(operation, 0.0))

    def of_kind(self, kind: WaitingKind) -> float:
        """Returns the expected seconds for a run of a kind, from the operations of its first waiting runs."""
        found = [self.of(run.operation) for run in self._state.first if run.asks == kind.asks]
        return statistics.fmean(found) if found else self._usual


def _capacity(workers: Iterable[WorkerState]) -> dict[str, float]:
    capacity: dict[str, float] = {}
    for worker in workers:
        capacity[_SLOT] = capacity.get(_SLOT, 0.0) + worker.slots
        for name, total in worker.total.items():
            capacity[name] = capacity.get(name, 0.0) + total
    return capacity


def _running_work(running: Iterable[RunningRun], expected: _Durations, now: float) -> dict[str, float]:
    work: dict[str, float] = {}
    for run in running:
        _add(work, run.asks, _remaining(run, expected.of(run.operation), now))
    return work


def _remaining(run: RunningRun, expected: float, now: float) -> float:
    return max(expected - (now - run.since), expected * _OVERTIME)


def _add(work: dict[str, float], asks: Mapping[str, float], seconds: float) -> None:
    work[_SLOT] = work.get(_SLOT, 0.0) + seconds
    for name, amount in asks.items():
        work[name] = work.get(name, 0.0) + amount * seconds
