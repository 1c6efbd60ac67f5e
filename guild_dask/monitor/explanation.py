"""Why a run waits and what would make it start, as sentences with numbers. Pure."""

import difflib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from guild_dask.monitor import estimate
from guild_dask.monitor.formatting import about, duration, short
from guild_dask.monitor.state import Phase, RunningRun, State
from guild_dask.plan.devices import GPU, PIN, is_pin
from guild_dask.plan.placement import kind_of
from guild_dask.plan.reasons import (
    AfterAmbiguous,
    AfterCycle,
    AfterFailed,
    AfterRuns,
    AfterUnknown,
    AnyReason,
    Hold,
    InUse,
    NoFreeSlot,
    NoSingleWorker,
    NotDefined,
    NotWhole,
    NoWorker,
    TooLarge,
    TooLong,
    UnreadableTag,
)
from guild_dask.plan.resources import fits, format_amounts, remaining

# The most runs that a sentence names.
_NAMED = 3


@dataclass(frozen=True)
class Explanation:
    """Why one run waits with one scheduler."""

    why: str
    remedy: str
    can_start: bool  # with this scheduler and the tags as they are
    position: int | None = None  # in the queue
    starts_in: float | None = None
    command: str = ""  # that carries out the remedy

    def __str__(self) -> str:
        return f"{self.why} {self.remedy} {self.command}".strip()


def without_scheduler(requests: Mapping[str, float]) -> Explanation:
    """Returns why a staged run waits while no scheduler is at work."""
    return Explanation(
        "No scheduler is at work on this Guild home.",
        "Start one:",
        can_start=False,
        command=_scheduler_command(requests),
    )


def of_scheduler(run: str) -> Explanation:
    """Returns why no scheduler starts a staged scheduler or queue."""
    return Explanation(
        "It is a scheduler or a queue, which no scheduler starts.",
        "Start it yourself:",
        can_start=False,
        command=f"guild run --start {run}",
    )


def filtered_out(state: State) -> Explanation:
    """Returns why a scheduler ignores a staged run that does not match its filter."""
    return Explanation(
        f"Scheduler {short(state.scheduler)} ignores it: that one starts only runs that match {state.filter!r}.",
        "Start another scheduler:",
        can_start=False,
        command="guild run dask:scheduler",
    )


def held_by_any_scheduler(hold: Hold) -> str:
    """Returns why a run that depends on others stays held when a scheduler is started."""
    return f"A scheduler then holds it: {hold}. {_HELD_REMEDIES.get(type(hold), '')}".strip()


def held_for_its_tag(run: str, why: UnreadableTag) -> Explanation:
    """Returns why every scheduler holds a run with a tag that cannot be read."""
    return Explanation(f"A scheduler then holds it: {why}.", _held_remedy(why), False, command=retag_command(run, why))


def retag_command(run: str, why: UnreadableTag) -> str:
    """Returns the command that replaces a tag that cannot be read by one that can."""
    return f"guild tag -d {shlex.quote(why.tag)} -a {shlex.quote(why.example)} {short(run)} -y"


def after_impossible(run: str, before: Mapping[str, Mapping[str, float]], state: State) -> Explanation | None:
    """Returns why a held run depends on one that never starts; None if all may. `before` has what each requests."""
    why = state.first_held.get(run)
    if not isinstance(why, AfterRuns):
        return None
    found = (_never(each, requests, state) for each, requests in before.items())
    first = next((each for each in found if each), None)
    return replace(first, why=f"It is held: {why}. {first.why}") if first else None


def with_scheduler(
    run: str, requests: Mapping[str, float], state: State, position: int | None, now: float
) -> Explanation:
    """Returns why a staged run waits with a scheduler; `position` is the one in the queue, if known."""
    not_queued = _not_queued(run, state, now)
    if not_queued:
        return not_queued
    why = _why(run, requests, state)
    if why and why.is_final:
        remedy, command = _other(why, requests, state)
        text = (
            f"It can never start with scheduler {short(state.scheduler)}: {why}.{_did_you_mean(why, requests, state)}"
        )
        return Explanation(text, remedy, can_start=False, command=command)
    starts = dict(zip((each.run for each in state.first), estimate.seconds_until_starts(state, now), strict=True)).get(
        run
    )
    ahead = _ahead(position)
    guess = "" if starts is None else f" Estimated start: {about(starts, 'in ', estimate.is_least(state, now))}."
    if state.blocked_by:
        others = _named([short(each) for each in state.blocked_by])
        text = f"The scheduler has the flag wait-for-running, and waits for other runs to end: {others}."
        return Explanation(text + ahead, "", True, position, None)
    if why is None:
        return Explanation(
            f"Scheduler {short(state.scheduler)} has not read it yet.{ahead}",
            "It does so within seconds.",
            True,
            position,
            starts,
        )
    return Explanation(f"It {why}.{ahead}", _what_ends(why, requests, state, now) + guess, True, position, starts)


def _not_queued(run: str, state: State, now: float) -> Explanation | None:
    """Returns why a run is held or retrying, or why the scheduler starts no run; None if none of these applies."""
    why = state.first_held.get(run)
    if isinstance(why, AfterRuns):
        return Explanation(f"It is held: {why}.", "It joins the queue when they have completed.", True)
    if why:
        command = retag_command(run, why) if isinstance(why, UnreadableTag) else ""
        text = f"Scheduler {short(state.scheduler)} holds it: {why}."
        return Explanation(text, _held_remedy(why), can_start=False, command=command)
    if run in state.retrying:
        again = about(max(0.0, state.retrying[run] - now), "in ")
        last = next((each for each in reversed(state.ended) if each.run == run), None)
        attempt = f"Attempt {last.attempt}" if last else "Its last attempt"
        how = f" ({last.ending.how})" if last else ""
        return Explanation(
            f"{attempt} did not complete{how}. Scheduler {short(state.scheduler)} retries it {again}.", "", True
        )
    if state.phase is not Phase.WORKING:
        return Explanation(
            f"Scheduler {short(state.scheduler)} is {state.phase.value} and starts no runs.",
            _after(state.phase),
            can_start=False,
        )
    return None


def _never(run: str, requests: Mapping[str, float], state: State) -> Explanation | None:
    """Returns why a run that another depends on never starts as it is; None if it may."""
    held, why = state.first_held.get(run), _why(run, requests, state)
    if held and not isinstance(held, AfterRuns):
        return Explanation(
            f"But scheduler {short(state.scheduler)} holds run {short(run)}: {held}.", _held_remedy(held), False
        )
    if held or not (why and why.is_final):
        return None
    remedy, command = _other(why, requests, state)
    text = f"But run {short(run)} can never start with scheduler {short(state.scheduler)}: {why}."
    return Explanation(text, remedy, can_start=False, command=command)


def _held_remedy(why: AnyReason) -> str:
    return _HELD_REMEDIES.get(type(why), "The scheduler checks the run again when it changes.")


_HELD_REMEDIES: Mapping[type, str] = {
    AfterFailed: "Run that one again ('guild run --restart ID'), or remove the tag ('guild tag --delete TAG ID').",
    AfterUnknown: "Change the tag: 'guild tag --help'.",
    AfterAmbiguous: "Use a longer part of the id in the tag: 'guild tag --help'.",
    UnreadableTag: "Set the tag that you mean, such as:",
    AfterCycle: "Remove the tag from one of them: 'guild tag --delete TAG ID'.",
}


def _ahead(position: int | None) -> str:
    if position is None:
        return ""
    return f" {position - 1} run(s) are ahead of it." if position > 1 else " It is next."


def _why(run: str, requests: Mapping[str, float], state: State) -> AnyReason | None:
    for waiting in state.first:
        if waiting.run == run:
            return waiting.why
    kind = kind_of(requests)
    return next((each.why for each in state.kinds if kind_of(each.requests) == kind), None)


def _after(phase: Phase) -> str:
    if phase is Phase.STOPPING:
        return "The run stays staged: start another scheduler with 'guild run dask:scheduler'."
    if phase is Phase.PAUSED:
        return "'guild-dask resume' resumes it."
    return "The run stays staged."


def _did_you_mean(why: AnyReason, requests: Mapping[str, float], state: State) -> str:
    """Returns suggestions for undefined resource names that resemble defined ones."""
    defined = {name.lower(): name for worker in state.workers for name in worker.total}
    unknown = [name for name in requests if name not in defined.values()] if isinstance(why, NotDefined) else []
    near = ((name, difflib.get_close_matches(name.lower(), defined, n=1)) for name in unknown)
    found = [format_amounts({defined[match[0]]: requests[name]}) for name, match in near if match]
    return f" Did you mean {' '.join(found)}?" if found else ""


def _other(why: AnyReason, requests: Mapping[str, float], state: State) -> tuple[str, str]:
    """Returns what to change so that an impossible run can start, and a command for it, which may be empty."""
    if state.gpus == "auto" and isinstance(why, NotDefined) and GPU in why.names:
        found = next((worker.about_devices for worker in state.workers if worker.about_devices), "none was found")
        text = f"gpus=auto found no GPU: {found}. Start a scheduler on a machine with GPUs, list them (gpus=0,1),"
        return f"{text} or remove the tag ('guild tag --help').", ""
    pins = _pins(why)
    if pins:
        text = "It was staged with --gpus for these devices. Start a scheduler that has them:"
        return text, f"guild run dask:scheduler gpus={','.join(pins)}"
    if isinstance(why, (NotDefined, TooLarge, NoSingleWorker)):
        text = "Change its tags ('guild tag --help'), or start a scheduler with these resources:"
        return text, _scheduler_command(requests, isinstance(why, NotDefined))
    return _REMEDIES.get(type(why), ""), ""


def _pins(why: AnyReason) -> list[str]:
    """Returns the devices that are requested by id and do not exist."""
    names = why.names if isinstance(why, NotDefined) else (why.name,) if isinstance(why, TooLarge) else ()
    return [name[len(PIN) :] for name in names if is_pin(name)]


_REMEDIES: Mapping[type, str] = {
    NotWhole: "Change its tag ('guild tag --help').",
    TooLong: "Give the run a shorter time limit (tag dask-time:), or the queue's jobs a longer walltime.",
}


def _scheduler_command(requests: Mapping[str, float], may_find_gpus: bool = True) -> str:
    finds_gpus = may_find_gpus and requests.get("gpu", 0.0) > 0
    amounts = {name: amount for name, amount in requests.items() if amount > 0 and not (finds_gpus and name == "gpu")}
    words = ["guild run dask:scheduler", *(["gpus=auto"] if finds_gpus else [])]
    if amounts:
        words.append(f"resources={shlex.quote(format_amounts(amounts))}")
    return " ".join(words)


def _what_ends(why: AnyReason, requests: Mapping[str, float], state: State, now: float) -> str:
    """Returns what must happen before a run starts."""
    users = _users(why, requests, state) if isinstance(why, InUse) else []
    if users:
        return f"In use by {_runs(users, now)}; the run starts when enough is free."
    if isinstance(why, NoFreeSlot) and state.running:
        return f"It starts when it is next and one of these ends: {_runs(list(state.running), now)}."
    if isinstance(why, NoWorker):
        return "It starts when a worker joins."
    return ""


def _users(why: InUse, requests: Mapping[str, float], state: State) -> list[RunningRun]:
    """Returns the running runs that use a resource of which their worker has too little free."""
    short_of: dict[str, set[str]] = {}
    for worker in state.workers:
        if all(fits(amount, worker.total.get(name, 0.0)) for name, amount in requests.items()):
            free = remaining(worker.total, worker.used)
            short_of.setdefault(worker.name, set()).update(
                n for n, amount in requests.items() if not fits(amount, free.get(n, 0.0))
            )
    there = [run for run in state.running if run.worker in short_of]
    users = [run for run in there if any(run.requests.get(name, 0.0) > 0 for name in short_of[run.worker])]
    # Enough of a device resource may be free in total, but not on a single device.
    return users or [run for run in there if run.requests.get(why.name, 0.0) > 0]


def _runs(runs: list[RunningRun], now: float) -> str:
    longest = sorted(runs, key=lambda run: run.since)
    return _named([f"{short(run.run)} (for {duration(now - run.since)})" for run in longest])


def _named(texts: list[str]) -> str:
    more = [f"{len(texts) - _NAMED} more"] if len(texts) > _NAMED else []
    return ", ".join([*texts[:_NAMED], *more])
