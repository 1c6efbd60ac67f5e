"""How runs end and what cuts them short: names that records keep, and the text for each. Pure.

Records and decisions use the names and numbers only. The text is made here, where it is shown.
"""

import enum
from dataclasses import dataclass

from guild_dask.host import signals
from guild_dask.plan.units import format_duration, format_size


class End(enum.Enum):
    """How a run, or the attempt to start it, ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    COULD_NOT_START = "could not start"
    TERMINATED = "terminated"
    STAGED_AGAIN = "staged again"
    TRIED_AGAIN = "tried again"
    GONE = "gone"


# Ends that are failures, as they are on record.
FAILURES = tuple(end.value for end in (End.FAILED, End.COULD_NOT_START, End.GONE))


class Cause(enum.Enum):
    """What cut a run short that had started. The value is the name that records keep."""

    STOPPED = "stopped"
    SCHEDULER_STOPPED = "scheduler-stopped"
    KILLED = "starter-killed"
    SIGNAL = "ended-by-host"
    WORKER_DIED = "worker-died"
    CUT_OFF = "cut-off"
    NODE_LOST = "host-lost"
    TIME_LIMIT = "time-limit"
    OUT_OF_MEMORY = "out-of-memory"

    @property
    def is_limit(self) -> bool:
        """Tells whether the run took more than it may."""
        return self in (Cause.TIME_LIMIT, Cause.OUT_OF_MEMORY)

    @property
    def is_loss(self) -> bool:
        """Tells whether the machine, rather than the run or a person, is to blame."""
        return self not in _BY_PEOPLE and not self.is_limit


_BY_PEOPLE = frozenset((Cause.STOPPED, Cause.SCHEDULER_STOPPED, Cause.KILLED))


def cause_for_name(name: object) -> Cause | None:
    """Returns the cause with a name that a record has, or None for one that this version does not know."""
    # Notes of starters had the member's own name before.
    return next((cause for cause in Cause if name in (cause.value, cause.name)), None)


@dataclass(frozen=True)
class Excess:
    """How much a run that reached a limit may take, and took: seconds or bytes; 0 where that is not known."""

    limit: float = 0.0
    reached: float = 0.0


NO_EXCESS = Excess()


def text_for_cause(cause: Cause, excess: Excess = NO_EXCESS) -> str:
    """Returns what cut a run short, as a clause: `it was stopped`."""
    if cause is Cause.TIME_LIMIT and excess.limit:
        return f"it ran for {format_duration(excess.limit)}, its time limit"
    if cause is Cause.OUT_OF_MEMORY and excess.limit:
        return f"out of memory: it used {format_size(excess.reached)} and asked for {format_size(excess.limit)}"
    return _TEXTS[cause]


_TEXTS = {
    Cause.STOPPED: "it was stopped",
    Cause.SCHEDULER_STOPPED: "its scheduler was stopped",
    Cause.KILLED: "the process that started it was killed",
    Cause.SIGNAL: "its host ended it",
    Cause.WORKER_DIED: "its worker died",
    Cause.CUT_OFF: "its host was cut off from the Guild home",
    Cause.NODE_LOST: "its host died or was cut off",
    Cause.TIME_LIMIT: "it reached its time limit",
    Cause.OUT_OF_MEMORY: "out of memory",
}


def text_for_name(name: str, excess: Excess = NO_EXCESS) -> str:
    """Returns the text for a cause by its name; a name that this version does not know is shown as it is."""
    cause = cause_for_name(name)
    return text_for_cause(cause, excess) if cause else name


def text_for_signal(exit_status: int) -> str:
    """Returns which signal killed a run's process, as a clause."""
    return f"it was {signals.killed_by(exit_status)}"


@dataclass(frozen=True)
class Ending:
    """How an attempt ended, as records have it: the names of its end and of its cause, and the exit status."""

    end: str
    exit_status: int | None
    cause: str = ""
    excess: Excess = NO_EXCESS

    @property
    def was_killed(self) -> bool:
        """Tells whether a signal that is no request to end killed the run's process, and we did not send it."""
        may_be = not self.cause and self.end in _OWN_ENDS
        return may_be and self.exit_status is not None and signals.is_failure(self.exit_status)

    @property
    def is_failure(self) -> bool:
        """Tells whether somebody should look at it: it failed, or was ended by nobody's wish."""
        return self.end in FAILURES or (self.end == End.TERMINATED.value and self._was_cut_short)

    @property
    def _was_cut_short(self) -> bool:
        """Tells whether something else than a person cut it short. A cause that is not known is taken for that."""
        return bool(self.cause) and cause_for_name(self.cause) not in _BY_PEOPLE

    @property
    def why(self) -> str:
        """Returns what cut the run short, as text; empty if nothing did but a person, or the run itself."""
        if self.was_killed:
            return text_for_signal(self.exit_status or 0)
        return text_for_name(self.cause, self.excess) if self._was_cut_short else ""


_OWN_ENDS = frozenset(end.value for end in (End.FAILED, End.TRIED_AGAIN))
