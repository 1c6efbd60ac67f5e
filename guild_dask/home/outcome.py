"""How runs end and what cuts them short: the decision, the names that records keep, and the text for each. Pure.

`outcome_for` decides how an attempt ended. The scheduler that settles its own run and the one that recovers another's
gather the evidence, call it, and carry out what it returns. Records and decisions use names and numbers only; the text
is made here, where it is shown.
"""

import enum
from dataclasses import dataclass, replace

from guild_dask.host.signals import is_failure, is_request, killed_by, may_be_sent
from guild_dask.plan.units import format_duration, format_size


class End(enum.Enum):
    """How a run, or the attempt to start it, ended. The value is the name that records keep."""

    COMPLETED = "completed"
    FAILED = "failed"
    COULD_NOT_START = "could-not-start"
    TERMINATED = "terminated"
    STAGED_AGAIN = "staged-again"
    RETRIED = "retried"
    GONE = "gone"


# Texts for the ends whose name is not the text itself.
_END_TEXTS = {End.COULD_NOT_START: "could not start", End.STAGED_AGAIN: "staged again", End.GONE: "deleted"}


def text_for_end(name: str) -> str:
    """Returns how a run ended, as text, by the name on record; an unknown name is shown as it is."""
    return next((text for end, text in _END_TEXTS.items() if end.value == name), name)


# Ends that are failures, as they are on record.
FAILURES = tuple(end.value for end in (End.FAILED, End.COULD_NOT_START))


class Cause(enum.Enum):
    """What cut a run short that had started. The value is the name that records keep."""

    STOPPED = "stopped"
    PRUNED = "pruned"
    SCHEDULER_STOPPED = "scheduler-stopped"
    KILLED = "starter-killed"
    SIGNAL = "ended-by-host"
    WORKER_DIED = "worker-died"
    CUT_OFF = "cut-off"
    NODE_LOST = "host-lost"
    UNEXPLAINED = "unexplained"
    GUILD_FAILED = "guild-failed"
    TIME_LIMIT = "time-limit"
    OUT_OF_MEMORY = "out-of-memory"

    @property
    def is_limit(self) -> bool:
        """Returns whether the run exceeded a limit."""
        return self in (Cause.TIME_LIMIT, Cause.OUT_OF_MEMORY)

    @property
    def is_for_good(self) -> bool:
        """Returns whether it is a stop request of a user or a search, after which the run is not wanted again."""
        return self in (Cause.STOPPED, Cause.PRUNED)

    @property
    def is_loss(self) -> bool:
        """Returns whether the machine, rather than the run or a person, is to blame, as far as anything is known."""
        return self not in _INTENDED and not self.is_limit


# A person did it, or a search for one.
_INTENDED = frozenset((Cause.STOPPED, Cause.PRUNED, Cause.SCHEDULER_STOPPED, Cause.KILLED))


def cause_for_name(name: object) -> Cause | None:
    """Returns the cause with a name that a record has, or None for one that this version does not know."""
    # Notes of starters had the member's own name before.
    return next((cause for cause in Cause if name in (cause.value, cause.name)), None)


@dataclass(frozen=True)
class Excess:
    """How much a run that reached a limit may take, and took: seconds or bytes; 0 where that is not known."""

    limit: float = 0.0
    reached: float = 0.0


NO_EXCESS = Excess()


def text_for_cause(cause: Cause, excess: Excess = NO_EXCESS) -> str:
    """Returns what cut a run short, as a clause: `it was stopped`."""
    if cause is Cause.TIME_LIMIT and excess.limit:
        return f"it ran for {format_duration(excess.limit)}, its time limit"
    if cause is Cause.OUT_OF_MEMORY and excess.limit:
        return f"out of memory: it used {format_size(excess.reached)} and requested {format_size(excess.limit)}"
    return _TEXTS[cause]


_TEXTS = {
    Cause.STOPPED: "it was stopped",
    Cause.PRUNED: "its search pruned it",
    Cause.SCHEDULER_STOPPED: "its scheduler was stopped",
    Cause.KILLED: "the process that started it was killed",
    Cause.SIGNAL: "its host ended it",
    Cause.WORKER_DIED: "its worker died",
    Cause.CUT_OFF: "its host was cut off from the Guild home",
    Cause.NODE_LOST: "its host died or was cut off",
    Cause.UNEXPLAINED: "it is not known what ended it",
    Cause.GUILD_FAILED: "Guild failed while it ran",
    Cause.TIME_LIMIT: "it reached its time limit",
    Cause.OUT_OF_MEMORY: "out of memory",
}


def text_for_name(name: str, excess: Excess = NO_EXCESS) -> str:
    """Returns the text for a cause by its name; a name that this version does not know is shown as it is."""
    cause = cause_for_name(name)
    return text_for_cause(cause, excess) if cause else name


def text_for_signal(exit_status: int) -> str:
    """Returns which signal killed a run's process, as a clause."""
    return f"it was {killed_by(exit_status)}"


@dataclass(frozen=True)
class Ending:
    """How an attempt ended, as records have it: the names of its end and of its cause, and the exit status."""

    end: str
    exit_status: int | None
    cause: str = ""
    excess: Excess = NO_EXCESS
    search: str = ""  # the run of the search that pruned it, for views that have read it

    @property
    def was_killed(self) -> bool:
        """Returns whether a signal that is no request to end killed the run's process, and we did not send it."""
        may_be = not self.cause and self.end in _OWN_ENDS
        return may_be and self.exit_status is not None and is_failure(self.exit_status)

    @property
    def is_failure(self) -> bool:
        """Returns whether it needs attention: it failed, or something else than a person ended it."""
        return self.end in FAILURES or (self.end == End.TERMINATED.value and self._was_cut_short)

    @property
    def _was_cut_short(self) -> bool:
        """Returns whether something else than a person cut it short. An unknown cause counts as that."""
        return bool(self.cause) and cause_for_name(self.cause) not in _INTENDED

    @property
    def why(self) -> str:
        """Returns what cut the run short, as text; empty if nothing did but a person, or the run itself."""
        return self.how if self.was_killed or self._was_cut_short else ""

    @property
    def how(self) -> str:
        """Returns how it ended, as views show it beside the end: `exit code 3`; empty if nothing is to be added."""
        if self.search:
            return f"search {self.search[:8]} pruned it"
        if self.cause:
            return text_for_name(self.cause, self.excess)
        if not self.exit_status:
            return ""
        if self.was_killed:
            return text_for_signal(self.exit_status)
        return text_for_cause(Cause.STOPPED) if self.exit_status < 0 else f"exit code {self.exit_status}"

    @property
    def text(self) -> str:
        """Returns its end, and how it came to it: `failed: exit code 3`."""
        end = text_for_end(self.end)
        return f"{end}: {self.how}" if self.how else end


_OWN_ENDS = frozenset(end.value for end in (End.FAILED, End.RETRIED))


@dataclass(frozen=True)
class Result:
    """How a run ended, with its exit code where it has one, and what cut it short if something did."""

    end: End
    exit_code: int | None = None
    cause: Cause | None = None
    attempt: int = 1
    excess: Excess = NO_EXCESS  # of a run that reached a limit

    @property
    def ending(self) -> Ending:
        """Returns how it ended, as records have it."""
        return Ending(self.end.value, self.exit_code, self.cause.value if self.cause else "", self.excess)


# A starter's exit code if it did not start the run, and another attempt may. An operation may exit with the same code,
# so it has this meaning only while the claim is not marked as started.
NOT_STARTED = 75


class ClaimState(enum.Enum):
    """How far the run had come under the claim of the scheduler that its attempt belongs to."""

    NONE = "none"  # there is no claim any more, or another scheduler has it
    CLAIMED = "claimed"  # the run has not started
    STARTED = "started"


@dataclass(frozen=True)
class Note:
    """The note that a starter leaves beside the claim at the end; no cause: the run ended by itself, or unreadable."""

    cause: Cause | None
    excess: Excess = NO_EXCESS


@dataclass(frozen=True)
class Retries:
    """Whether the policy allows one more attempt."""

    after_loss: bool = False
    after_failure: bool = False


@dataclass(frozen=True)
class Evidence:
    """What is known about an attempt that is over.

    Either the run's starter reported an exit code, or it is known to be dead for a cause.
    """

    is_there: bool  # the run's directory exists
    claim: ClaimState
    exit_code: int | None = None  # what the starter reported: the operation's exit status, if there was an operation
    death: Cause | None = None  # what ended the starter, if it reported nothing
    is_taken: bool = False  # it did not start under the claim, and a user or another scheduler has taken care of it
    # The rest is about runs that started.
    attempt: int = 1
    own_exit: int | None = None  # the operation's exit code, if its starter saw it exit before anything cut it short
    is_leased: bool = False  # the run was on a worker of another host, or could be
    status: int | None = None  # the exit status that Guild recorded; None: there is none, or it cannot be read
    is_recorded: bool = False  # Guild recorded the end of this attempt, and not of an earlier one
    note: Note | None = None
    stop_request: Cause | None = None
    decided: Result | None = None  # on record for this attempt: a scheduler decided to try again, and died over it
    retries: Retries = Retries()

    @property
    def exit_status(self) -> int | None:
        """Returns the exit status of this attempt, by the best evidence of it; None if there is none.

        Guild may have been unable to replace the record of an earlier end, and to record this one.
        """
        recorded = self.status if self.is_recorded else None
        known = (each for each in (self.own_exit, recorded, self.exit_code) if each is not None)
        return next(known, _UNKNOWN_FAILURE if self.is_recorded else None)

    @property
    def has_completed(self) -> bool:
        """Returns whether the run started and completed, so that nothing else about it matters."""
        return self.exit_status == 0

    @property
    def noted(self) -> Cause | None:
        """Returns the cause in the starter's note; None if there is none."""
        return self.note.cause if self.note else None


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended, and what is to be written about it: first the note, then the exit status."""

    result: Result
    note: Cause | None = None  # to be left beside the claim; None: nothing
    exit_status: int | None = None  # to be recorded as the run's; None: Guild has recorded one
    is_deleted: bool = False  # the run may be in Guild's trash, and is to be what it should be if it is restored

    @property
    def is_staged(self) -> bool:
        """Returns whether the run is to be staged, for the same attempt or another one."""
        return self.result.end in (End.STAGED_AGAIN, End.RETRIED)


# The exit status of a run whose starter is dead and whose end nothing recorded: as if killed by SIGKILL.
_KILLED = -9

# The exit code of a run that recorded an end, but none that can be read.
_UNKNOWN_FAILURE = 1


def outcome_for(evidence: Evidence) -> Outcome:
    """Returns how an attempt ended. The same rule applies to the scheduler's own runs and to recovered ones."""
    code = evidence.exit_code
    if not evidence.is_there:
        # Guild deletes a batch that succeeds. A user deleted anything else, and may restore it.
        return Outcome(Result(End.COMPLETED, code) if code == 0 else Result(End.GONE), is_deleted=True)
    if evidence.claim is ClaimState.NONE:
        return Outcome(Result(End.GONE))
    if evidence.claim is ClaimState.STARTED:
        return _outcome_of_started(evidence)
    if evidence.is_taken:
        return Outcome(Result(End.GONE))
    # Its starter was cut short, or could not start it on that host. Any other code is Guild's, which refused to.
    can_start = code is None or code == NOT_STARTED
    return Outcome(Result(End.STAGED_AGAIN) if can_start else Result(End.COULD_NOT_START, code))


def _outcome_of_started(evidence: Evidence) -> Outcome:
    if evidence.decided and not evidence.has_completed:
        # The end may be off the record already, and the attempt counts: the policy is not asked again.
        return Outcome(replace(evidence.decided, end=End.RETRIED, attempt=evidence.attempt))
    status = _KILLED if evidence.exit_status is None else evidence.exit_status
    result = _result(evidence, status, _cause(evidence, status))
    if _is_tried_again(result, evidence.retries):
        result = replace(result, end=End.RETRIED)
    # Without the note, the next scheduler would take the exit status for a failure of the run itself.
    note = result.cause if result.cause is not evidence.noted else None
    is_on_record = evidence.is_recorded and evidence.status in (None, status)
    return Outcome(result, note, None if is_on_record else status)


def _cause(evidence: Evidence, status: int) -> Cause | None:
    """Returns what cut an attempt short; None if it ended by itself."""
    requested = next((each for each in (evidence.noted, evidence.stop_request) if each and each.is_for_good), None)
    if evidence.own_exit is not None:
        # What came later ended only processes that it left behind. Who stopped it does not want it again.
        return requested if evidence.own_exit else None
    if evidence.noted and evidence.noted is not Cause.UNEXPLAINED:
        return evidence.noted
    # On a full disk, a starter leaves no note. A scheduler may have died before its request reached the run, which then
    # went on to an end of its own.
    if requested or (evidence.stop_request and status < 0):
        return evidence.stop_request
    may_be_lost = evidence.exit_code is None and evidence.is_leased and may_be_sent(status)
    if may_be_lost or evidence.exit_status is None:
        # Its worker or host is gone: whatever ended the run, ended with it or because of it.
        return evidence.death or Cause.UNEXPLAINED
    # Its host is well: a request to end comes from a user, another signal is a failure.
    return Cause.STOPPED if is_request(status) else None


def _result(evidence: Evidence, status: int, cause: Cause | None) -> Result:
    """Returns how an attempt ended, before a retry is considered."""
    excess = evidence.note.excess if evidence.note and evidence.noted is cause else NO_EXCESS
    if status == 0:
        return Result(End.COMPLETED, 0, None, evidence.attempt, excess)
    return Result(End.TERMINATED if cause else End.FAILED, status, cause, evidence.attempt, excess)


def _is_tried_again(result: Result, retries: Retries) -> bool:
    """Returns whether there is one more attempt: never after a completed run, or one that a person or a limit ended."""
    if result.end is End.COMPLETED:
        return False
    if result.cause:
        return result.cause.is_loss and retries.after_loss
    return result.end is End.FAILED and retries.after_failure
