"""Publishes what a scheduler does: its state in a file beside its heartbeat, and its events in its run directory.

The state is written atomically when it has changed, at most once a second. Write errors are ignored: a view must never
delay a run.
"""

import contextlib
import json
import logging
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from guild_dask.home import layout, run_directory, run_info, run_view
from guild_dask.home.outcome import End, Result
from guild_dask.host import files
from guild_dask.host.processes import ProcessIdentity
from guild_dask.monitor.durations import Completed, expected_seconds
from guild_dask.monitor.flag_columns import text_for_value
from guild_dask.monitor.journal import BEGAN, LAST_HEARTBEAT, Journal
from guild_dask.monitor.page.rows import Rows, WaitingRow
from guild_dask.monitor.state import (
    MOST_ENDED,
    EndedRun,
    Phase,
    RunningRun,
    State,
    WaitingKind,
    WaitingRun,
    WorkerState,
    as_data,
    left_in,
)
from guild_dask.plan.capacity import SEARCH, TIME
from guild_dask.plan.placement import Kind
from guild_dask.plan.reasons import AnyReason, Delay, Reason
from guild_dask.plan.troubles import Trouble

log = logging.getLogger("guild")

# Seconds from one state to the next.
_PERIOD = 1.0

# How many of an operation's last durations say how long the next one takes.
_REMEMBERED = 50

# The most waiting runs whose flags are read for one state.
_MOST_READ = 20


class Listener(Protocol):
    """A view in this process. Its methods return at once."""

    def ended(self, run: EndedRun) -> None:
        """Is called when an attempt has ended."""

    def state_changed(self, state: State) -> None:
        """Is called with the state, whenever it may have changed."""


@dataclass(frozen=True)
class QueuedRun:
    """A run in the queue: what it is ordered by, its kind, and why it waits."""

    run: str
    dir: str
    since: float  # when it was staged, in seconds since the epoch
    key: int  # the lowest starts first
    kind: Kind
    reason: Delay | None = None


@dataclass(frozen=True)
class View:
    """What a scheduler knows at a moment, as the publisher needs it."""

    workers: tuple[WorkerState, ...] = ()
    # For each kind, how many runs wait, and why the first of them does.
    kinds: Mapping[Kind, tuple[int, Reason | None]] = field(default_factory=dict)
    first: tuple[QueuedRun, ...] = ()
    held: Mapping[str, AnyReason] = field(default_factory=dict)  # why staged runs are not in the queue: the first ones
    held_count: int = 0  # how many are not
    blocked_by: tuple[str, ...] = ()
    phase: Phase = Phase.WORKING
    troubles: tuple[Trouble, ...] = ()
    retrying: Mapping[str, float] = field(default_factory=dict)  # when runs are tried again, by the monotonic clock
    whole_queue: Callable[[], Sequence[QueuedRun]] = tuple  # all runs in the queue; only the page needs that


def _without_time(kind: Kind) -> dict[str, float]:
    """Returns the requests as the user wrote them: without the time that only the plan counts."""
    return {name: amount for name, amount in kind if name not in (TIME, SEARCH)}


class Publisher:
    """The state and the events of this scheduler."""

    def __init__(
        self, home: str, run_dir: str, scheduler: State, rows: Rows | None = None, last_heartbeat: float = 0.0
    ) -> None:
        """Takes the last heartbeat of a process of the same scheduler that was killed; 0: there was none."""
        self._path = layout.scheduler_state(home, scheduler.scheduler)
        self._home = home
        self._journal = Journal(layout.events(run_dir))
        self._has_begun = False  # this process has noted an event
        self._last_heartbeat = last_heartbeat
        self._state = scheduler
        self._rows = rows  # the page of runs, if there is one
        self.listeners: list[Listener] = [rows] if rows else []
        self._running: dict[str, RunningRun] = {}
        self._ended: deque[EndedRun] = deque(maxlen=MOST_ENDED)
        self._ends: dict[str, int] = {}
        self._completed: dict[str, deque[Completed]] = {}  # by operation
        self._flags: dict[str, Mapping[str, str]] = {}  # of running runs, and of the first waiting ones
        self._workers: tuple[WorkerState, ...] = ()
        self._next = 0.0
        self._epoch = time.time() - time.monotonic()  # computed once, so that a future time is the same in every state
        self.latest: State | None = None
        self._last_phase = Phase.WORKING  # but for that it stops
        self.due: float | None = None  # when publish() is to be called again, by the monotonic clock

    @property
    def page(self) -> str | None:
        """Returns where the page of runs is, if there is one."""
        return self._state.page

    # What happens to runs

    def started(self, running: RunningRun) -> None:
        """Notes that a run was sent to a worker."""
        self._running[running.run] = running
        self._note("started", running.since, running)

    def ended(self, run_id: str, result: Result) -> None:
        """Notes how a run, or the attempt to start it, ended."""
        running = self._running.pop(run_id, None)
        end = result.end.value
        self._ends[end] = self._ends.get(end, 0) + 1
        if running is None:
            return
        now = time.time()
        ran = max(0.0, now - running.since)
        used, start = run_info.recorded(layout.run_dir(self._home, run_id))
        ended = EndedRun(
            run_id,
            running.operation,
            end,
            result.exit_code,
            running.worker,
            running.host,
            now,
            ran,
            running.waited,
            running.attempt,
            running.requests,
            used,
            result.cause.value if result.cause else "",
            result.excess,
            start,
        )
        self._ended.append(ended)
        if result.end is End.COMPLETED:
            flags = self._flags.get(run_id) or self._read_flags(run_id)
            self._completed.setdefault(running.operation, deque(maxlen=_REMEMBERED)).append(Completed(flags, ran))
        self._note("ended", now, ended)
        for listener in list(self.listeners):
            self._call(listener, lambda each: each.ended(ended))

    def left(self, run_id: str) -> None:
        """Notes that a run is no more this scheduler's."""
        self._running.pop(run_id, None)

    def _note(self, event: str, at: float, value: object) -> None:
        self._record(event, at, {name: fact for name, fact in as_data(value).items() if name not in ("at",)})

    def _record(self, event: str, at: float, facts: Mapping[str, Any]) -> None:
        """Adds an event to the journal: before the first one, that this process began, as others may have before."""
        if not self._has_begun:
            self._has_begun = True
            self._journal.note(BEGAN, at, {LAST_HEARTBEAT: round(self._last_heartbeat, 3)})
        self._journal.note(event, at, facts)

    # The state

    def publish(self, view_now: Callable[[], View], at_once: bool = False) -> None:
        """Writes the state if it has changed and the last one is a second old; else `due` says when to come again."""
        now = time.monotonic()
        if now < self._next and not at_once:
            self.due = self._next
            return
        self.due = None
        self._next = now + _PERIOD
        view = view_now()
        state = self.state(view)
        if state.workers != self._workers:
            self._note_workers(state.workers)
        if self.latest is None or state != replace(self.latest, updated=0.0):
            self.latest = replace(state, updated=time.time())
            self._last_phase = self._last_phase if state.phase is Phase.STOPPING else state.phase
            self._write(self.latest)
        latest = self.latest
        for listener in list(self.listeners):
            self._call(listener, lambda each: each.state_changed(latest))
        if self._rows and self._rows.is_watched:
            self._rows.write(latest, _line(view))

    def _call(self, listener: Listener, what: Callable[[Listener], None]) -> None:
        """Calls a listener. One that raises is removed: a view must not end the scheduler."""
        try:
            what(listener)
        except Exception as e:  # noqa: BLE001  # of a view only
            self.listeners.remove(listener)
            log.warning("%s is switched off after an error: %r", type(listener).__name__, e)

    def state(self, view: View) -> State:
        """Returns the state to publish."""
        return replace(
            self._state,
            phase=view.phase,
            workers=view.workers,
            running=tuple(self._running.values()),
            waiting=sum(count for count, _ in view.kinds.values()),  # runs that depend on others are among the held
            first=tuple(_waiting_run(each) for each in view.first),
            kinds=tuple(WaitingKind(count, _without_time(kind), why) for kind, (count, why) in view.kinds.items()),
            first_held=dict(view.held),
            held=view.held_count,
            retrying={run_id: round(self._epoch + until, 1) for run_id, until in view.retrying.items()},
            blocked_by=view.blocked_by,
            troubles=view.troubles,
            ends=dict(self._ends),
            ended=tuple(self._ended),
            durations={name: statistics.median(run.seconds for run in runs) for name, runs in self._completed.items()},
            expected=self._expected(view.first),
        )

    def _expected(self, first: Iterable[QueuedRun]) -> dict[str, float]:
        """Returns how long the running runs and the first waiting ones are expected to take, where that is known."""
        if not self._completed:
            return {}
        runs = {run.run: run.operation for run in self._running.values()}
        runs |= {run.run: run_directory.cached_operation(run.dir) for run in first}
        wanted = [run for run, operation in runs.items() if run not in self._flags and operation in self._completed]
        known = {run: self._flags[run] for run in runs if run in self._flags}
        self._flags = known | {run: self._read_flags(run) for run in wanted[:_MOST_READ]}
        found: dict[Any, float | None] = {}  # runs of an operation often have the same flags
        expected = {}
        for run, flags in self._flags.items():
            key = (runs[run], *flags.items())
            if key not in found:
                found[key] = expected_seconds(self._completed.get(runs[run], ()), flags)
            if (seconds := found[key]) is not None:
                expected[run] = round(seconds, 1)
        return expected

    def _read_flags(self, run_id: str) -> dict[str, str]:
        found = run_view.flags(layout.run_dir(self._home, run_id))
        return {name: text_for_value(value) for name, value in found.items()}

    def _note_workers(self, workers: Iterable[WorkerState]) -> None:
        """Adds a change of the workers to the journal; what runs use of them follows from the other events."""
        idle = tuple(replace(worker, used_slots=0, used={}) for worker in workers)
        before = tuple(replace(worker, used_slots=0, used={}) for worker in self._workers)
        if idle != before:
            self._record("workers", time.time(), {"workers": as_data(idle)})
        self._workers = tuple(workers)

    def _write(self, state: State) -> None:
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            files.write(self._path, json.dumps(as_data(state)), self._path.with_suffix(layout.STATE_DRAFT).name)

    def close(self) -> None:
        """Removes the state; the events stay."""
        left = left_in(self.latest, self._last_phase) if self.latest else {}
        self._record("stopped", time.time(), {"ends": dict(self._ends), "left": as_data(left)})
        self._journal.close()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def scheduler_state(run_id: str, process: ProcessIdentity, **facts: Any) -> State:
    """Returns the state of a scheduler that has just started."""
    return State(run_id, process.host, process.pid, time.time(), **facts)


def _line(view: View) -> list[WaitingRow]:
    """Returns all runs in the queue as the page shows them, in order."""
    kinds = {kind: (number, _without_time(kind)) for number, kind in enumerate(view.kinds)}
    return [WaitingRow(each.run, each.since, each.key, *kinds[each.kind]) for each in view.whole_queue()]


def _waiting_run(queued: QueuedRun) -> WaitingRun:
    return WaitingRun(
        queued.run, run_directory.cached_operation(queued.dir), queued.since, _without_time(queued.kind), queued.reason
    )
