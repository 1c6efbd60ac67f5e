"""A run's limits, enforced by its starter: its time limit, and the memory that it requests."""

import os
import threading
import time
from collections.abc import Callable

from guild_dask.home.outcome import Cause, Excess
from guild_dask.host.cgroups import Cgroup
from guild_dask.host.memory import Meter
from guild_dask.worker.options import StarterOptions

# A run may use this fraction more memory than it requests: users who request 8GB rarely measured the peak.
MARGIN = 0.1

# Seconds between measurements of memory: the first interval, its growth, and the longest one.
_FIRST = 0.25
_GROWTH = 1.5
_LONGEST = 10.0
_LONGEST_WITH_LIMIT = 1.0


class Limits:
    """Measures a run, and ends it when it exceeds a limit."""

    def __init__(self, options: StarterOptions, end: Callable[[Cause, Excess], None], is_over: threading.Event) -> None:
        self._options = options
        self._end = end
        self._is_over = is_over
        self._meter = Meter(os.getpid())

    @property
    def peak_memory(self) -> int:
        """Returns the largest measured sum, in bytes, of the memory of all of the run's processes."""
        return self._meter.peak

    def add(self, pid: int) -> None:
        """Measures the descendants of another process, too."""
        self._meter.pids.append(pid)

    def begin(self, cgroup: Cgroup | None = None) -> None:
        """Starts to watch the run, which is starting now, in a cgroup of its own if one is given."""
        self._meter.cgroup = cgroup
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        deadline = time.monotonic() + self._options.time_limit if self._options.time_limit else float("inf")
        interval = _FIRST
        longest = _LONGEST_WITH_LIMIT if self._options.memory else _LONGEST
        while not self._is_over.wait(min(interval, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                self._end(Cause.TIME_LIMIT, Excess(self._options.time_limit))
                return
            if self._is_out_of_memory():
                return
            interval = min(interval * _GROWTH, longest)

    def _is_out_of_memory(self) -> bool:
        used, requested = self._meter.sample(), self._options.memory
        if not requested or used <= requested * (1 + MARGIN):
            return False
        used = min(used, self._meter.exact())
        if used <= requested * (1 + MARGIN):
            return False
        self._end(Cause.OUT_OF_MEMORY, Excess(requested, used))
        return True
