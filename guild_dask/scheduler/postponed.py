"""Waiting runs that could not be read when they were to be claimed: others start meanwhile. Pure."""

from dataclasses import dataclass

from guild_dask.plan.reasons import CannotBeRead

# How many are postponed in one cycle before it plans no others. More of them are no trouble of single files.
MOST_AT_A_TIME = 50

# For how many polls run-once waits for one of them.
PATIENCE = 12

# Polls until the second try, and seconds between two tries at most.
_SHORTEST_PAUSE = 2
_LONGEST_PAUSE = 3600.0


@dataclass(frozen=True)
class _Postponed:
    reason: CannotBeRead
    since: float  # when it could not be read for the first time
    until: float  # when it is planned again


class PostponedRuns:
    """Runs that are left out of plans for a while, which grows with the time for which they cannot be read."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._runs: dict[str, _Postponed] = {}

    def add(self, run_id: str, reason: CannotBeRead, now: float) -> None:
        """Leaves a run out of plans from now on."""
        since = self._runs[run_id].since if run_id in self._runs else now
        pause = min(max(_SHORTEST_PAUSE * self._interval, now - since), _LONGEST_PAUSE)
        self._runs[run_id] = _Postponed(reason, since, now + pause)

    def forget(self, run_id: str) -> None:
        """Forgets a run that was claimed, or is not staged any more."""
        self._runs.pop(run_id, None)

    def left_out(self, now: float) -> dict[str, CannotBeRead]:
        """Returns the runs that are left out of plans now, and why."""
        return {run_id: each.reason for run_id, each in self._runs.items() if now < each.until}

    def may_start_soon(self, now: float) -> bool:
        """Returns whether one of them has not been waited for long enough by a scheduler that runs once."""
        return any(now - each.since < PATIENCE * self._interval for each in self._runs.values())
