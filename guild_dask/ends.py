"""How runs, and attempts at them, end."""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from guild_dask import rundir, signals
from guild_dask.last_word import Cause
from guild_dask.rundir import BrokenRun


class End(enum.Enum):
    """How a run, or the attempt to start it, ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    COULD_NOT_START = "could not start"
    TERMINATED = "terminated"
    STAGED_AGAIN = "staged again"
    TRIED_AGAIN = "tried again"
    GONE = "gone"


@dataclass(frozen=True)
class Result:
    """How a run ended, with its exit code where it has one, and what cut it short if something did."""

    end: End
    exit_code: int | None = None
    cause: Cause | None = None
    attempt: int = 1
    detail: str = ""  # more about the cause

    @property
    def why(self) -> str:
        """Returns what cut the run short, in words; empty if nothing did but a person, or the run itself."""
        if self._was_killed:
            return f"it {self.failure}"
        if self.cause is None or not (self.cause.is_loss or self.cause.is_limit):
            return ""
        return self.detail or self.cause.value

    @property
    def reason(self) -> str:
        """Returns why the attempt did not complete, as it is put on record."""
        return self.cause.value if self.cause else f"it {self.failure}"

    @property
    def failure(self) -> str:
        """Returns how a run that nobody cut short has failed."""
        if self._was_killed:
            return f"was {signals.killed_by(self.exit_code or 0)}"
        return f"failed with exit code {self.exit_code}"

    @property
    def _was_killed(self) -> bool:
        is_failure = self.cause is None and self.end in (End.FAILED, End.TRIED_AGAIN)
        return is_failure and self.exit_code is not None and signals.is_failure(self.exit_code)


# Tells whether a run in a directory is to be started again after an attempt that was lost (True) or failed (False).
Again = Callable[[str, bool], bool]


def never(_run_dir: str, _is_loss: bool) -> bool:
    """Tells that no run is started again."""
    return False


def result_for(run_dir: str, exit_code: int, cause: Cause | None, attempt: int) -> Result:
    """Returns how a run that started has ended, as Guild has it on record."""
    try:
        status = rundir.attribute(run_dir, "exit_status")
    except BrokenRun:
        status = None
    if not isinstance(status, int):
        return Result(End.FAILED, exit_code, cause, attempt)
    if status == 0:
        return Result(End.COMPLETED, 0, None, attempt)
    was_ended = cause is not None or (status < 0 and not signals.is_failure(status))
    return Result(End.TERMINATED if was_ended else End.FAILED, status, cause, attempt)
