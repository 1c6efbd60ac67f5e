"""What a starter records when its run has ended: a pure decision, and the writes that carry it out.

Guild has already recorded the exit status. This adds why the run ended, for users, for Guild and for other hosts.
"""

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from guild_dask.home import end_note, run_info
from guild_dask.home.outcome import NO_EXCESS, Cause, Excess, Note
from guild_dask.host import signals


@dataclass(frozen=True)
class StarterEvidence:
    """What a starter knows when its run has ended."""

    cause: Cause | None = None  # what cut the run short; None: it ended by itself
    excess: Excess = NO_EXCESS  # the limit that was reached, if the cause is one
    was_over: bool = False  # the operation had exited before the cause, which ended only processes that it left behind
    exit_status: int | None = None  # of the operation's process; None: it was not seen to end
    node: str | None = None  # the host that Guild shows for the run; None: the scheduler's own, where no host is shown


@dataclass(frozen=True)
class FinalRecord:
    """What is recorded, and where."""

    facts: Mapping[str, Any] = field(default_factory=dict)  # in the run's attribute
    is_terminated: bool = False  # Guild is to show the run as terminated, whatever exit status it recorded
    clears_node: bool = False  # Guild is to show no host any more
    note: Note | None = None  # None: the scheduler is on the same host, and sees the end of the run by itself


def record_for(evidence: StarterEvidence) -> FinalRecord:
    """Returns what to record about the end of a run. Pure."""
    cause = evidence.cause
    is_limit = cause is not None and cause.is_limit
    noted = _noted(evidence)
    return FinalRecord(
        facts=_facts(evidence),
        is_terminated=is_limit and not evidence.was_over,
        clears_node=bool(evidence.node),
        note=Note(noted, evidence.excess) if noted or evidence.node else None,
    )


def _noted(evidence: StarterEvidence) -> Cause | None:
    """Returns what cut the run short, as far as a starter can know; None if it ended by itself."""
    if evidence.was_over:
        # Who stopped a run that had ended by itself does not want it again. Nothing else cut it short.
        return evidence.cause if evidence.cause and evidence.cause.is_for_good else None
    if evidence.cause is None and evidence.node and signals.may_be_sent(evidence.exit_status or 0):
        # A user on that host, or the end of a job whose next signal is for the worker.
        return Cause.UNEXPLAINED
    return evidence.cause


def _facts(evidence: StarterEvidence) -> dict[str, Any]:
    """Returns what cut the run short, if anything did."""
    if evidence.cause:
        fact = run_info.LEFT if evidence.was_over else run_info.ENDED
        return run_info.facts_for_cause(fact, evidence.cause, evidence.excess)
    status = evidence.exit_status or 0
    return {run_info.KILLED_BY: -status} if signals.is_failure(status) else {}


def write(
    record: FinalRecord, run_dir: str, claim: pathlib.Path, peak_memory: int, seconds_elsewhere: float = 0.0
) -> None:
    """Writes the record into the run and beside its claim.

    `seconds_elsewhere` of CPU were used by processes of the run that are not below this one.

    The note comes last: a scheduler that reads it settles the run, and reads the rest.
    """
    run_info.add_end(run_dir, peak_memory, record.facts, seconds_elsewhere)
    if record.is_terminated:
        run_info.make_terminated(run_dir)
    if record.clears_node:
        run_info.clear_node(run_dir)
    if record.note:
        end_note.write(claim, record.note.cause, record.note.excess)
