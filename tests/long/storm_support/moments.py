"""The moments in the life of a run, as the Guild home and the journal show them."""

import enum
import pathlib
import time

from guild_dask.home import claims

# Seconds between checks: some moments last for milliseconds.
_LOOK = 0.002


class Moment(enum.IntEnum):
    """How far a run has come."""

    STAGED = 0
    CLAIMED = 1  # by the scheduler, for a worker
    HANDED_OVER = 2  # the claim names the starter
    STARTED = 3  # the claim says that the operation's process is about to be started, or was
    RUNNING = 4  # the operation has executed its first instruction
    LAST_INSTRUCTION = 5  # the operation exits by itself
    ENDED = 6  # Guild has recorded its exit status
    SETTLED = 7  # and the scheduler has removed the claim


class Watch:
    """Sees how far the first attempt at a run has come."""

    def __init__(self, guild_home: pathlib.Path, journal: pathlib.Path, run_id: str) -> None:
        self._claims = guild_home / "dask" / "claims"
        self._status = guild_home / "runs" / run_id / ".guild" / "attrs" / "exit_status"
        self._journal = journal
        self._run_id = run_id

    def reached(self) -> Moment:
        """Returns the last moment that the run has reached."""
        found = claims.present(self._claims, self._run_id)
        if self._status.exists():
            return Moment.ENDED if found else Moment.SETTLED
        text = self._journal.read_text() if self._journal.exists() else ""
        if f"end {self._run_id} " in text:
            return Moment.LAST_INSTRUCTION
        if f"start {self._run_id} " in text:
            return Moment.RUNNING
        if found is None:
            return Moment.STAGED
        if found.is_started:
            return Moment.STARTED
        is_handed_over = found.claim is not None and found.claim.owner != found.claim.scheduler
        return Moment.HANDED_OVER if is_handed_over else Moment.CLAIMED

    def host(self) -> str:
        """Returns the host of the run's starter, or of the scheduler that has claimed it; empty if none has."""
        found = claims.present(self._claims, self._run_id)
        return found.claim.owner.host if found and found.claim else ""

    def wait_for(self, moment: Moment, timeout: float) -> bool:
        """Returns when the run has reached a moment, or a later one; False if it has not in time."""
        deadline = time.monotonic() + timeout
        while self.reached() < moment:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK)
        return True
