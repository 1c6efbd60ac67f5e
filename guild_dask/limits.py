"""What a starter holds its run to: the time that it may take, and the memory that it asked for."""

import os
import threading
import time
from collections.abc import Callable

from guild_dask.cgroups import Cgroup
from guild_dask.last_word import Cause
from guild_dask.resources import format_size
from guild_dask.terms import Terms
from guild_dask.units import format_duration
from guild_dask.usage import Meter

# A run may use so much more memory than it asked for. Who asks for 8GB has measured 8GB at some time, not at its peak.
MARGIN = 0.1

# Seconds from one measurement of memory to the next: often while a run is young, and always often if there is a limit.
_FIRST = 0.25
_GROWTH = 1.5
_LONGEST = 10.0
_LONGEST_WITH_LIMIT = 1.0


class Limits:
    """Measures a run, and ends it when it takes more than it may."""

    def __init__(self, terms: Terms, end: Callable[[Cause, str], None], is_over: threading.Event) -> None:
        self._terms = terms
        self._end = end
        self._is_over = is_over
        self._meter = Meter(os.getpid())

    @property
    def peak_memory(self) -> int:
        """Returns the most memory, in bytes, that all of the run's processes were seen to have together."""
        return self._meter.peak

    def begin(self, cgroup: Cgroup | None = None) -> None:
        """Starts to watch the run, which starts in this moment, in the given cgroup if it gets one of its own."""
        self._meter.cgroup = cgroup
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        deadline = time.monotonic() + self._terms.time_limit if self._terms.time_limit else float("inf")
        interval = _FIRST
        longest = _LONGEST_WITH_LIMIT if self._terms.memory else _LONGEST
        while not self._is_over.wait(min(interval, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                self._end(Cause.TIME_LIMIT, f"it ran for {format_duration(self._terms.time_limit)}, its time limit")
                return
            if self._is_out_of_memory():
                return
            interval = min(interval * _GROWTH, longest)

    def _is_out_of_memory(self) -> bool:
        used, asked = self._meter.sample(), self._terms.memory
        if not asked or used <= asked * (1 + MARGIN):
            return False
        used = min(used, self._meter.exact())
        if used <= asked * (1 + MARGIN):
            return False
        self._end(Cause.OUT_OF_MEMORY, f"out of memory: it used {format_size(used)} and asked for {format_size(asked)}")
        return True
