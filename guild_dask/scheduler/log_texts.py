"""The texts of log lines that need more than one line of code. Pure."""

from collections.abc import Mapping, Sequence

from guild_dask.home.claim_record import Claim
from guild_dask.home.control import Control
from guild_dask.home.outcome import End, Result, text_for_cause
from guild_dask.host.signals import killed_by
from guild_dask.monitor.formatting import duration
from guild_dask.plan.capacity import SEARCH
from guild_dask.plan.resources import Unreadable, format_amounts
from guild_dask.plan.tags import BadTag
from guild_dask.scheduler.instructions import DEBUG, INFO, WARNING


def starting(
    run_id: str, requests: Mapping[str, float], sees_no_gpu: bool = False, ignored: Sequence[Unreadable] = ()
) -> str:
    """Returns the line for a run that is in the plan.

    The documented line about a part of a tag that is ignored does not name the run, so this one names the parts.
    """
    facts = [f"requires {format_amounts(requests)}"] if requests and SEARCH not in requests else []
    facts += ["requests no GPU and sees none"] if sees_no_gpu else []
    facts += [f"ignored in its tags: {', '.join(repr(part.part) for part in ignored)}"] if ignored else []
    return f"Starting staged run {run_id} ({'; '.join(facts)})" if facts else f"Starting staged run {run_id}"


def taken(run_id: str, scheduler: str) -> str:
    """Returns the line for a run that was to start here, and was taken by another scheduler, a queue or a user."""
    return f"Run {run_id} was taken by {f'scheduler {scheduler}' if scheduler else 'a Guild queue or a user'}"


def started(run_id: str, worker: str, claim: Claim) -> str:
    """Returns the line for a run that is sent to a worker."""
    attempt = f", attempt {claim.attempt}" if claim.attempt > 1 else ""
    devices = f", GPU {', '.join(claim.devices)}" if claim.devices else ""
    return f"Run {run_id} starts on worker {worker}{devices}{attempt}"


def unreadable(run_id: str, part: Unreadable | BadTag) -> str:
    """Returns the line for a tag, or a part of one, that is ignored. The text for a part is documented as it is."""
    return str(part) if isinstance(part, Unreadable) else about(run_id, str(part))


def about(run_id: str, text: str) -> str:
    """Returns a sentence about a tag as the line for one run."""
    return f"Run {run_id}: {text[:1].lower()}{text[1:]}"


_LEVELS = {
    End.COULD_NOT_START: WARNING,
    End.FAILED: WARNING,
    End.GONE: INFO,
    End.RETRIED: WARNING,
    End.TERMINATED: INFO,
    End.STAGED_AGAIN: INFO,
    End.COMPLETED: DEBUG,
}


def ended(run_id: str, result: Result, last_line: str = "", is_deleted: bool | None = None) -> tuple[int, str]:
    """Returns the level and the line for the end of a run, or of an attempt.

    `is_deleted` says whether the run's directory is there; None if that is not known.
    """
    code, why = result.exit_code, result.ending.why
    reason = last_line or "Guild gave no reason"
    texts = {
        End.COULD_NOT_START: f"could not be started (exit code {code}): {reason}",
        End.FAILED: f"{_failure(result)} ('guild cat --output {run_id[:8]}' shows its output)",
        End.GONE: _GONE[is_deleted],
        End.RETRIED: f"is staged again for attempt {result.attempt + 1} ({_why_again(result)})",
        End.TERMINATED: "was terminated" + (f" ({why})" if why else ""),
        End.STAGED_AGAIN: "did not start and is staged again",
        End.COMPLETED: "completed",
    }
    level = WARNING if result.cause and result.cause.is_limit else _LEVELS[result.end]
    return level, f"Run {run_id} {texts[result.end]}"


_GONE = {
    True: "was deleted while it was running",
    False: "was taken over by another scheduler while it was running",
    None: "was deleted, or taken over, while it was running",
}


def _failure(result: Result) -> str:
    """Returns how a run failed by itself."""
    if result.ending.was_killed:
        return f"was {killed_by(result.exit_code or 0)}"
    return f"failed with exit code {result.exit_code}"


def _why_again(result: Result) -> str:
    """Returns why the attempt did not complete."""
    if result.ending.why:
        return result.ending.why
    if result.cause:
        return text_for_cause(result.cause)
    return f"it {_failure(result)}" if result.exit_code is not None else "it was cut short"


def start_failed(run_id: str, worker: str, problem: str, interval: float) -> str:
    """Returns the line for a run that its worker could not start."""
    again = f"it is staged again, and worker {worker} gets one run every {interval:g} seconds until one has started"
    return f"Run {run_id} could not be started: {problem}; {again}"


def out_of_sight(run_id: str, host: str, problem: str) -> str:
    """Returns the line for a run whose worker is out of sight."""
    return f"Run {run_id} on {host} is unreachable ({problem}); it is started again only if it is known to be dead"


def summary(ends: Mapping[End, int], left: int, seconds: float, is_run_once: bool = True, unsettled: int = 0) -> str:
    """Returns the last line about runs: how many ended how, or are left to the next scheduler, and how long it took."""
    failed = sum(ends.get(end, 0) for end in (End.FAILED, End.COULD_NOT_START))
    parts = [f"{ends.get(End.COMPLETED, 0)} run(s) completed", f"{failed} failed"]
    if ends.get(End.TERMINATED):
        parts.append(f"{ends[End.TERMINATED]} terminated")
    if ends.get(End.GONE):
        parts.append(f"{ends[End.GONE]} deleted")
    parts.append(f"{left} left staged")
    if unsettled:
        parts.append(f"{unsettled} left to the next scheduler")
    took = f"Processed staged runs in {seconds:.1f} seconds" if is_run_once else f"Worked for {duration(seconds)}"
    return f"{took}: {', '.join(parts)}"


def interrupted(running: int) -> str:
    """Returns the line for the first Ctrl-C."""
    are = "run is" if running == 1 else "runs are"
    them = "it" if running == 1 else "them"
    wait = "it has" if running == 1 else "they have"
    return (
        f"{running} {are} running: press Ctrl-C again to end {them}, or wait; the scheduler starts no more runs, and "
        f"stops when {wait} ended ('guild-dask resume' goes on)"
    )


def control_changed(before: Control, now: Control, running: int) -> str:
    """Returns the line for what users ask of the scheduler now; empty if nothing has changed."""
    if now == before:
        return ""
    if now.is_draining and not before.is_draining:
        return f"Draining: starting no more runs, and stopping when {running} running run(s) have ended"
    if now.is_paused and not before.is_paused:
        return "Paused: running runs go on, and none is started before 'guild-dask resume'"
    return "" if now.is_paused or now.is_draining else "Resumed"
