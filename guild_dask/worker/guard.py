"""What a starter watches during its run: its worker, the Guild home, stop requests, and the run's time and memory.

Each watch is a thread. It ends the run by passing the cause to a callback, which sends SIGTERM to the starter's own
process; the signal's handler knows whether the operation has started.
"""

import contextlib
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable

from guild_dask.home import claims, stop_request
from guild_dask.home.outcome import NO_EXCESS, Cause, Excess
from guild_dask.host.cgroups import Cgroup
from guild_dask.host.memory import Meter
from guild_dask.host.processes import ProcessIdentity
from guild_dask.worker.options import StarterOptions

# What the worker writes into the lifeline to end the run: because of a stop request, or because the worker closes.
STOP_BYTE = b"s"
LOST_BYTE = b"l"

_HEARTBEATS_IN_LEASE = 4

# Seconds between checks for a stop request, at most.
_STOP_INTERVAL = 2.0

# A run may use this fraction more memory than it requests: users who request 8GB rarely measured the peak.
MARGIN = 0.1

# Seconds between measurements of memory: the first interval, its growth, and the longest one.
_FIRST = 0.25
_GROWTH = 1.5
_LONGEST = 10.0
_LONGEST_WITH_LIMIT = 1.0


class Guard:
    """Watches one run, and ends it if its worker dies, its lease runs out, it exceeds a limit or is asked to stop."""

    def __init__(self, claim: pathlib.Path, options: StarterOptions, end: Callable[[Cause, Excess], None]) -> None:
        self._claim = claim
        self._options = options
        self._end: Callable[[Cause], None] = lambda cause: end(cause, NO_EXCESS)
        self._is_over = threading.Event()
        self.limits = Limits(options, end, self._is_over)
        self._last_heartbeat = _clock()

    def hold(self, lifeline: int) -> None:
        """Starts to watch the lifeline: a pipe whose other end is open for as long as the worker is alive."""
        threading.Thread(target=self._hold, args=(lifeline,), daemon=True).start()

    def watch(self, owner: ProcessIdentity) -> None:
        """Starts the heartbeat for other hosts, and ends the run before one of them may consider it dead."""
        if self._options.lease:
            self._owner = owner
            self._last_heartbeat = _clock()
            for target in (self._send_heartbeats, self._watch_lease):
                threading.Thread(target=target, daemon=True).start()

    def begin(self, cgroup: Cgroup | None) -> None:
        """Starts to enforce the run's limits, in a cgroup of its own if one is given."""
        self.limits.begin(cgroup)

    @property
    def is_too_late(self) -> bool:
        """Returns whether the lease has run out, so that another host may consider the run dead."""
        return bool(self._options.lease) and _clock() - self._last_heartbeat > self._options.lease

    def close(self) -> None:
        """Stops watching."""
        self._is_over.set()

    def _hold(self, lifeline: int) -> None:
        request = b""
        with contextlib.suppress(OSError):
            request = os.read(lifeline, 1)
        if not self._is_over.is_set():
            causes = {STOP_BYTE: Cause.STOPPED, LOST_BYTE: Cause.SIGNAL}
            self._end(causes.get(request, Cause.WORKER_DIED))

    def _send_heartbeats(self) -> None:
        """Touches the heartbeat file, and checks for a stop request. Hangs if a network file system is unreachable."""
        interval = self._options.lease / _HEARTBEATS_IN_LEASE
        due = 0.0
        while not self._is_over.wait(min(_STOP_INTERVAL, interval)):
            now = _clock()
            # A machine that slept must not renew a lease that has run out: another host may have taken the run over.
            if self.is_too_late or (now >= due and not self._renew(now)):
                self._end(Cause.CUT_OFF)
                return
            due = self._last_heartbeat + interval
            wanted = stop_request.requested_cause(self._claim)
            if wanted:
                self._end(wanted)
                return

    def _renew(self, now: float) -> bool:
        """Renews the heartbeat if the home is reachable; False if the claim has another owner by now."""
        with contextlib.suppress(OSError):
            if not claims.is_owned_by(self._claim, self._owner):
                return False
            self._claim.with_suffix(claims.HEARTBEAT).touch()
            self._last_heartbeat = now
        return True

    def _watch_lease(self) -> None:
        """Ends the run when its lease has run out. Reads no file, so that it cannot hang."""
        while not self._is_over.wait(self._options.lease / _HEARTBEATS_IN_LEASE):
            if self.is_too_late:
                self._end(Cause.CUT_OFF)
                return


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


def send_term() -> None:
    """Sends SIGTERM to this process; its handler runs in the main thread."""
    os.kill(os.getpid(), signal.SIGTERM)


def _clock() -> float:
    """Returns seconds, including those in which the machine was suspended: other hosts count them, too."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
