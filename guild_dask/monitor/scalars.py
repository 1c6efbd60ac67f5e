"""What a scheduler did, as scalars of its own Guild run: `guild compare` and TensorBoard show them.

Guild takes a scheduler for a batch, and leaves batches out unless asked for them (`--include-batch`), so that they do
not stand between the user's runs.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from guild_dask.monitor.state import EndedRun, State

log = logging.getLogger("guild")

# Seconds between two points of a curve.
_PERIOD = 60.0

# The name under which the use of workers' slots goes.
_RUNS = "runs"

# Where TensorBoard's files go, in the run directory.
FOLDER = "scheduler"


class Tally:
    """What is known so far: counts, and how much of each resource was used while it was there."""

    def __init__(self, start: float) -> None:
        self._last = start
        self._there: dict[str, float] = {}  # what workers have now
        self._offered: dict[str, float] = {}  # what they had, times seconds
        self._used: dict[str, float] = {}  # what runs that ended had of it, times seconds
        self._waited = 0.0
        self._runs = 0

    def ended(self, run: EndedRun) -> None:
        """Counts a run that ended."""
        self._waited += run.waited
        self._runs += 1
        _add(self._used, run.asks, run.ran)

    def look(self, state: State, now: float) -> None:
        """Adds up what was there since the last look, and notes what is there now."""
        seconds = max(0.0, now - self._last)
        self._last = now
        for name, amount in self._there.items():
            self._offered[name] = self._offered.get(name, 0.0) + amount * seconds
        self._there = {_RUNS: float(sum(worker.slots for worker in state.workers))}
        for name in {name for worker in state.workers for name in worker.total}:
            self._there[name] = sum(worker.total.get(name, 0.0) for worker in state.workers)

    def values(self, state: State) -> dict[str, float]:
        """Returns the scalars as they were at the last look."""
        mean = self._waited / self._runs if self._runs else 0.0
        counts = {"runs_completed": float(state.completed), "runs_failed": float(state.failed)}
        waits = {"seconds_waited": self._waited, "seconds_waited_mean": mean}
        used = dict(self._used)
        for run in state.running:
            _add(used, run.asks, max(0.0, self._last - run.since))
        shares = {name: min(1.0, used.get(name, 0.0) / offered) for name, offered in self._offered.items() if offered}
        return {**counts, **waits, **{f"use_{name}": share for name, share in shares.items()}}


def _add(used: dict[str, float], asks: Mapping[str, float], seconds: float) -> None:
    for name, amount in {**asks, _RUNS: 1.0}.items():
        used[name] = used.get(name, 0.0) + amount * seconds


class Scalars:
    """Writes a point now and then, in a thread of its own."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._start = time.time()
        self._tally = Tally(self._start)
        self._next = self._start + _PERIOD
        self._state: State | None = None
        self._has_news = False
        self._points: queue.SimpleQueue[tuple[int, Mapping[str, float]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ended(self, run: EndedRun) -> None:
        """Takes note of a run that ended."""
        self._tally.ended(run)
        self._has_news = True

    def look(self, state: State) -> None:
        """Takes note of what runs, and writes a point if it is time for one."""
        now = time.time()
        self._tally.look(state, now)
        self._state = state
        if self._has_news and now >= self._next:
            self._next = now + _PERIOD
            self._write(now)

    def close(self) -> None:
        """Writes the last point."""
        if self._state and self._has_news:
            now = time.time()
            self._tally.look(self._state, now)
            self._write(now)
        if self._thread:
            self._points.put(None)
            self._thread.join()

    def _write(self, now: float) -> None:
        assert self._state
        self._has_news = False
        self._points.put((int(now - self._start), self._tally.values(self._state)))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="scalars", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        with contextlib.ExitStack() as closing:
            writer: Any = None
            while (point := self._points.get()) is not None:
                step, values = point
                try:
                    if writer is None:
                        from guild.summary import SummaryWriter

                        writer = SummaryWriter(self._folder)
                        closing.callback(writer.close)
                    for name, value in values.items():
                        writer.add_scalar(name, value, step)
                    writer.flush()
                except Exception as e:  # noqa: BLE001  # TensorBoard's own, of many kinds; a curve is not worth a run
                    log.debug("No scalars: %r", e)
