"""The texts of log lines that need more than one line of code. Pure."""

import logging
from collections.abc import Mapping

from guild_dask.home.control import Control
from guild_dask.home.outcome import End, Result, text_for_cause
from guild_dask.host import signals
from guild_dask.plan.resources import format_amounts


def starting(run_id: str, asks: Mapping[str, float]) -> str:
    """Returns the line for a run that is in the plan."""
    return (
        f"Starting staged run {run_id} (requires {format_amounts(asks)})" if asks else f"Starting staged run {run_id}"
    )


_LEVELS = {
    End.COULD_NOT_START: logging.WARNING,
    End.FAILED: logging.WARNING,
    End.GONE: logging.WARNING,
    End.TRIED_AGAIN: logging.WARNING,
    End.TERMINATED: logging.INFO,
    End.STAGED_AGAIN: logging.INFO,
    End.COMPLETED: logging.DEBUG,
}


def ended(run_id: str, result: Result, last_line: str = "") -> tuple[int, str]:
    """Returns the level and the line for the end of a run, or of an attempt."""
    code, why = result.exit_code, result.ending.why
    texts = {
        End.COULD_NOT_START: f"could not be started (exit code {code}): {last_line}",
        End.FAILED: f"{_failure(result)} ('guild cat --output {run_id[:8]}' shows its output)",
        End.GONE: "was deleted, or taken over, while it was running",
        End.TRIED_AGAIN: f"is staged again for attempt {result.attempt + 1} ({_why_again(result)})",
        End.TERMINATED: "was terminated" + (f" ({why})" if why else ""),
        End.STAGED_AGAIN: "did not start and is staged again",
        End.COMPLETED: "completed",
    }
    level = logging.WARNING if result.cause and result.cause.is_limit else _LEVELS[result.end]
    return level, f"Run {run_id} {texts[result.end]}"


def _failure(result: Result) -> str:
    """Returns how a run failed by itself."""
    if result.ending.was_killed:
        return f"was {signals.killed_by(result.exit_code or 0)}"
    return f"failed with exit code {result.exit_code}"


def _why_again(result: Result) -> str:
    """Returns why the attempt did not complete."""
    if result.ending.why:
        return result.ending.why
    if result.cause:
        return text_for_cause(result.cause)
    return f"it {_failure(result)}" if result.exit_code is not None else "it was cut short"


def out_of_sight(run_id: str, host: str, problem: str) -> str:
    """Returns the line for a run whose worker is out of sight."""
    return f"Lost sight of run {run_id} on {host} ({problem}); it is started again only if it is known to be dead"


def summary(ends: Mapping[End, int], left: int, seconds: float) -> str:
    """Returns the last line of run-once: how many runs ended how, and how long it took."""
    failed = sum(ends.get(end, 0) for end in (End.FAILED, End.COULD_NOT_START, End.GONE))
    parts = [f"{ends.get(End.COMPLETED, 0)} run(s) completed", f"{failed} failed"]
    if ends.get(End.TERMINATED):
        parts.append(f"{ends[End.TERMINATED]} terminated")
    parts.append(f"{left} left staged")
    return f"Processed staged runs in {seconds:.1f} seconds: {', '.join(parts)}"


def control_changed(before: Control, now: Control, running: int) -> str:
    """Returns the line for what users ask of the scheduler now; empty if nothing has changed."""
    if now == before:
        return ""
    if now.is_draining and not before.is_draining:
        return f"Draining: starting no more runs, and stopping when {running} running run(s) have ended"
    if now.is_paused and not before.is_paused:
        return "Paused: running runs go on, and none is started before 'guild-dask resume'"
    return "" if now.is_paused or now.is_draining else "Resumed"
