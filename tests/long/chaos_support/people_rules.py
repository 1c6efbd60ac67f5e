"""What must hold after a round in which people did all kinds of things to runs."""

import itertools
from collections.abc import Iterator

from tests.long.chaos_support import invariants
from tests.long.chaos_support.home import Plan
from tests.long.chaos_support.invariants import ENDS, Rule, Seen, Violation


def _twice_at_a_time(seen: Seen) -> Iterator[Violation]:
    for run_id, life in seen.lives.items():
        for earlier, later in itertools.pairwise(sorted(life.spans())):
            if later[0] < earlier[1]:
                yield Violation("twice at a time", f"{later[0]:.3f} is before {earlier[1]:.3f}", run_id)


def _again_after_it_completed(seen: Seen) -> Iterator[Violation]:
    """A run that has completed is started again only if a person staged it again in between."""
    for plan in seen.plans:
        life = seen.life(plan.run_id)
        ends = [line.at for line in life.of("end")] if plan.exit_code == 0 else []
        deeds = [deed for deed in seen.deeds if deed.run_id == plan.run_id and deed.is_restaging]
        for start in life.of("start"):
            last_end = max((at for at in ends if at < start.at), default=None)
            if last_end and not any(deed.begun < start.at and deed.ended > last_end for deed in deeds):
                yield Violation(
                    "started after it completed", f"ended at {last_end}, started at {start.at}", plan.run_id
                )


def _too_many_starts(seen: Seen) -> Iterator[Violation]:
    for plan in seen.plans:
        staged = 1 + sum(deed.is_restaging for deed in seen.deeds if deed.run_id == plan.run_id)
        starts = len(seen.life(plan.run_id).of("start"))
        if starts > staged * (1 + plan.retries):
            yield Violation("started too often", f"{starts} times, staged {staged} times", plan.run_id)


def _without_end(seen: Seen) -> Iterator[Violation]:
    """A run that is left staged has a reason: its tags, or the run that it comes after and that did not complete."""
    for plan in seen.plans:
        status = seen.statuses.get(plan.run_id, "not listed")
        if status == "staged" and (plan.never_starts or _waits(plan, seen)):
            continue
        if status not in ENDS or (plan.never_starts and seen.life(plan.run_id).lines):
            yield Violation("lost", f"is {status} at the end", plan.run_id)


def _waits(plan: Plan, seen: Seen) -> bool:
    return bool(plan.after) and seen.statuses.get(plan.after) != "completed"


def _unexplained_end(seen: Seen) -> Iterator[Violation]:
    """The last attempt completed or failed by itself, or something is known that ended it."""
    acts = {kill.run_id for kill in seen.kills} | {deed.run_id for deed in seen.deeds if deed.may_end_run}
    with_scheduler = {-15, -9} if any(deed.kind == "Ctrl-C twice" for deed in seen.deeds) else {-15}
    for plan in seen.plans:
        status, life = seen.statuses.get(plan.run_id, ""), seen.life(plan.run_id)
        starts = life.of("start")
        has_ended = bool(starts) and any(line.pid == starts[-1].pid for line in life.of("end"))
        own = ("error" if plan.exit_code else "completed") if has_ended else "terminated"
        was_stopped = seen.exit_statuses.get(plan.run_id) in with_scheduler  # if not by itself
        is_explained = plan.run_id in acts or was_stopped or 0 < plan.limit < plan.seconds
        if status in ENDS and (status == "completed") > has_ended:
            yield Violation("untrue", "is completed, but has not ended well", plan.run_id)
        elif status in ENDS and not is_explained and (status != own or not has_ended):
            yield Violation("unexplained", f"is {status}, the journal says {own}", plan.run_id)


def _crash_without_retry(seen: Seen) -> Iterator[Violation]:
    """A run whose own process was killed is tried again, as often as its tag says, unless a person stopped it."""
    stopped = {deed.run_id for deed in seen.deeds if deed.may_end_run}
    for plan in seen.plans:
        kinds = {kill.kind for kill in seen.kills if kill.run_id == plan.run_id}
        is_left = seen.exit_statuses.get(plan.run_id) == -9 and len(seen.life(plan.run_id).of("start")) <= plan.retries
        if kinds == {"operation KILL"} and is_left and plan.run_id not in stopped:
            yield Violation("not retried", f"was killed, and has {plan.retries} retries", plan.run_id)


RULES: tuple[Rule, ...] = (
    _twice_at_a_time,
    _again_after_it_completed,
    _too_many_starts,
    _without_end,
    _unexplained_end,
    _crash_without_retry,
    invariants.left_processes,
    invariants.left_claims,
    invariants.left_by_schedulers,
    invariants.left_outputs,
    invariants.said,
)
