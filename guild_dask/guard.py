"""What a starter watches while its run runs: the life of its worker, the Guild home, and a wish to stop.

Each is a thread. Whatever one finds, it notes the cause and sends SIGTERM to its own process, whose handler knows
whether there is something to end already.
"""

import contextlib
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable

from guild_dask import claims
from guild_dask.cgroups import Cgroup
from guild_dask.last_word import BEAT, wish
from guild_dask.limits import Limits
from guild_dask.outcomes import NO_EXCESS, Cause, Excess
from guild_dask.processes import ProcessIdentity
from guild_dask.terms import Terms

# What the worker writes into the lifeline to have the run stopped.
STOP_BYTE = b"s"
LOST_BYTE = b"l"

# Of the lease: how often the home is told that the run lives, and most seconds until a wish to stop is seen.
_BEATS_IN_LEASE = 4
_LOOK_FOR_STOP = 2.0


class Guard:
    """Watches over one run, on the terms that the scheduler has given."""

    def __init__(self, claim: pathlib.Path, terms: Terms, end: Callable[[Cause, Excess], None]) -> None:
        self._claim = claim
        self._terms = terms
        self._end: Callable[[Cause], None] = lambda cause: end(cause, NO_EXCESS)
        self._is_over = threading.Event()
        self.limits = Limits(terms, end, self._is_over)
        self._last_beat = _clock()

    def hold(self, lifeline: int) -> None:
        """Starts to watch the pipe whose other end the worker has open for as long as it lives."""
        threading.Thread(target=self._hold, args=(lifeline,), daemon=True).start()

    def watch(self, owner: ProcessIdentity) -> None:
        """Starts to tell other hosts that the run lives, and to see to it that nobody takes it for dead wrongly."""
        if self._terms.lease:
            self._owner = owner
            self._last_beat = _clock()
            for target in (self._beat, self._see_to_lease):
                threading.Thread(target=target, daemon=True).start()

    def begin(self, cgroup: Cgroup | None) -> None:
        """Starts to hold the run to its limits; it may get a cgroup of its own."""
        self.limits.begin(cgroup)

    @property
    def is_too_late(self) -> bool:
        """Tells whether another host may take the run for dead by now."""
        return bool(self._terms.lease) and _clock() - self._last_beat > self._terms.lease

    def close(self) -> None:
        """Stops watching."""
        self._is_over.set()

    def _hold(self, lifeline: int) -> None:
        said = b""
        with contextlib.suppress(OSError):
            said = os.read(lifeline, 1)
        if not self._is_over.is_set():
            causes = {STOP_BYTE: Cause.STOPPED, LOST_BYTE: Cause.SIGNAL}
            self._end(causes.get(said, Cause.WORKER_DIED))

    def _beat(self) -> None:
        """Touches a file now and then. On a network file system that is gone, this hangs, or fails."""
        interval = self._terms.lease / _BEATS_IN_LEASE
        due = 0.0
        while not self._is_over.wait(min(_LOOK_FOR_STOP, interval)):
            now = _clock()
            # A machine that slept must not renew what has run out: another host may have taken the run over.
            if self.is_too_late or (now >= due and not self._renew(now)):
                self._end(Cause.CUT_OFF)
                return
            due = self._last_beat + interval
            wanted = wish(self._claim)
            if wanted:
                self._end(wanted)
                return

    def _renew(self, now: float) -> bool:
        """Shows that the run lives, if the home can be reached; False if the run is another's by now."""
        with contextlib.suppress(OSError):
            if not claims.is_owned_by(self._claim, self._owner):
                return False
            self._claim.with_suffix(BEAT).touch()
            self._last_beat = now
        return True

    def _see_to_lease(self) -> None:
        """Ends the run when the home was out of reach for so long that another host may take the run for dead."""
        while not self._is_over.wait(self._terms.lease / _BEATS_IN_LEASE):
            if self.is_too_late:
                self._end(Cause.CUT_OFF)
                return


def send_term() -> None:
    """Sends SIGTERM to this process; its handler runs in the main thread."""
    os.kill(os.getpid(), signal.SIGTERM)


def _clock() -> float:
    """Returns seconds that go on while the machine sleeps: others go on, too."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
