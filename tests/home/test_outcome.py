"""How an attempt ended, for every combination of evidence that can occur."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from guild_dask.home.outcome import (
    NO_EXCESS,
    NOT_STARTED,
    Cause,
    ClaimState,
    End,
    Ending,
    Evidence,
    Excess,
    Note,
    Outcome,
    Result,
    Retries,
    outcome_for,
    text_for_end,
)

STARTED, CLAIMED, NONE = ClaimState.STARTED, ClaimState.CLAIMED, ClaimState.NONE
EXCESS = Excess(60.0, 70.0)
ALWAYS = Retries(after_loss=True, after_failure=True)
NOTES = (None, Note(None), *(Note(cause, EXCESS if cause.is_limit else NO_EXCESS) for cause in Cause))

# Each says which combination of evidence cannot occur.
IMPOSSIBLE: dict[str, Callable[[Evidence], bool]] = {
    "a claim of a dead scheduler is there, or nothing would be recovered": lambda e: (
        e.claim is NONE and e.exit_code is None
    ),
    "a deleted run has no records": lambda e: (
        not e.is_there and (e.is_recorded or e.status is not None or e.decided is not None)
    ),
    "a run that has not started leaves neither note nor record": lambda e: (
        e.claim is not STARTED and (e.is_recorded or e.note is not None or e.decided is not None)
    ),
    "an operation that was not started has no exit code of its own, nor has a deleted run": lambda e: (
        e.own_exit is not None and (e.claim is not STARTED or not e.is_there)
    ),
    "only recovery sees that another has taken care of a run, which has not started under the claim": lambda e: (
        e.is_taken and (e.claim is not CLAIMED or not e.is_there or e.exit_code is not None)
    ),
    "only a starter's note shows that a run on another host is over, and not why": lambda e: (
        e.death is Cause.UNEXPLAINED and (e.note is None or not e.is_leased)
    ),
    "the policy is not asked about a retry that is already on record": lambda e: (
        e.decided is not None and e.retries != Retries()
    ),
}


# The starter reported an exit code, or it is known to be dead for a cause.
ENDS: tuple[tuple[int | None, Cause | None], ...] = (
    *((code, None) for code in (0, 7, -15, -11, NOT_STARTED)),
    *((None, cause) for cause in (Cause.KILLED, Cause.WORKER_DIED, Cause.NODE_LOST, Cause.UNEXPLAINED)),
    (None, Cause.GUILD_FAILED),
)
STOP_REQUESTS = (None, Cause.STOPPED, Cause.PRUNED, Cause.SCHEDULER_STOPPED)
DECISIONS = (None, Result(End.RETRIED, 7), Result(End.RETRIED, -9, Cause.NODE_LOST))
POLICIES = (Retries(), Retries(after_loss=True), Retries(after_failure=True))
BOTH = (False, True)


def _combinations() -> Iterator[Evidence]:
    claims = itertools.product(BOTH, (NONE, CLAIMED, STARTED), ENDS, BOTH)
    for is_there, claim, (code, death), is_taken in claims:
        known = Evidence(is_there, claim, code, death, is_taken, attempt=2)
        statuses = itertools.product((None, 0, 7, 143, -9, -15, -11), (None, 0, 7), BOTH, BOTH)
        for status, own_exit, is_recorded, is_leased in statuses:
            seen = replace(known, status=status, own_exit=own_exit, is_recorded=is_recorded, is_leased=is_leased)
            if not _is_impossible(seen):
                rest = itertools.product(NOTES, STOP_REQUESTS, DECISIONS, POLICIES)
                for note, stop, decided, retries in rest:
                    yield replace(seen, note=note, stop_request=stop, decided=decided, retries=retries)


def _is_impossible(evidence: Evidence) -> bool:
    return any(is_so(evidence) for is_so in IMPOSSIBLE.values())


@pytest.fixture(scope="module")
def table() -> list[tuple[Evidence, Outcome]]:
    """Every combination that can occur, with its outcome."""
    return [(each, outcome_for(each)) for each in _combinations() if not _is_impossible(each)]


def _is_open(evidence: Evidence) -> bool:
    """Returns whether a run started, is there, did not complete, and nothing is decided yet."""
    is_over = evidence.has_completed or evidence.decided is not None
    return evidence.is_there and evidence.claim is STARTED and not is_over


def _is_unexplained(evidence: Evidence) -> bool:
    """Returns whether a signal that any process may have sent ended the run, and nothing says why."""
    is_killed = evidence.exit_status in (-9, -15, 143)
    return is_killed and evidence.noted in (None, Cause.UNEXPLAINED) and evidence.stop_request is None


def _is_unnoted(evidence: Evidence) -> bool:
    return evidence.noted in (None, Cause.UNEXPLAINED)


Rule = Callable[[Evidence, Result], bool]

# What must hold wherever the first part of a rule is true: the promise, in terms of evidence and result.
RULES: dict[str, tuple[Callable[[Evidence], bool], Rule]] = {
    "a deleted run completed only if its starter did": (
        lambda e: not e.is_there,
        lambda e, r: r.end is (End.COMPLETED if e.exit_code == 0 else End.GONE),
    ),
    "a run under another scheduler's claim is not ours to end": (
        lambda e: e.is_there and e.claim is NONE,
        lambda _, r: r.end is End.GONE,
    ),
    "a run that did not start, because its starter was cut short or its host short of something, is staged again": (
        lambda e: e.is_there and e.claim is CLAIMED and not e.is_taken and e.exit_code in (None, NOT_STARTED),
        lambda _, r: r == Result(End.STAGED_AGAIN),
    ),
    "a run that did not start, and that another has taken care of, is left alone": (
        lambda e: e.claim is CLAIMED and e.is_taken,
        lambda _, r: r.end is End.GONE,
    ),
    "a run that Guild refused to start ends with its exit code": (
        lambda e: e.is_there and e.claim is CLAIMED and e.exit_code not in (None, NOT_STARTED),
        lambda e, r: r == Result(End.COULD_NOT_START, e.exit_code),
    ),
    "a run that started is not staged again for the same attempt, whatever its exit code": (
        lambda e: e.claim is STARTED,
        lambda _, r: r.end is not End.STAGED_AGAIN,
    ),
    "a completed run is complete, whatever else is known": (
        lambda e: e.is_there and e.claim is STARTED and e.has_completed,
        lambda _, r: (r.end, r.exit_code, r.cause) == (End.COMPLETED, 0, None),
    ),
    "a retry that is on record is carried out as it was decided": (
        lambda e: e.is_there and not e.has_completed and e.decided is not None,
        lambda e, r: e.decided is not None and r == replace(e.decided, attempt=e.attempt),
    ),
    "a run that did not complete ends as it should, or is tried again": (
        lambda e: e.is_there and e.claim is STARTED and not e.has_completed,
        lambda _, r: r.end in (End.FAILED, End.TERMINATED, End.RETRIED),
    ),
    "a cause in the note is the cause, unless the run had ended by itself": (
        lambda e: bool(_is_open(e) and e.own_exit is None and e.noted and e.noted is not Cause.UNEXPLAINED),
        lambda e, r: e.note is not None and (r.cause, r.excess) == (e.note.cause, e.note.excess),
    ),
    "a run that ended by itself has that exit code, whatever came later": (
        lambda e: e.own_exit is not None and e.decided is None,
        lambda e, r: r.exit_code == e.own_exit and r.cause in (None, Cause.STOPPED, Cause.PRUNED),
    ),
    "a run whose worker is gone is lost if its process did not end by itself, and nothing says who ended it": (
        lambda e: _is_open(e) and e.is_leased and e.exit_code is None and _is_unexplained(e),
        lambda e, r: r.cause is e.death,
    ),
    "a run that a signal ended on a worker that stays is not lost": (
        lambda e: _is_open(e) and e.exit_code is not None and _is_unexplained(e),
        lambda _, r: r.cause in (None, Cause.STOPPED),
    ),
    "every end that is not the run's own has a cause": (
        _is_open,
        lambda _, r: r.end is not End.TERMINATED or r.cause is not None,
    ),
    "a run that the user or its search asked to stop was stopped, unless its starter noted something else": (
        lambda e: bool(_is_open(e) and e.stop_request and e.stop_request.is_for_good and _is_unnoted(e)),
        lambda e, r: r.cause is e.stop_request,
    ),
    "a run without a retry allowed is not tried again": (
        lambda e: e.decided is None and e.retries == Retries(),
        lambda _, r: r.end is not End.RETRIED,
    ),
    "a run that a person or a limit ended is not tried again": (
        lambda e: e.decided is None,
        lambda _, r: r.cause is None or r.cause.is_loss or r.end is not End.RETRIED,
    ),
    "a loss uses the retries for losses, and a failure those for failures": (
        lambda e: _is_open(e) and e.retries != Retries(),
        lambda e, r: r.end is not End.RETRIED or (r.cause is not None) == e.retries.after_loss,
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_rule_holds_for_every_combination(name: str, table: list[tuple[Evidence, Outcome]]) -> None:
    applies, holds = RULES[name]
    cases = [(evidence, outcome.result) for evidence, outcome in table if applies(evidence)]
    assert cases, "the rule is about nothing"
    broken = [case for case in cases if not holds(*case)]
    assert not broken, f"{len(broken)} of {len(cases)}, such as {broken[0]}"


def test_cause_that_is_not_in_a_note_yet_is_noted(table: list[tuple[Evidence, Outcome]]) -> None:
    # A scheduler that dies after it recorded the end leaves the cause for the next one.
    for evidence, outcome in table:
        is_new = _is_open(evidence) and outcome.result.cause is not evidence.noted
        assert outcome.note is (outcome.result.cause if is_new else None), evidence


def test_end_is_recorded_where_guild_has_not_recorded_it(table: list[tuple[Evidence, Outcome]]) -> None:
    for evidence, outcome in table:
        is_over = evidence.is_there and evidence.claim is STARTED
        if not is_over or (evidence.decided and not evidence.has_completed):
            assert outcome.exit_status is None, evidence
            continue
        known = -9 if evidence.exit_status is None else evidence.exit_status
        # A record that cannot be read may be anything, and is left alone.
        is_on_record = evidence.is_recorded and evidence.status in (None, known)
        assert outcome.exit_status == (None if is_on_record else known), evidence


def test_carried_out_outcome_leads_to_the_same_one(table: list[tuple[Evidence, Outcome]]) -> None:
    # A scheduler may die, or the home may fail, after the writes: the next one sees them and decides the same.
    for evidence, outcome in table:
        written = evidence
        if outcome.note:
            written = replace(written, note=Note(outcome.note))
        if outcome.exit_status is not None:
            written = replace(written, status=outcome.exit_status, is_recorded=True)
        assert outcome_for(written).result == outcome.result, evidence


def _dead(**facts: object) -> Evidence:
    """Returns evidence of a run that started on the scheduler's own host and whose starter was killed."""
    return replace(Evidence(True, STARTED, death=Cause.KILLED, retries=ALWAYS), **facts)  # type: ignore[arg-type]


def _seen(exit_code: int, **facts: object) -> Evidence:
    """Returns evidence of a run that started and whose starter reported how it ended, as Guild has recorded it."""
    recorded = Evidence(True, STARTED, exit_code, status=exit_code, is_recorded=True, retries=ALWAYS)
    return replace(recorded, **facts)  # type: ignore[arg-type]


def _unrecorded(exit_code: int, **facts: object) -> Evidence:
    """Returns evidence of a run whose starter reported how it ended, and whose end Guild could not record."""
    return _seen(exit_code, status=None, is_recorded=False, **facts)


# Written by hand: evidence, then end, exit code and cause.
STORIES: dict[str, tuple[Evidence, tuple[End, int | None, Cause | None]]] = {
    "it completed": (_seen(0), (End.COMPLETED, 0, None)),
    "it failed, and is tried again": (_seen(7), (End.RETRIED, 7, None)),
    "it failed, and there are no retries": (_seen(7, retries=Retries()), (End.FAILED, 7, None)),
    "`guild stop` ended it": (_seen(-15), (End.TERMINATED, -15, Cause.STOPPED)),
    "a signal that is no request killed it": (_seen(-11), (End.RETRIED, -11, None)),
    "its starter was killed": (_dead(), (End.TERMINATED, -9, Cause.KILLED)),
    "its starter was killed after Guild recorded its end": (
        _dead(status=0, is_recorded=True),
        (End.COMPLETED, 0, None),
    ),
    "an earlier attempt's status is on record, and its starter was killed": (
        _dead(status=0),
        (End.TERMINATED, -9, Cause.KILLED),
    ),
    "it reached its time limit and exited with 0": (
        _seen(0, status=-15, note=Note(Cause.TIME_LIMIT, EXCESS)),
        (End.TERMINATED, -15, Cause.TIME_LIMIT),
    ),
    "its worker closed": (_seen(-15, note=Note(Cause.SIGNAL)), (End.RETRIED, -15, Cause.SIGNAL)),
    "Guild could not record its exit status": (_unrecorded(3), (End.RETRIED, 3, None)),
    "it crashed, and Guild could not record that": (_unrecorded(-11), (End.RETRIED, -11, None)),
    "it completed, and neither its starter nor Guild could record that": (_unrecorded(0), (End.COMPLETED, 0, None)),
    "`guild stop` ended it on a full disk": (_unrecorded(-15), (End.TERMINATED, -15, Cause.STOPPED)),
    "the user stopped it on a full disk, and it exited by itself": (
        _unrecorded(1, stop_request=Cause.STOPPED),
        (End.TERMINATED, 1, Cause.STOPPED),
    ),
    "its search pruned it": (
        _seen(-15, note=Note(Cause.PRUNED), stop_request=Cause.PRUNED),
        (End.TERMINATED, -15, Cause.PRUNED),
    ),
    "its search pruned it, and it handled the signal": (
        _seen(1, note=Note(Cause.PRUNED), stop_request=Cause.PRUNED),
        (End.TERMINATED, 1, Cause.PRUNED),
    ),
    "its search was to prune it, and it had completed": (
        _seen(0, own_exit=0, stop_request=Cause.PRUNED),
        (End.COMPLETED, 0, None),
    ),
    "its process was killed with its scheduler": (_dead(), (End.TERMINATED, -9, Cause.KILLED)),
    "a power cut ended it": (_dead(death=Cause.NODE_LOST), (End.RETRIED, -9, Cause.NODE_LOST)),
    "it failed after its scheduler died": (_dead(status=7, is_recorded=True), (End.RETRIED, 7, None)),
    "its scheduler was stopped, and died before it could end the run": (
        _dead(status=7, is_recorded=True, stop_request=Cause.SCHEDULER_STOPPED),
        (End.RETRIED, 7, None),
    ),
    "its scheduler was stopped, and a signal ended the run": (
        _dead(status=-15, is_recorded=True, stop_request=Cause.SCHEDULER_STOPPED),
        (End.TERMINATED, -15, Cause.SCHEDULER_STOPPED),
    ),
    "the user stopped it, and it exited by itself": (
        _dead(status=7, is_recorded=True, stop_request=Cause.STOPPED),
        (End.TERMINATED, 7, Cause.STOPPED),
    ),
    "a signal ended it on another host, without a note": (
        _dead(status=-15, is_recorded=True, is_leased=True, death=Cause.WORKER_DIED),
        (End.RETRIED, -15, Cause.WORKER_DIED),
    ),
    "a signal ended it on another host, and its worker was gone before anything could explain it": (
        _dead(status=-15, is_recorded=True, is_leased=True, death=Cause.UNEXPLAINED, note=Note(Cause.UNEXPLAINED)),
        (End.RETRIED, -15, Cause.UNEXPLAINED),
    ),
    "a signal ended it on another host, and its worker stays": (
        _seen(-15, is_leased=True, note=Note(Cause.UNEXPLAINED)),
        (End.TERMINATED, -15, Cause.STOPPED),
    ),
    "SIGKILL ended it on another host, and its worker stays": (
        _seen(-9, is_leased=True, note=Note(Cause.UNEXPLAINED)),
        (End.RETRIED, -9, None),
    ),
    "a shell exited on another host as if a signal had ended its command, and its worker is gone": (
        _dead(status=143, is_recorded=True, is_leased=True, death=Cause.UNEXPLAINED, note=Note(Cause.UNEXPLAINED)),
        (End.RETRIED, 143, Cause.UNEXPLAINED),
    ),
    "a shell exited on another host as if a signal had ended its command, and its worker stays": (
        _seen(137, is_leased=True, note=Note(Cause.UNEXPLAINED), retries=Retries(after_loss=True)),
        (End.FAILED, 137, None),
    ),
    "a shell exited on this host as if a signal had ended its command": (
        _dead(status=137, is_recorded=True, retries=Retries(after_loss=True)),
        (End.FAILED, 137, None),
    ),
    "it crashed on another host, and its starter noted no cause": (
        _dead(status=-11, is_recorded=True, is_leased=True, death=Cause.UNEXPLAINED, note=Note(None)),
        (End.RETRIED, -11, None),
    ),
    "a signal ended it on this host": (_dead(status=-15, is_recorded=True), (End.TERMINATED, -15, Cause.STOPPED)),
    "it completed, and its job was cancelled before Guild could record that": (
        _dead(own_exit=0, is_leased=True, death=Cause.NODE_LOST),
        (End.COMPLETED, 0, None),
    ),
    "it completed, and a signal ended what it had left behind": (
        _seen(0, own_exit=0, is_leased=True, note=Note(Cause.SIGNAL)),
        (End.COMPLETED, 0, None),
    ),
    "it failed, and its job was cancelled before Guild could record that": (
        _dead(own_exit=7, is_leased=True, death=Cause.NODE_LOST, retries=Retries(after_loss=True)),
        (End.FAILED, 7, None),
    ),
    "it failed, and its job was cancelled while it was recorded": (
        _seen(7, own_exit=7, is_leased=True, note=Note(Cause.SIGNAL), retries=Retries(after_loss=True)),
        (End.FAILED, 7, None),
    ),
    "it completed, and Guild could not record that": (_unrecorded(0, own_exit=0), (End.COMPLETED, 0, None)),
    "it completed, and its starter was killed": (_dead(own_exit=0), (End.COMPLETED, 0, None)),
    "it failed, and the user stopped what it had left behind": (
        _dead(own_exit=7, stop_request=Cause.STOPPED),
        (End.TERMINATED, 7, Cause.STOPPED),
    ),
    "it was to be tried again, and its end is off the record": (
        _dead(decided=Result(End.RETRIED, 7), retries=Retries()),
        (End.RETRIED, 7, None),
    ),
    "it was to be tried again, was started by other means, and completed": (
        _dead(decided=Result(End.RETRIED, 7), status=0, is_recorded=True),
        (End.COMPLETED, 0, None),
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_story(name: str) -> None:
    evidence, expected = STORIES[name]
    result = outcome_for(evidence).result
    assert (result.end, result.exit_code, result.cause) == expected


@pytest.mark.parametrize(
    ("ending", "how"),
    [
        (Ending("completed", 0), ""),
        (Ending("staged-again", None), ""),
        (Ending("failed", 3), "exit code 3"),
        (Ending("retried", 3), "exit code 3"),
        (Ending("could-not-start", 1), "exit code 1"),
        (Ending("failed", -11), "it was killed by signal 11, SIGSEGV"),
        (Ending("terminated", -15), "it was stopped"),
        (Ending("terminated", 1, "stopped"), "it was stopped"),
        (Ending("terminated", -15, "scheduler-stopped"), "its scheduler was stopped"),
        (Ending("retried", -9, "worker-died"), "its worker died"),
        (Ending("terminated", -15, "time-limit", EXCESS), "it ran for 1m, its time limit"),
        (Ending("terminated", -15, "from-the-future"), "from-the-future"),
    ],
)
def test_text_for_an_end_is_the_same_in_all_views(ending: Ending, how: str) -> None:
    assert ending.how == how
    assert ending.text == text_for_end(ending.end) + (f": {how}" if how else "")
