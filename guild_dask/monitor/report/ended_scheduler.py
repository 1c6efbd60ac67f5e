"""What a killed scheduler could not record: its last heartbeat, and the ends of its runs."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from guild_dask.home import attempts, layout, run_directory, run_info
from guild_dask.home import status as home_status
from guild_dask.home.outcome import End
from guild_dask.home.status import Status
from guild_dask.monitor import schedulers
from guild_dask.monitor.report.history import EndedScheduler, last_begin, unfinished_starts
from guild_dask.plan import records


def ended_scheduler_for(run_dir: str, events: Sequence[Mapping[str, Any]]) -> EndedScheduler:
    """Returns what is known about an ended scheduler besides its events."""
    home, scheduler = layout.home_of_run(run_dir), layout.run_id(run_dir)
    last = max(float(events[-1]["at"]), schedulers.last_heartbeat(home, scheduler), _stopped(run_dir))
    return EndedScheduler(last, _ends(run_dir, events, last))


def ends_of_outlived(run_dir: str, events: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Returns the ends of runs that outlived a former process of a scheduler that is at work."""
    before, since = events[: last_begin(events)], events[last_begin(events) :]
    again = {event.get("run") for event in since if event["event"] == "started"}
    ends = _ends(run_dir, before, float(before[-1]["at"])) if before else ()
    return tuple(end for end in ends if end.get("run") not in again)


def _ends(run_dir: str, events: Sequence[Mapping[str, Any]], last: float) -> tuple[dict[str, Any], ...]:
    runs_dir, scheduler = layout.runs_dir_of(run_dir), layout.run_id(run_dir)
    found = ((each, _end(runs_dir, scheduler, each, last)) for each in unfinished_starts(events))
    return tuple(_event(started, end) for started, end in found if end)


def _event(started: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, Any]:
    since = float(started["at"])
    at = max(since, float(end["at"]))
    return {"exit_code": None, "used": {}, **started, **end, "event": "ended", "at": at, "ran": at - since}


def _end(runs_dir: str, scheduler: str, started: Mapping[str, Any], last: float) -> dict[str, Any] | None:
    """Returns how an attempt ended, from the run's own records; None if it is still running."""
    run_dir = layout.run_in(runs_dir, str(started.get("run")))
    if not os.path.isdir(run_dir):
        return {"end": End.GONE.value, "at": last}
    past = _past(run_dir, started.get("attempt"))
    if past:
        cause = past.cause.value if past.cause else ""
        return {"end": End.RETRIED.value, "at": past.ended, "exit_code": past.exit_status, "cause": cause}
    status, facts = home_status.known_status(run_dir), _facts(run_dir)
    if status is Status.PENDING:
        return {"end": status.value, "at": last}
    if status is Status.STAGED or facts.get("scheduler", scheduler) != scheduler:
        return {"end": End.STAGED_AGAIN.value, "at": last}  # and perhaps another scheduler has started it since
    end = home_status.end_for(status, facts)
    if end is None:
        return None
    cause, excess = run_info.cause_in(facts)
    used, start = run_info.recorded(run_dir)
    return {
        "end": end.value,
        "at": _stopped(run_dir) or last,
        "exit_code": _number(run_dir, "exit_status"),
        "used": used,
        "start": records.data_for(start),
        "cause": cause,
        "excess": records.data_for(excess),
    }


def _past(run_dir: str, number: Any) -> attempts.Attempt | None:
    try:
        return attempts.on_record(run_dir, number)
    except OSError:
        return None


def _facts(run_dir: str) -> dict[str, Any]:
    found = run_directory.known_attribute(run_dir, run_info.NAME)
    return found if isinstance(found, dict) else {}


def _stopped(run_dir: str) -> float:
    """Returns when Guild recorded the end of a run; 0 if it did not."""
    return run_directory.recorded_seconds(run_dir, "stopped") or 0.0


def _number(run_dir: str, name: str) -> int | None:
    found = run_directory.known_attribute(run_dir, name)
    return found if isinstance(found, int) else None
