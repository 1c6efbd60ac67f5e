"""The texts that need more than one line of code; the others stand where they are said."""

import logging
from collections.abc import Mapping

from guild_dask.resources import format_amounts
from guild_dask.runs import End, Result


def starting(run_id: str, asks: Mapping[str, float]) -> str:
    """Returns the line for a run that is in the plan."""
    return (
        f"Starting staged run {run_id} (requires {format_amounts(asks)})" if asks else f"Starting staged run {run_id}"
    )


def ended(run_id: str, result: Result, last_line: str = "") -> tuple[int, str]:
    """Returns the level and text for a run's end. A run that completed speaks for itself."""
    if result.end is End.COULD_NOT_START:
        return logging.WARNING, f"Run {run_id} could not be started (exit code {result.exit_code}): {last_line}"
    if result.end is End.FAILED:
        look = f"'guild cat --output {run_id[:8]}' shows its output"
        return logging.WARNING, f"Run {run_id} failed with exit code {result.exit_code} ({look})"
    if result.end is End.TERMINATED:
        return logging.INFO, f"Run {run_id} was terminated"
    if result.end is End.STAGED_AGAIN:
        return logging.INFO, f"Run {run_id} did not start and is staged again"
    if result.end is End.GONE:
        return logging.WARNING, f"Run {run_id} was deleted, or taken over, while it was running"
    return logging.DEBUG, f"Run {run_id} completed"


def summary(ends: Mapping[End, int], left: int, seconds: float) -> str:
    """Returns the last word of run-once: what came of the runs, and how long it took."""
    failed = sum(ends.get(end, 0) for end in (End.FAILED, End.COULD_NOT_START, End.GONE))
    parts = [f"{ends.get(End.COMPLETED, 0)} run(s) completed", f"{failed} failed"]
    if ends.get(End.TERMINATED):
        parts.append(f"{ends[End.TERMINATED]} terminated")
    parts.append(f"{left} left staged")
    return f"Processed staged runs in {seconds:.1f} seconds: {', '.join(parts)}"
