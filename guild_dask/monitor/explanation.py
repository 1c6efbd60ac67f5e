"""Why a run waits, in sentences with numbers, and what would make it start. Pure."""

import difflib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from guild_dask.monitor import estimate
from guild_dask.monitor.formatting import about, duration, short
from guild_dask.monitor.state import RunningRun, State
from guild_dask.plan.devices import PIN, is_pin
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
)
from guild_dask.plan.resources import fits, format_amounts, remaining

# How many runs a sentence names.
_NAMED = 3


@dataclass(frozen=True)
class Explanation:
    """Sentences about one run with one scheduler."""

    why: str
    remedy: str
    can_start: bool  # without another scheduler, or other tags
    place: int | None = None
    starts_in: float | None = None
    command: str = ""  # to type, after the remedy

    def __str__(self) -> str:
        return f"{self.why} {self.remedy} {self.command}".strip()


def without_scheduler(asks: Mapping[str, float]) -> Explanation:
    """Returns why a staged run waits where no scheduler is at work."""
    return Explanation(
        "It waits for a scheduler, and none is at work on this Guild home.",
        "Start one:",
        can_start=False,
        command=_scheduler_command(asks),
    )


def of_scheduler(run: str) -> Explanation:
    """Returns why no scheduler starts a staged scheduler or queue."""
    return Explanation(
        "It is a scheduler itself, or a queue, and no scheduler starts it.",
        "Start it yourself:",
        can_start=False,
        command=f"guild run --start {run}",
    )


def out_of_sight(state: State) -> Explanation:
    """Returns why a staged run waits that the scheduler's filter leaves out."""
    return Explanation(
        f"The scheduler {short(state.scheduler)} does not see it: it starts only runs that match {state.filter!r}.",
        "Start another scheduler for the others:",
        can_start=False,
        command="guild run dask:scheduler",
    )


def when_there_is_one(hold: Hold) -> str:
    """Returns what a scheduler will make of a run that comes after others, where none is at work yet."""
    if isinstance(hold, AfterRuns):
        return f"It then still comes after others: {hold}."
    return f"The scheduler then holds it back: {hold}. {_HELD_REMEDIES.get(type(hold), '')}".strip()


def in_vain(run: str, before: Mapping[str, Mapping[str, float]], state: State) -> Explanation | None:
    """Returns why a staged run that comes after others waits for them in vain, given what each asks; None if not so."""
    why = state.aside.get(run)
    if not isinstance(why, AfterRuns):
        return None
    found = (_never(each, asks, state) for each, asks in before.items())
    first = next((each for each in found if each), None)
    return replace(first, why=f"It comes after others: {why}. {first.why}") if first else None


def with_scheduler(run: str, asks: Mapping[str, float], state: State, place: int | None, now: float) -> Explanation:
    """Returns why a staged run waits while a scheduler is at work; the place is its place in the queue, if known."""
    who = f"scheduler {short(state.scheduler)}"
    held_back = _held_back(run, state, who, now)
    if held_back:
        return held_back
    why = _why(run, asks, state)
    if why and why.is_final:
        remedy, command = _other(why, asks)
        text = f"It can never start with the {who}: it {why}.{_did_you_mean(why, asks, state)}"
        return Explanation(text, remedy, can_start=False, command=command)
    starts = dict(zip((each.run for each in state.first), estimate.seconds_until_starts(state, now), strict=True)).get(
        run
    )
    ahead = _ahead(place)
    guess = "" if starts is None else f" By how long runs took so far, that is {about(starts, 'in ')}."
    if state.blocked_by:
        others = _named([short(each) for each in state.blocked_by])
        text = f"It waits, as all runs do with wait-for-running, for other runs to end: {others}."
        return Explanation(text + ahead, "", True, place, None)
    if why is None:
        return Explanation(
            f"The {who} has not looked at it yet.{ahead}", "It does so within seconds.", True, place, starts
        )
    return Explanation(f"It {why}.{ahead}", _what_ends(why, asks, state, now) + guess, True, place, starts)


def _held_back(run: str, state: State, who: str, now: float) -> Explanation | None:
    """Returns why a run is not in the queue, or none of the queue starts; None if neither is so."""
    why = state.aside.get(run)
    if isinstance(why, AfterRuns):
        return Explanation(f"It comes after others: {why}.", "It waits in line when they have completed.", True)
    if why:
        return Explanation(f"The {who} holds it back: {why}.", _held_remedy(why), can_start=False)
    if run in state.resting:
        again = about(max(0.0, state.resting[run] - now), "in ")
        last = next((each for each in reversed(state.ended) if each.run == run), None)
        how = f"Attempt {last.attempt} was not the last ({last.why or f'exit code {last.exit_code}'})" if last else ""
        return Explanation(f"{how or 'Its last attempt was cut short'}; the {who} tries it again {again}.", "", True)
    if state.phase != "working":
        return Explanation(f"The {who} is {state.phase}, and starts nothing.", _after(state.phase), can_start=False)
    return None


def _never(run: str, asks: Mapping[str, float], state: State) -> Explanation | None:
    """Returns why a run that comes before another never starts as it is; None if it may."""
    who, held, why = f"scheduler {short(state.scheduler)}", state.aside.get(run), _why(run, asks, state)
    if held and not isinstance(held, AfterRuns):
        return Explanation(f"But the {who} holds run {short(run)} back: {held}.", _held_remedy(held), False)
    if held or not (why and why.is_final):
        return None
    remedy, command = _other(why, asks)
    text = f"But run {short(run)} can never start with the {who}: it {why}."
    return Explanation(text, remedy, can_start=False, command=command)


def _held_remedy(why: AnyReason) -> str:
    return _HELD_REMEDIES.get(type(why), "That is looked at again when something about the run changes.")


_HELD_REMEDIES: Mapping[type, str] = {
    AfterFailed: "Run that one again ('guild run --restart ID'), or take the tag away ('guild tag --delete TAG ID').",
    AfterUnknown: "Change the tag: 'guild tag --help'.",
    AfterAmbiguous: "Give more letters of the id in the tag: 'guild tag --help'.",
    AfterCycle: "Take the tag away from one of them: 'guild tag --delete TAG ID'.",
}


def _ahead(place: int | None) -> str:
    if place is None:
        return ""
    return f" {place - 1} run(s) are ahead of it." if place > 1 else " It is next."


def _why(run: str, asks: Mapping[str, float], state: State) -> AnyReason | None:
    for waiting in state.first:
        if waiting.run == run:
            return waiting.why
    kind = kind_of(asks)
    return next((each.why for each in state.kinds if kind_of(each.asks) == kind), None)


def _after(phase: str) -> str:
    if phase == "stopping":
        return "The run stays staged: start another scheduler with 'guild run dask:scheduler'."
    if phase == "paused":
        return "It goes on with 'guild-dask resume'."
    return "The run stays staged."


def _did_you_mean(why: AnyReason, asks: Mapping[str, float], state: State) -> str:
    """Returns a question for each name that no worker defines and that is nearly one that is defined."""
    defined = {name.lower(): name for worker in state.workers for name in worker.total}
    unknown = [name for name in asks if name not in defined.values()] if isinstance(why, NotDefined) else []
    near = ((name, difflib.get_close_matches(name.lower(), defined, n=1)) for name in unknown)
    found = [format_amounts({defined[match[0]]: asks[name]}) for name, match in near if match]
    return f" Did you mean {' '.join(found)}?" if found else ""


def _other(why: AnyReason, asks: Mapping[str, float]) -> tuple[str, str]:
    """Returns what would have to be changed for a run that cannot start, and a command for it, if there is one."""
    pins = _pins(why)
    if pins:
        text = "It was staged with --gpus, for these very devices. Start a scheduler that has them:"
        return text, f"guild run dask:scheduler gpus={','.join(pins)}"
    if isinstance(why, (NotDefined, TooLarge, NoSingleWorker)):
        text = "Change its tags ('guild tag --help'), or start a scheduler that has what it asks for:"
        return text, _scheduler_command(asks, isinstance(why, NotDefined))
    return _REMEDIES.get(type(why), ""), ""


def _pins(why: AnyReason) -> list[str]:
    """Returns the very devices that are asked for and are not there."""
    names = why.names if isinstance(why, NotDefined) else (why.name,) if isinstance(why, TooLarge) else ()
    return [name[len(PIN) :] for name in names if is_pin(name)]


_REMEDIES: Mapping[type, str] = {
    NotWhole: "Change its tag ('guild tag --help').",
    TooLong: "Give it a shorter time limit (tag dask-time:), or the jobs of the queue a longer walltime.",
}


def _scheduler_command(asks: Mapping[str, float], may_find_gpus: bool = True) -> str:
    finds_gpus = may_find_gpus and asks.get("gpu", 0.0) > 0
    amounts = {name: amount for name, amount in asks.items() if amount > 0 and not (finds_gpus and name == "gpu")}
    words = ["guild run dask:scheduler", *(["gpus=auto"] if finds_gpus else [])]
    if amounts:
        words.append(f"resources={shlex.quote(format_amounts(amounts))}")
    return " ".join(words)


def _what_ends(why: AnyReason, asks: Mapping[str, float], state: State, now: float) -> str:
    """Returns which ends of runs would let it start."""
    users = _users(why, asks, state) if isinstance(why, InUse) else []
    if users:
        return f"What it asks for is used by {_runs(users, now)}; it starts when enough of that is free."
    if isinstance(why, NoFreeSlot) and state.running:
        return f"It starts when its turn has come and one of these has ended: {_runs(list(state.running), now)}."
    if isinstance(why, NoWorker):
        return "It starts when a worker has joined."
    return ""


def _users(why: InUse, asks: Mapping[str, float], state: State) -> list[RunningRun]:
    """Returns the runs that use something of which there is not enough free where they are."""
    short_of: dict[str, set[str]] = {}
    for worker in state.workers:
        if all(fits(amount, worker.total.get(name, 0.0)) for name, amount in asks.items()):
            free = remaining(worker.total, worker.used)
            short_of.setdefault(worker.name, set()).update(
                n for n, amount in asks.items() if not fits(amount, free.get(n, 0.0))
            )
    there = [run for run in state.running if run.worker in short_of]
    users = [run for run in there if any(run.asks.get(name, 0.0) > 0 for name in short_of[run.worker])]
    # Of devices enough may be free in sum, and no single one.
    return users or [run for run in there if run.asks.get(why.name, 0.0) > 0]


def _runs(runs: list[RunningRun], now: float) -> str:
    longest = sorted(runs, key=lambda run: run.since)
    return _named([f"{short(run.run)} (for {duration(now - run.since)})" for run in longest])


def _named(texts: list[str]) -> str:
    more = [f"{len(texts) - _NAMED} more"] if len(texts) > _NAMED else []
    return ", ".join([*texts[:_NAMED], *more])
