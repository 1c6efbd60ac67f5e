"""The invariants that must hold after a round."""

import itertools
import json
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.long.chaos_support.home import Plan
from tests.long.chaos_support.journal import Life, Peak
from tests.long.chaos_support.monkey import Kill
from tests.long.chaos_support.people import Deed

ENDS = ("completed", "error", "terminated")

# Lines that a scheduler logs only after an error of its own: Guild refuses to start none of these runs.
_NEVER_SAID = re.compile(r"Traceback \(most recent call last\)|Exception ignored|could not be started|exit code 75")

_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|Exception ignored")

# Steps of a starter before the run has started: if it is killed right before one of them, the run has not started.
_BEFORE_START = re.compile(
    r"forked|.*(STAGED|PENDING|opref|attrs/(op|run_params|started|env)|RUN\.claimed|RUN\.started)"
)


class Violation(NamedTuple):
    """A broken invariant, and its run, if it is about one."""

    rule: str
    text: str
    run_id: str = ""


@dataclass(frozen=True)
class Capacity:
    """What may be used at the same time."""

    runs: int
    foo: float


@dataclass(frozen=True)
class Seen:
    """What was observed after the end of a round."""

    plans: list[Plan]
    lives: Mapping[str, Life]
    statuses: Mapping[str, str]
    exit_statuses: Mapping[str, int | None]
    kills: list[Kill]
    deeds: list[Deed]  # of people
    claims: list[str]
    left_by_schedulers: list[str]
    processes: Mapping[int, str]  # live processes, each with its pid and command as text
    logs: list[pathlib.Path]
    outputs_of_orderly: list[str]  # run-output folders of schedulers that had time to remove them
    warm: list[str]  # runs whose last attempt was forked from a warm server, as far as is recorded
    capacity: Capacity | None
    peaks: tuple[Peak, Peak]  # of slots, and of foo

    def killed_pids(self) -> set[int]:
        return {kill.pid for kill in self.kills}

    def life(self, run_id: str) -> Life:
        return self.lives.get(run_id) or Life(run_id)


def crashes(path: pathlib.Path) -> list[Kill]:
    """Returns the kills at crash points."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        told = json.loads(line)
        is_before_start = told["role"] == "starter" and told["when"] == "before"
        is_before_start = is_before_start and bool(_BEFORE_START.fullmatch(told["step"]))
        kind = f"{told['role']}, {told['when']}: {told['step']}"
        found.append(Kill(kind, told["pid"], told["run"] if told["role"] == "starter" else "", is_before_start))
    return found


def violations(seen: Seen, rules: Iterable["Rule"] | None = None) -> list[Violation]:
    """Returns the violations of these rules; by default of all rules."""
    return [violation for rule in rules or RULES for violation in rule(seen)]


def _started_twice(seen: Seen) -> Iterator[Violation]:
    retries = {plan.run_id: plan.retries for plan in seen.plans}
    for run_id, life in seen.lives.items():
        spans = sorted(life.spans())
        if len(spans) > 1 + retries.get(run_id, 0):
            yield Violation("started twice", f"{len(spans)} starts", run_id)
        if any(later[0] < earlier[1] for earlier, later in itertools.pairwise(spans)):
            yield Violation("started twice", "an attempt began before the one before it had ended", run_id)


def _lost(seen: Seen) -> Iterator[Violation]:
    for plan in seen.plans:
        status = seen.statuses.get(plan.run_id, "not listed")
        if status not in ENDS:
            yield Violation("lost", f"is {status} at the end", plan.run_id)


def never_started(seen: Seen) -> list[str]:
    """Returns the runs that ended without a start in the journal."""
    return [plan.run_id for plan in seen.plans if not seen.life(plan.run_id).of("start")]


def _never_started(seen: Seen) -> Iterator[Violation]:
    """A run may end without a start only if its starter or process was killed after the claim was marked started."""
    cut_short = {kill.run_id for kill in seen.kills if kill.run_id and not kill.is_before_start}
    for run_id in never_started(seen):
        was_stopped = seen.exit_statuses.get(run_id) == -15
        if seen.statuses.get(run_id) in ENDS and run_id not in cut_short and not was_stopped:
            yield Violation("lost", f"is {seen.statuses[run_id]}, but never started, and no act ended it", run_id)


def _above_capacity(seen: Seen) -> Iterator[Violation]:
    if seen.capacity:
        for name, peak, limit in zip(("runs", "foo"), seen.peaks, (seen.capacity.runs, seen.capacity.foo), strict=True):
            if peak.amount > limit:
                text = (
                    f"{peak.amount:g} {name} at {peak.at:.3f}, where {limit:g} are allowed: {', '.join(peak.run_ids)}"
                )
                yield Violation("above capacity", text, peak.run_ids[-1])


def is_excused(seen: Seen, pid: int) -> bool:
    """Returns whether a process is a runaway of a run whose starter was killed, and so could not end it."""
    runaways = [line for life in seen.lives.values() for line in life.of("runaway") if line.pid == pid]
    killed = seen.killed_pids()
    return any(start.parent in killed for line in runaways for start in seen.life(line.run_id).of("start"))


def left_processes(seen: Seen) -> Iterator[Violation]:
    for pid, command in seen.processes.items():
        if not is_excused(seen, pid):
            yield Violation("process left", command)


def _untrue(seen: Seen) -> Iterator[Violation]:
    killed = seen.killed_pids()
    crashed = {kill.run_id for kill in seen.kills}
    for plan in seen.plans:
        life, status = seen.life(plan.run_id), seen.statuses.get(plan.run_id, "")
        has_ended = bool(life.of("end"))
        if status == "completed" and not (has_ended and plan.exit_code == 0):
            yield Violation("untrue status", "is completed, but did not end well", plan.run_id)
        if not life.of("start") or status not in ENDS:
            continue
        start = life.of("start")[-1]
        starter_is_well = start.parent not in killed and not (plan.run_id in crashed and start.pid not in killed)
        expected = _expected(plan, life, start.pid in killed)
        if starter_is_well and status != expected:
            yield Violation("untrue status", f"is {status}, where the journal says {expected}", plan.run_id)


def _expected(plan: Plan, life: Life, was_killed: bool) -> str:
    """Returns the status that Guild should show for a run whose starter lived until the run's end."""
    if life.of("end"):
        return "error" if plan.exit_code else "completed"
    if life.of("term") or was_killed:
        return "terminated"
    return "an end or a reason for none"


def left_claims(seen: Seen) -> Iterator[Violation]:
    for name in seen.claims:
        yield Violation("claim left", name)


def left_by_schedulers(seen: Seen) -> Iterator[Violation]:
    for name in seen.left_by_schedulers:
        yield Violation("heartbeat or state left", name)


def left_outputs(seen: Seen) -> Iterator[Violation]:
    for name in seen.outputs_of_orderly:
        yield Violation("output left", name)


def said(seen: Seen) -> Iterator[Violation]:
    yield from _lines(seen, _NEVER_SAID)


def _said_after_errors(seen: Seen) -> Iterator[Violation]:
    """After an injected error, a run may fail to start; a traceback must never appear."""
    yield from _lines(seen, _TRACEBACK)


def _lines(seen: Seen, pattern: re.Pattern[str]) -> Iterator[Violation]:
    for log in seen.logs:
        text = log.read_text(errors="backslashreplace")
        if found := pattern.search(text):
            line = text[text.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
            yield Violation("said", f"{log.name}: {line}")


def _burned(seen: Seen) -> Iterator[Violation]:
    """A host that is short of something ends no run that has not started; a scheduler that is stopped may."""
    for run_id in never_started(seen):
        if seen.statuses.get(run_id) in ENDS and seen.exit_statuses.get(run_id) != -15:
            yield Violation("burned", f"is {seen.statuses[run_id]}, but never started", run_id)


def _own_exit_does_not_count(seen: Seen) -> Iterator[Violation]:
    """A run that has exited by itself has the status of its exit code, whatever could not be recorded."""
    for plan in seen.plans:
        starts, status = seen.life(plan.run_id).of("start"), seen.statuses.get(plan.run_id, "")
        has_ended = bool(starts) and any(line.pid == starts[-1].pid for line in seen.life(plan.run_id).of("end"))
        own = "error" if plan.exit_code else "completed"
        if status in ENDS and has_ended and status != own:
            yield Violation("untrue status", f"is {status}, and ended by itself as {own}", plan.run_id)


Rule = Callable[[Seen], Iterator[Violation]]

RULES: tuple[Rule, ...] = (
    _started_twice,
    _lost,
    _never_started,
    _above_capacity,
    left_processes,
    _untrue,
    left_claims,
    left_by_schedulers,
    left_outputs,
    said,
)

# Rules for injected errors instead of kills: a record that could not be written is missing, and a file that a scheduler
# could not remove at its end stays until another scheduler removes it.
RULES_FOR_ERRORS: tuple[Rule, ...] = (
    _started_twice,
    _lost,
    _above_capacity,
    left_processes,
    left_claims,
    _said_after_errors,
)

# A step that fails because the host is short of something.
RULES_FOR_SHORTAGES: tuple[Rule, ...] = (*RULES_FOR_ERRORS, _burned, _own_exit_does_not_count)
