"""Scalars of a scheduler's own Guild run, which `guild compare` and TensorBoard show.

Guild treats a scheduler as a batch and shows batches only with `--include-batch`, so that they are not listed among the
user's runs.
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

# Seconds between two points.
_PERIOD = 60.0

# The name of the slots in the scalar `use_runs`.
_SLOTS = "runs"


class Tally:
    """Running totals: waiting times, and the used share of each resource."""

    def __init__(self, start: float) -> None:
        self._last = start
        self._capacity: dict[str, float] = {}  # of all workers now
        self._offered: dict[str, float] = {}  # capacity times seconds
        self._used: dict[str, float] = {}  # requests of ended runs times seconds
        self._waited = 0.0
        self._runs = 0

    def ended(self, run: EndedRun) -> None:
        """Counts a run that ended."""
        self._waited += run.waited
        self._runs += 1
        _add(self._used, run.requests, run.ran)

    def update(self, state: State, now: float) -> None:
        """Adds the capacity since the last update, and keeps the present one."""
        seconds = max(0.0, now - self._last)
        self._last = now
        for name, amount in self._capacity.items():
            self._offered[name] = self._offered.get(name, 0.0) + amount * seconds
        self._capacity = {_SLOTS: float(sum(worker.slots for worker in state.workers))}
        for name in {name for worker in state.workers for name in worker.total}:
            self._capacity[name] = sum(worker.total.get(name, 0.0) for worker in state.workers)

    def values(self, state: State) -> dict[str, float]:
        """Returns the scalars at the last update."""
        mean = self._waited / self._runs if self._runs else 0.0
        counts = {"runs_completed": float(state.completed), "runs_failed": float(state.failed)}
        waits = {"seconds_waited": self._waited, "seconds_waited_mean": mean}
        used = dict(self._used)
        for run in state.running:
            _add(used, run.requests, max(0.0, self._last - run.since))
        shares = {name: min(1.0, used.get(name, 0.0) / offered) for name, offered in self._offered.items() if offered}
        return {**counts, **waits, **{f"use_{name}": share for name, share in shares.items()}}


def _add(used: dict[str, float], requests: Mapping[str, float], seconds: float) -> None:
    for name, amount in {**requests, _SLOTS: 1.0}.items():
        used[name] = used.get(name, 0.0) + amount * seconds


class Scalars:
    """Writes a point once a minute if a run has ended, in a thread of its own."""

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
        """Counts a run that ended."""
        self._tally.ended(run)
        self._has_news = True

    def state_changed(self, state: State) -> None:
        """Updates the totals, and writes a point if one is due."""
        now = time.time()
        self._tally.update(state, now)
        self._state = state
        if self._has_news and now >= self._next:
            self._next = now + _PERIOD
            self._write(now)

    def close(self) -> None:
        """Writes the last point."""
        if self._state and self._has_news:
            now = time.time()
            self._tally.update(self._state, now)
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
                except Exception as e:  # noqa: BLE001  # TensorBoard raises many kinds; scalars must not fail a run
                    log.debug("No scalars: %r", e)
