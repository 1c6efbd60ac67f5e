"""The rows of the page of runs, updated while a browser has the page open.

The scheduler's loop writes, and the threads that serve the page read. Each row has the version of its last change, so
that the page gets only changed rows. Values that change for many runs at once (why a kind of run waits, positions in
the queue) are not in the rows.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from guild_dask.home import attempts, layout, run_view
from guild_dask.home.outcome import End, Ending
from guild_dask.monitor import estimate
from guild_dask.monitor.flag_columns import own_label, texts_of
from guild_dask.monitor.run_states import HELD, RETRYING, RUNNING, STATES, WAITING
from guild_dask.monitor.state import EndedRun, State, as_data
from guild_dask.plan.resources import format_amounts
from guild_dask.plan.troubles import text_for

# The most ended runs that are kept, and the most run directories that are read for one response.
MOST_ENDED = 5000
_MOST_READ = 150

# The most running runs of which the page says when they end.
_MOST_NEXT = 5

# Seconds after the last request until the page counts as closed.
_PATIENCE = 15.0

# Seconds that the first response waits for the loop, which writes once a second.
_FIRST = 2.0

# The end of an attempt that is followed by another one.
_RETRIED = End.RETRIED.value

Row = dict[str, Any]

# Fields that are read from the run directory.
_DETAILS = ("operation", "flags", "label", "tags")

# The field with earlier attempts, for the timeline, and the most of them that are kept.
_PAST = "past"
_MOST_PAST = 20

# If one of these changes, the tags may have changed, too: they hold a run's priority and requests.
_DEPEND_ON_TAGS = ("state", "key", "requests")


@dataclass(frozen=True)
class WaitingRow:
    """A waiting run, with its sort key and the index of its kind in the state."""

    run: str
    since: float
    key: int
    kind: int
    requests: Mapping[str, float]


class Rows:
    """One row for each run, and the latest state."""

    def __init__(self, runs_dir: str, wake: Callable[[], object]) -> None:
        self._runs_dir = runs_dir
        self._wake = wake  # makes the loop write soon
        self._lock = threading.Lock()
        self._rows: dict[str, Row] = {}
        self._ended: deque[str] = deque()
        self._unread: dict[str, None] = {}  # run ids whose directory is to be read; an ordered set
        self._removed: deque[tuple[int, str]] = deque(maxlen=20_000)
        self._state: State | None = None
        self._version = 0
        self._last_request = float("-inf")
        self._written = threading.Event()  # set by the first write after the page was opened

    @property
    def home(self) -> str:
        """Returns the Guild home that the runs are in."""
        return layout.home_of_runs(self._runs_dir)

    # Called by the loop

    @property
    def is_watched(self) -> bool:
        """Returns whether a browser has the page open; only then the loop writes all waiting runs."""
        return time.monotonic() - self._last_request < _PATIENCE

    def ended(self, run: EndedRun) -> None:
        """Records the end of a run, or of an attempt."""
        row = as_data(run) | {"state": run.end, "requests": format_amounts(run.requests), "used": dict(run.used)}
        row["how"] = run.ending.how
        with self._lock:
            if run.end == _RETRIED:
                past = {name: row[name] for name in ("attempt", "worker", "at", "ran", "how")}
                row["state"] = RETRYING
                row[_PAST] = [*self._rows.get(run.run, {}).get(_PAST, ()), past][-_MOST_PAST:]
            self._put(run.run, row)
            self._ended.append(run.run)
            while len(self._ended) > MOST_ENDED:
                oldest = self._ended.popleft()
                if oldest not in self._ended and self._rows.get(oldest, {}).get("at") is not None:
                    self._drop(oldest)

    def state_changed(self, state: State) -> None:
        """Does nothing: `write` gets the state while the page is open."""

    def write(self, state: State, queue: Sequence[WaitingRow]) -> None:
        """Updates the rows of all running and staged runs."""
        with self._lock:
            self._state = state
            self._written.set()
            there = (
                {run.run for run in state.running}
                | {run.run for run in queue}
                | state.first_held.keys()
                | state.retrying.keys()
            )
            for run in state.running:
                devices = f" ({','.join(run.devices)})" if run.devices else ""
                row = as_data(run) | {"state": RUNNING, "requests": format_amounts(run.requests) + devices}
                self._put(run.run, row)
            for waiting in queue:
                row = {"run": waiting.run, "since": waiting.since, "key": waiting.key}
                self._put(
                    waiting.run,
                    row | {"state": WAITING, "kind": waiting.kind, "requests": format_amounts(waiting.requests)},
                )
            for run_id, why in state.first_held.items():
                self._put(run_id, {"run": run_id, "state": HELD, "why": str(why), "requests": ""})
            for run_id, at in state.retrying.items():
                again = time.strftime("%H:%M:%S", time.localtime(at))
                row = {"run": run_id, "state": RETRYING, "why": f"next attempt at {again}", "requests": ""}
                self._put(run_id, row)
            for run_id in [
                run_id for run_id, row in self._rows.items() if row.get("at") is None and run_id not in there
            ]:
                self._drop(run_id)

    def _put(self, run_id: str, row: Row) -> None:
        before = self._rows.get(run_id)
        kept = (*_DETAILS, _PAST)
        details = {name: before[name] for name in kept if name in before and name not in row} if before else {}
        if before is None or {**row, **details} != {name: value for name, value in before.items() if name != "v"}:
            self._version += 1
            self._rows[run_id] = {**row, **details, "v": self._version}
        if before is None or any(before.get(name) != row.get(name) for name in _DEPEND_ON_TAGS):
            self._unread[run_id] = None

    def _drop(self, run_id: str) -> None:
        self._version += 1
        del self._rows[run_id]
        self._unread.pop(run_id, None)
        self._removed.append((self._version, run_id))

    # Called by the page

    def data(self, since: int) -> dict[str, Any]:
        """Returns the rows that have changed since a version, 0 for all, and the state. Reads run directories."""
        was_watched = self.is_watched
        self._last_request = time.monotonic()
        if not was_watched:
            # The rows are as old as the last time the page was open.
            self._written.clear()
            self._wake()
            self._written.wait(_FIRST)
        self._read_some()
        with self._lock:
            # The page may have a version of an earlier scheduler, or have missed more removals than are kept.
            has_missed = len(self._removed) == self._removed.maxlen and since < self._removed[0][0]
            first = 0 if since > self._version or has_missed else since
            changed = [row for row in self._rows.values() if row["v"] > first]
            removed = [run_id for version, run_id in self._removed if version > first]
            return {
                "version": self._version,
                "whole": first == 0,
                "now": time.time(),
                "rows": changed,
                "gone": [] if first == 0 else [run_id for run_id in removed if run_id not in self._rows],
                "state": _state_data(self._state),
                "states": [asdict(each) for each in STATES.values()],
            }

    def _read_some(self) -> None:
        with self._lock:
            wanted = sorted(self._unread, key=self._urgency)[:_MOST_READ]
            for run_id in wanted:
                del self._unread[run_id]
        read = {run_id: _details(layout.run_in(self._runs_dir, run_id)) for run_id in wanted}
        with self._lock:
            for run_id, details in read.items():
                row = self._rows.get(run_id)
                if row and any(row.get(name) != value for name, value in details.items()):
                    self._version += 1
                    row.update(details, v=self._version)

    def _urgency(self, run_id: str) -> tuple[int, float]:
        row = self._rows[run_id]
        if row["state"] == RUNNING:
            return 0, row["since"]
        return (1, row["key"]) if "key" in row else (2, -(row.get("at") or 0.0))

    def run_dir(self, run_id: str) -> str | None:
        """Returns the directory of a run; None if the run is not on the page."""
        with self._lock:
            return layout.run_in(self._runs_dir, run_id) if run_id in self._rows else None


def _details(run_dir: str) -> Row:
    view = run_view.view(run_dir)
    flags = texts_of(dict(sorted(run_view.flags(run_dir).items())))
    details = {"flags": flags, "tags": " ".join(view.tags), "label": own_label(view.label, view.tags, flags)}
    return {**details, "operation": view.operation} if view.operation else details


def _how(attempt: attempts.Attempt) -> str:
    """Returns how an attempt ended that was not the last one."""
    cause = attempt.cause.value if attempt.cause else ""
    return Ending(End.RETRIED.value, attempt.exit_status, cause).how or "ended"


def past_attempts(run_dir: str) -> list[Row]:
    """Returns the attempts at a run that are over and whose output was kept."""
    try:
        found = attempts.past(run_dir)
    except OSError:
        return []
    return [
        {
            "number": each.number,
            "how": _how(each),
            "ended": each.ended,
        }
        for each in found
    ]


def _state_data(state: State | None) -> dict[str, Any] | None:
    if state is None:
        return None
    data: dict[str, Any] = as_data(state)
    starts = estimate.seconds_until_starts(state, time.time())
    data["first"] = [
        {"run": run.run, "why": str(run.why or ""), "starts": seconds}
        for run, seconds in zip(state.first, starts, strict=True)
    ]
    data["kinds"] = [
        {"why": str(kind.why), "is_final": kind.why.is_final} if kind.why else {"why": ""} for kind in state.kinds
    ]
    data["troubles"] = [text_for(trouble) for trouble in state.troubles]
    data["impossible"] = state.impossible
    data["retrying"] = len(state.retrying)
    data["left"] = estimate.seconds_left(state, time.time())
    data["is_least"] = estimate.is_least(state, time.time())
    data["next"] = [asdict(each) for each in estimate.remaining(state, time.time())[:_MOST_NEXT]]
    for name in ("running", "ended", "first_held", "expected"):
        del data[name]
    return data
