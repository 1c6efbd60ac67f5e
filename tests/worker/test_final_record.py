"""What a starter records when its run has ended."""

import signal

import pytest

from guild_dask.home.outcome import Cause, Excess, Note
from guild_dask.home.run_info import ENDED, KILLED_BY, LEFT, facts_for_cause
from guild_dask.worker.final_record import FinalRecord, StarterEvidence, record_for

NODE = "node12"
EXCESS = Excess(2.0, 2.5)
LIMIT = facts_for_cause(ENDED, Cause.TIME_LIMIT, EXCESS)
LEFT_LIMIT = facts_for_cause(LEFT, Cause.TIME_LIMIT, EXCESS)

TABLE = [
    # The run ended by itself. On the scheduler's own host nothing more is needed.
    (StarterEvidence(exit_status=0), FinalRecord()),
    (StarterEvidence(exit_status=1), FinalRecord()),
    (StarterEvidence(exit_status=0, node=NODE), FinalRecord(clears_node=True, note=Note(None))),
    (StarterEvidence(), FinalRecord()),
    # A signal that requests an end is not a failure; all others are.
    (StarterEvidence(exit_status=-signal.SIGTERM), FinalRecord()),
    (StarterEvidence(exit_status=-signal.SIGSEGV), FinalRecord({KILLED_BY: 11})),
    # The run was cut short.
    (
        StarterEvidence(Cause.STOPPED, exit_status=-signal.SIGTERM),
        FinalRecord({ENDED: Cause.STOPPED.value}, note=Note(Cause.STOPPED)),
    ),
    (
        StarterEvidence(Cause.WORKER_DIED, exit_status=-signal.SIGKILL, node=NODE),
        FinalRecord({ENDED: Cause.WORKER_DIED.value}, clears_node=True, note=Note(Cause.WORKER_DIED)),
    ),
    # A run that exits with 0 at its limit has not completed.
    (
        StarterEvidence(Cause.TIME_LIMIT, EXCESS, exit_status=0),
        FinalRecord(LIMIT, is_terminated=True, note=Note(Cause.TIME_LIMIT, EXCESS)),
    ),
    # The run had ended by itself, and the processes that it left behind reached the limit.
    (StarterEvidence(Cause.TIME_LIMIT, EXCESS, was_over=True, exit_status=0), FinalRecord(LEFT_LIMIT)),
    (
        StarterEvidence(Cause.TIME_LIMIT, EXCESS, was_over=True, exit_status=0, node=NODE),
        FinalRecord(LEFT_LIMIT, clears_node=True, note=Note(None, EXCESS)),
    ),
    # Its host ended it, but it had exited by itself before.
    (
        StarterEvidence(Cause.SIGNAL, was_over=True, exit_status=7, node=NODE),
        FinalRecord({LEFT: Cause.SIGNAL.value}, clears_node=True, note=Note(None)),
    ),
    # A signal of an unknown sender ended it on another host. A crash is the run's own.
    (StarterEvidence(exit_status=-15, node=NODE), FinalRecord(clears_node=True, note=Note(Cause.UNEXPLAINED))),
    (
        StarterEvidence(exit_status=-9, node=NODE),
        FinalRecord({KILLED_BY: 9}, clears_node=True, note=Note(Cause.UNEXPLAINED)),
    ),
    (StarterEvidence(exit_status=143, node=NODE), FinalRecord(clears_node=True, note=Note(Cause.UNEXPLAINED))),
    (StarterEvidence(exit_status=143), FinalRecord()),
    (StarterEvidence(exit_status=-11, node=NODE), FinalRecord({KILLED_BY: 11}, clears_node=True, note=Note(None))),
    # A stop request stops the run, even if only the processes that it left behind are still there.
    (
        StarterEvidence(Cause.STOPPED, was_over=True, exit_status=0),
        FinalRecord({LEFT: Cause.STOPPED.value}, note=Note(Cause.STOPPED)),
    ),
    (
        StarterEvidence(Cause.PRUNED, was_over=True, exit_status=0),
        FinalRecord({LEFT: Cause.PRUNED.value}, note=Note(Cause.PRUNED)),
    ),
]


@pytest.mark.parametrize(("evidence", "record"), TABLE)
def test_record_follows_from_the_evidence(evidence: StarterEvidence, record: FinalRecord) -> None:
    assert record_for(evidence) == record


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("node", [None, NODE])
def test_every_cause_that_cut_a_run_short_is_noted_for_other_hosts(cause: Cause, node: str | None) -> None:
    record = record_for(StarterEvidence(cause, node=node))
    assert record.note == Note(cause)
    assert record.is_terminated == cause.is_limit
