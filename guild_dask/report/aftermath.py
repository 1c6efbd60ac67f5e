"""What a scheduler that was killed could not write down: when it was last heard of, and what became of its runs."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from guild_dask import attempts, rundir, runviews, schedulers, whereabouts
from guild_dask.report.story import Aftermath, goes_on
from guild_dask.rundir import BrokenRun

# How we call what Guild calls otherwise.
_ENDS = {"error": "failed", "staged": "staged again"}


def aftermath_of(run_dir: str, events: Sequence[Mapping[str, Any]]) -> Aftermath:
    """Returns what is known of a scheduler that is not at work any more, beside its events."""
    home, scheduler = os.path.dirname(os.path.dirname(run_dir)), os.path.basename(run_dir)
    last = max(float(events[-1]["at"]), schedulers.last_heard(home, scheduler), _stopped(run_dir))
    found = ((each, _end(os.path.dirname(run_dir), scheduler, each, last)) for each in goes_on(events))
    return Aftermath(last, tuple(_event(started, end) for started, end in found if end))


def _event(started: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, Any]:
    since = float(started["at"])
    at = max(since, float(end["at"]))
    return {"exit_code": None, "used": {}, **started, **end, "event": "ended", "at": at, "ran": at - since}


def _end(runs_dir: str, scheduler: str, started: Mapping[str, Any], last: float) -> dict[str, Any] | None:
    """Returns how an attempt at a run ended, by the run's own records; None if it goes on."""
    run_dir = os.path.join(runs_dir, str(started.get("run")))
    if not os.path.isdir(run_dir):
        return {"end": "gone", "at": last}
    past = _past(run_dir, started.get("attempt"))
    if past:
        return {"end": "tried again", "at": past.ended, "exit_code": past.exit_status, "why": past.cause}
    status, facts = runviews.status(run_dir), _facts(run_dir)
    if status in ("staged", "pending"):
        return {"end": _ENDS.get(status, status), "at": last}
    if facts.get("scheduler", scheduler) != scheduler:
        return {"end": "staged again", "at": last}  # and started by another since
    if status == "running":
        return None
    return {
        "end": _ENDS.get(status, status),
        "at": _stopped(run_dir) or last,
        "exit_code": _number(run_dir, "exit_status"),
        "used": whereabouts.used(run_dir),
        "why": facts.get(whereabouts.ENDED, ""),
    }


def _past(run_dir: str, number: Any) -> attempts.Attempt | None:
    try:
        return attempts.on_record(run_dir, number)
    except OSError:
        return None


def _facts(run_dir: str) -> dict[str, Any]:
    found = _attribute(run_dir, whereabouts.NAME)
    return found if isinstance(found, dict) else {}


def _stopped(run_dir: str) -> float:
    """Returns when Guild has a run end; 0 where it does not say."""
    return (_number(run_dir, "stopped") or 0) / 1e6


def _number(run_dir: str, name: str) -> int | None:
    found = _attribute(run_dir, name)
    return found if isinstance(found, int) else None


def _attribute(run_dir: str, name: str) -> Any:
    try:
        return rundir.attribute(run_dir, name)
    except BrokenRun:
        return None
