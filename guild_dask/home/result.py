"""How runs, and attempts at them, end."""

from collections.abc import Callable
from dataclasses import dataclass

from guild_dask.home import run_directory
from guild_dask.home.outcome import NO_EXCESS, Cause, End, Ending, Excess
from guild_dask.home.run_directory import BrokenRun
from guild_dask.host import signals


@dataclass(frozen=True)
class Result:
    """How a run ended, with its exit code where it has one, and what cut it short if something did."""

    end: End
    exit_code: int | None = None
    cause: Cause | None = None
    attempt: int = 1
    excess: Excess = NO_EXCESS  # of a run that reached a limit

    @property
    def ending(self) -> Ending:
        """Returns how it ended, as records have it."""
        return Ending(self.end.value, self.exit_code, self.cause.value if self.cause else "", self.excess)


# Tells whether a run in a directory is to be started again after an attempt that was lost (True) or failed (False).
Again = Callable[[str, bool], bool]


def never(_run_dir: str, _is_loss: bool) -> bool:
    """Tells that no run is started again."""
    return False


def result_for(run_dir: str, exit_code: int, cause: Cause | None, attempt: int) -> Result:
    """Returns how a run that started has ended, as Guild has it on record."""
    try:
        status = run_directory.attribute(run_dir, "exit_status")
    except BrokenRun:
        status = None
    if not isinstance(status, int):
        return Result(End.FAILED, exit_code, cause, attempt)
    if status == 0:
        return Result(End.COMPLETED, 0, None, attempt)
    was_ended = cause is not None or (status < 0 and not signals.is_failure(status))
    return Result(End.TERMINATED if was_ended else End.FAILED, status, cause, attempt)
