"""Estimates of when a waiting run starts and when all runs are done. Pure: a state and a time in, seconds out.

The work ahead of a run is the duration of each earlier run times its requests. Divided by the capacity of all workers,
that is how long the work keeps them busy. It is an estimate: runs do not pack perfectly, and the next run of an
operation may take longer than the last. Once a running run has taken far longer than expected, estimates are lower
bounds only (`is_least`): its end is unknown.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from guild_dask.monitor.state import Phase, RunningRun, State, WaitingKind, WaitingRun, WorkerState

# The key for slots among the resources; no resource can have this name.
_SLOT = ""

# Remaining time of a run that exceeds its expected duration, as a share of that duration.
_OVERTIME = 0.1

# A run is overdue when it has taken this many times its expected duration, and so many seconds longer.
_OVERDUE = 1.5
_OVERDUE_SECONDS = 10.0

# A lower bound below this many seconds says nothing.
_TELLING = 5.0


@dataclass(frozen=True)
class Remaining:
    """How long a running run still takes: an estimate, or None if it is overdue."""

    run: str
    seconds: float | None


def remaining(state: State, now: float) -> list[Remaining]:
    """Returns when each running run is expected to end, the next one first; none if nothing has completed yet."""
    expected = _Durations(state, now)
    if not expected.is_known:
        return []
    found = [
        Remaining(run.run, None if expected.is_overdue(run) else _remaining(run, expected, now))
        for run in state.running
    ]
    return sorted(found, key=lambda each: (each.seconds is None, each.seconds or 0.0, each.run))


def is_least(state: State, now: float) -> bool:
    """Returns whether the estimates are lower bounds only, because a run takes far longer than expected."""
    expected = _Durations(state, now)
    return expected.is_known and any(map(expected.is_overdue, state.running))


def seconds_until_starts(state: State, now: float) -> list[float | None]:
    """Returns the estimated start of each of the first waiting runs; None where it is unknown."""
    expected = _Durations(state, now)
    if not expected.is_known or state.blocked_by or state.phase is not Phase.WORKING:
        return [None] * len(state.first)
    capacity = _capacity(state.workers)
    work = _running_work(state.running, expected, now)
    starts: list[float | None] = []
    for run in state.first:
        if run.why and run.why.is_final:
            starts.append(None)
            continue
        names = [_SLOT, *run.requests]
        starts.append(max((work.get(name, 0.0) / capacity[name] for name in names if capacity.get(name)), default=None))
        _add(work, run.requests, expected.of(run))
    least = is_least(state, now)
    return [None if least and start is not None and start < _TELLING else start for start in starts]


def seconds_left(state: State, now: float) -> float | None:
    """Returns the estimated time until all possible runs are done; None if it is unknown."""
    expected = _Durations(state, now)
    may_start = state.phase is Phase.WORKING and not state.blocked_by
    if not expected.is_known or not (state.running or state.waiting) or (state.waiting and state.phase is Phase.PAUSED):
        return None
    capacity = _capacity(state.workers)
    work = _running_work(state.running, expected, now)
    durations = [_remaining(run, expected, now) for run in state.running]
    for kind in state.kinds if may_start else ():
        if not (kind.why and kind.why.is_final):
            seconds = expected.of_kind(kind)
            _add(work, kind.requests, seconds * kind.count)
            durations.append(seconds)
    left = max([*durations, *(work[name] / capacity[name] for name in work if capacity.get(name))], default=None)
    return None if left is not None and left < _TELLING and is_least(state, now) else left


class _Durations:
    """Expected durations: those in the state, else the median of the operation, else estimated from running runs."""

    def __init__(self, state: State, now: float) -> None:
        self._state = state
        self._now = now
        self._usual = statistics.median(state.durations.values()) if state.durations else 0.0
        self._so_far: dict[str, float] = {}  # how long the longest running run of each operation has taken
        self._overdue: dict[str, float] = {}  # the same of those that are overdue
        self.is_known = bool(state.durations)
        for run in state.running:
            self._so_far[run.operation] = max(now - run.since, self._so_far.get(run.operation, 0.0))
        for run in filter(self.is_overdue, state.running):
            self._overdue[run.operation] = max(now - run.since, self._overdue.get(run.operation, 0.0))

    def usual(self, run: RunningRun | WaitingRun) -> float:
        """Returns how long a run is expected to take from completed runs, in seconds."""
        known = self._state.expected.get(run.run, self._state.durations.get(run.operation))
        # None has completed yet: assume that the running ones are half done.
        return known if known is not None else max(self._usual, 2 * self._so_far.get(run.operation, 0.0))

    def is_overdue(self, run: RunningRun) -> bool:
        """Returns whether a running run has taken far longer than expected."""
        usual = self.usual(run)
        return self._now - run.since > max(_OVERDUE * usual, usual + _OVERDUE_SECONDS)

    def of(self, run: WaitingRun) -> float:
        """Returns the expected seconds for a run that waits: no less than overdue runs of its operation have taken."""
        return max(self.usual(run), self._overdue.get(run.operation, 0.0))

    def of_kind(self, kind: WaitingKind) -> float:
        """Returns the expected seconds for a run of a kind, from its first waiting runs."""
        found = [self.of(run) for run in self._state.first if run.requests == kind.requests]
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
        _add(work, run.requests, _remaining(run, expected, now))
    return work


def _remaining(run: RunningRun, expected: _Durations, now: float) -> float:
    usual = expected.usual(run)
    return 0.0 if expected.is_overdue(run) else max(usual - (now - run.since), usual * _OVERTIME)


def _add(work: dict[str, float], requests: Mapping[str, float], seconds: float) -> None:
    work[_SLOT] = work.get(_SLOT, 0.0) + seconds
    for name, amount in requests.items():
        work[name] = work.get(name, 0.0) + amount * seconds
