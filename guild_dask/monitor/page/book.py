"""What the page shows, kept up to date while somebody looks at it.

The scheduler's loop writes, and the threads that serve the page read. Each row has the number of the last change to it,
so that a page that asks again gets only what has changed. What changes for many runs at once (why a kind of run waits,
a run's place in the queue) is not in the rows.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from guild_dask.home import layout, run_view
from guild_dask.home.outcome import End
from guild_dask.monitor import estimate
from guild_dask.monitor.state import EndedRun, State, as_data
from guild_dask.plan.resources import format_amounts
from guild_dask.plan.troubles import text_for

# How many ended runs are kept, and how many directories are read for one answer: the page must not slow down runs.
MOST_ENDED = 5000
_MOST_READ = 150

# Seconds after the last question until nobody is looking any more.
_PATIENCE = 15.0

# Seconds that the first answer waits for the loop, which writes once a second.
_FIRST = 2.0

# How an attempt ends after which there is another one.
_TRIED_AGAIN = End.TRIED_AGAIN.value

Row = dict[str, Any]

# What is read from a run's own directory.
_DETAILS = ("operation", "flags", "tags")

# The attempts at a run before the present one, for the timeline, and how many of them are kept.
_PAST = "past"
_MOST_PAST = 20

# What is another when these may have changed: a run's priority and its demands are in its tags.
_TELLING = ("state", "key", "asks")


@dataclass(frozen=True)
class InLine:
    """A run that waits, with what puts it into its place, and which of the state's kinds it is of."""

    run: str
    since: float
    key: int
    kind: int
    asks: Mapping[str, float]


class Book:
    """Rows of runs, and the state that they were last seen in."""

    def __init__(self, runs_dir: str, wake: Callable[[], object]) -> None:
        self._runs_dir = runs_dir
        self._wake = wake  # asks the loop to write soon
        self._lock = threading.Lock()
        self._rows: dict[str, Row] = {}
        self._ended: deque[str] = deque()
        self._unread: dict[str, None] = {}  # runs of which the directory is to be read, in order
        self._gone: deque[tuple[int, str]] = deque(maxlen=20_000)
        self._state: State | None = None
        self._version = 0
        self._asked = float("-inf")
        self._written = threading.Event()  # since somebody began to look

    # The loop's side

    @property
    def is_watched(self) -> bool:
        """Tells whether somebody looks, so that it is worth while to write down all that waits."""
        return time.monotonic() - self._asked < _PATIENCE

    def ended(self, run: EndedRun) -> None:
        """Notes the end of a run, or of an attempt at it."""
        row = as_data(run) | {"state": run.end, "asks": format_amounts(run.asks), "used": dict(run.used)}
        row["why"] = run.why
        with self._lock:
            if run.end == _TRIED_AGAIN:
                past = {name: row[name] for name in ("attempt", "worker", "at", "ran")}
                past["why"] = run.why or f"exit code {run.exit_code}"
                row[_PAST] = [*self._rows.get(run.run, {}).get(_PAST, ()), past][-_MOST_PAST:]
            self._put(run.run, row)
            self._ended.append(run.run)
            while len(self._ended) > MOST_ENDED:
                oldest = self._ended.popleft()
                if oldest not in self._ended and self._rows.get(oldest, {}).get("at") is not None:
                    self._drop(oldest)

    def look(self, state: State) -> None:
        """Does nothing: what waits is only gone through while somebody looks."""

    def write(self, state: State, line: Sequence[InLine]) -> None:
        """Notes all that runs and waits now."""
        with self._lock:
            self._state = state
            self._written.set()
            there = (
                {run.run for run in state.running}
                | {run.run for run in line}
                | state.aside.keys()
                | state.resting.keys()
            )
            for run in state.running:
                devices = f" ({','.join(run.devices)})" if run.devices else ""
                row = as_data(run) | {"state": "running", "asks": format_amounts(run.asks) + devices}
                self._put(run.run, row)
            for waiting in line:
                row = {"run": waiting.run, "since": waiting.since, "key": waiting.key}
                self._put(
                    waiting.run, row | {"state": "waiting", "kind": waiting.kind, "asks": format_amounts(waiting.asks)}
                )
            for run_id, why in state.aside.items():
                self._put(run_id, {"run": run_id, "state": "held", "why": str(why), "asks": ""})
            for run_id, at in state.resting.items():
                again = time.strftime("%H:%M:%S", time.localtime(at))
                row = {"run": run_id, "state": "held", "why": f"is tried again at {again}", "asks": "", "again": at}
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
        if before is None or any(before.get(name) != row.get(name) for name in _TELLING):
            self._unread[run_id] = None

    def _drop(self, run_id: str) -> None:
        self._version += 1
        del self._rows[run_id]
        self._unread.pop(run_id, None)
        self._gone.append((self._version, run_id))

    # The page's side

    def data(self, since: int) -> dict[str, Any]:
        """Returns all that has changed since a version; 0 for everything. May read directories, and take a moment."""
        was_watched = self.is_watched
        self._asked = time.monotonic()
        if not was_watched:
            # What was written for the last one who looked is old.
            self._written.clear()
            self._wake()
            self._written.wait(_FIRST)
        self._read_some()
        with self._lock:
            # A page may know versions of another scheduler's life, or have slept through more than we remember.
            has_missed = len(self._gone) == self._gone.maxlen and since < self._gone[0][0]
            first = 0 if since > self._version or has_missed else since
            rows = [row for row in self._rows.values() if row["v"] > first]
            gone = [run_id for version, run_id in self._gone if version > first]
            return {
                "version": self._version,
                "whole": first == 0,
                "now": time.time(),
                "rows": rows,
                "gone": [] if first == 0 else [run_id for run_id in gone if run_id not in self._rows],
                "state": _state_data(self._state),
            }

    def _read_some(self) -> None:
        with self._lock:
            wanted = sorted(self._unread, key=self._urgency)[:_MOST_READ]
            for run_id in wanted:
                del self._unread[run_id]
        read = {run_id: _details(os.path.join(self._runs_dir, run_id)) for run_id in wanted}
        with self._lock:
            for run_id, details in read.items():
                row = self._rows.get(run_id)
                if row and any(row.get(name) != value for name, value in details.items()):
                    self._version += 1
                    row.update(details, v=self._version)

    def _urgency(self, run_id: str) -> tuple[int, float]:
        row = self._rows[run_id]
        if row["state"] == "running":
            return 0, row["since"]
        return (1, row["key"]) if "key" in row else (2, -(row.get("at") or 0.0))

    def output_path(self, run_id: str) -> str | None:
        """Returns where a run's output is, if it is a run that the page shows."""
        with self._lock:
            return layout.output(os.path.join(self._runs_dir, run_id)) if run_id in self._rows else None


def _details(run_dir: str) -> Row:
    view = run_view.view(run_dir)
    flags = " ".join(f"{name}={value}" for name, value in sorted(run_view.flags(run_dir).items()))
    details = {"flags": flags, "tags": " ".join(view.tags)}
    return {**details, "operation": view.operation} if view.operation else details


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
    data["hopeless"] = state.hopeless
    data["left"] = estimate.seconds_left(state, time.time())
    for name in ("running", "ended", "aside", "resting"):
        del data[name]
    return data
