"""Logs each run that completed, with its duration and its last scalars, from a thread of its own.

The documented output of `run-once` has no such lines between those of the runs. So without a terminal, a scheduler with
`run-once` logs them at its end, each with the time when the run ended.
"""

import logging
import queue
import threading
import time
from collections.abc import Mapping

from guild_dask.home import layout
from guild_dask.home.outcome import End
from guild_dask.home.run_scalars import read_scalars
from guild_dask.monitor import formatting, results
from guild_dask.monitor.state import EndedRun, State

log = logging.getLogger("guild")

# The most scalars in a line, and the most lines at the end of a scheduler.
_SCALARS = 4
_LINES = 20

# Seconds that a stopping scheduler waits for the last lines.
_LAST = 5.0


def text_for(run: EndedRun, scalars: Mapping[str, float], logged_late: float | None = None) -> str:
    """Returns the line for a run that completed; one that is logged late says when that was."""
    shown = results.by_importance(scalars)[:_SCALARS]
    values = " ".join(f"{name}={results.text_for(scalars[name])}" for name in shown)
    when = "" if logged_late is None else f", at {_moment(run.at, logged_late)}"
    return f"Run {run.run} completed in {formatting.duration(run.ran)}{when}" + (f" ({values})" if values else "")


def _moment(at: float, now: float) -> str:
    """Returns a time of the same day as `now`, or the date with it."""
    date, now_date = (time.strftime("%Y-%m-%d", time.localtime(each)) for each in (at, now))
    clock = time.strftime("%H:%M:%S", time.localtime(at))
    return clock if date == now_date else f"{date} {clock}"


class Completions:
    """A view that logs completed runs: at once, or at the end."""

    def __init__(self, home: str, at_once: bool) -> None:
        self._home = home
        self._kept: list[EndedRun] | None = None if at_once else []
        self._more = 0
        self._pending: queue.SimpleQueue[EndedRun | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ended(self, run: EndedRun) -> None:
        """Takes in a run that ended."""
        if run.end != End.COMPLETED.value:
            return
        if self._kept is None:
            self._put(run)
        elif len(self._kept) < _LINES:
            self._kept.append(run)
        else:
            self._more += 1

    def state_changed(self, state: State) -> None:
        """Does nothing: only ends matter."""

    def close(self) -> None:
        """Logs what is left."""
        for run in self._kept or ():
            self._put(run)
        if self._thread:
            self._pending.put(None)
            self._thread.join(_LAST)
        if self._more:
            log.info("%d more run(s) completed; 'guild-dask report' lists them", self._more)

    def _put(self, run: EndedRun) -> None:
        self._pending.put(run)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="completions", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (run := self._pending.get()) is not None:
            scalars: dict[str, float] = {}
            try:
                found = read_scalars(layout.run_dir(self._home, run.run))
                scalars = {name: scalar.last for name, scalar in found.items()}
            except Exception as e:  # noqa: BLE001  # whatever a run has written must not end this view
                log.debug("No scalars of run %s: %r", run.run, e)
            log.info("%s", text_for(run, scalars, None if self._kept is None else time.time()))
