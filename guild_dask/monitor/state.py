"""The published state of a scheduler as a value, and its conversion to JSON data and back. Pure.

All views (the command, the page, the progress line) read this value and nothing else. Its size depends on the number of
running runs and on the kinds of waiting ones, not on how many wait.
"""

import enum
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from guild_dask.home.outcome import FAILURES, NO_EXCESS, End, Ending, Excess
from guild_dask.home.process_start import NOT_RECORDED, ProcessStart
from guild_dask.plan import records
from guild_dask.plan.reasons import AnyReason, NoMoreStarts, ToBeTriedAgain, data_for_reason, reason_for_data
from guild_dask.plan.troubles import Trouble, data_for_trouble, text_for, trouble_for_data
from guild_dask.plan.units import Amount, format_amount

# The most waiting and the most ended runs that a state lists.
MOST_WAITING = 100
MOST_ENDED = 50


class Phase(enum.Enum):
    """What a scheduler does."""

    WORKING = "working"
    PAUSED = "paused"
    DRAINING = "draining"
    STOPPING = "stopping"


@dataclass(frozen=True)
class WorkerState:
    """A worker, with its total and used slots and resources."""

    name: str
    host: str
    slots: int
    used_slots: int
    total: Mapping[str, float] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=dict)
    about_devices: str = ""  # which GPUs were found, and how, with gpus=auto


@dataclass(frozen=True)
class RunningRun:
    """A run on a worker."""

    run: str
    operation: str
    worker: str
    host: str
    since: float  # seconds since the epoch, as are all times here
    waited: float
    attempt: int
    requests: Mapping[str, float] = field(default_factory=dict)
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class WaitingRun:
    """One of the first waiting runs."""

    run: str
    operation: str
    since: float
    requests: Mapping[str, float] = field(default_factory=dict)
    why: AnyReason | None = None


@dataclass(frozen=True)
class WaitingKind:
    """The waiting runs with the same requests: how many, and why the first of them waits."""

    count: int
    requests: Mapping[str, float] = field(default_factory=dict)
    why: AnyReason | None = None


Waiting = TypeVar("Waiting", WaitingRun, WaitingKind)


@dataclass(frozen=True)
class EndedRun:
    """One of the last ended runs."""

    run: str
    operation: str
    end: str
    exit_code: int | None
    worker: str
    host: str
    at: float
    ran: float
    waited: float
    attempt: int
    requests: Mapping[str, float] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=dict)
    cause: str = ""  # the name of the cause that ended it early, if any
    excess: Excess = NO_EXCESS
    start: ProcessStart = NOT_RECORDED

    @property
    def ending(self) -> Ending:
        """Returns how it ended, with the text for it."""
        return Ending(self.end, self.exit_code, self.cause, self.excess)

    @property
    def is_failure(self) -> bool:
        """Returns whether the user should be notified: the run failed, or was ended without a stop request."""
        return self.ending.is_failure

    @property
    def why(self) -> str:
        """Returns the cause that ended it early, as text; empty without one, or after a stop request."""
        return self.ending.why


@dataclass(frozen=True)
class State:
    """Everything that a scheduler publishes."""

    scheduler: str  # its run id
    host: str
    pid: int
    started: float
    updated: float = 0.0
    phase: Phase = Phase.WORKING
    run_once: bool = False
    filter: str | None = None  # it starts only runs that match
    slots_at_most: int = 0  # of an elastic pool, when all its workers are there; 0: the workers do not change
    trials_of: str | None = None  # the search that it is part of: it starts only the trials of that
    gpus: str | None = None  # the flag `gpus`; None: no GPUs are assigned to runs
    dashboard: str | None = None
    page: str | None = None  # URL of the page of runs
    workers: tuple[WorkerState, ...] = ()
    running: tuple[RunningRun, ...] = ()
    waiting: int = 0
    first: tuple[WaitingRun, ...] = ()
    kinds: tuple[WaitingKind, ...] = ()
    first_held: Mapping[str, AnyReason] = field(default_factory=dict)  # the first of the held runs, and why
    held: int = 0  # the number of all held runs
    retrying: Mapping[str, float] = field(default_factory=dict)  # retrying runs, and when each starts
    blocked_by: tuple[str, ...] = ()  # running runs of others, with the flag wait-for-running
    troubles: tuple[Trouble, ...] = ()  # problems with workers
    ends: Mapping[str, int] = field(default_factory=dict)
    ended: tuple[EndedRun, ...] = ()
    durations: Mapping[str, float] = field(default_factory=dict)  # median of the completed runs, by operation
    expected: Mapping[str, float] = field(default_factory=dict)  # durations of running and of the first waiting runs

    @property
    def completed(self) -> int:
        return self.ends.get(End.COMPLETED.value, 0)

    @property
    def failed(self) -> int:
        return sum(self.ends.get(end, 0) for end in FAILURES)

    @property
    def deleted(self) -> int:
        return self.ends.get(End.GONE.value, 0)

    @property
    def done(self) -> int:
        """Returns how many runs have ended, and are not tried again."""
        return self.completed + self.failed + self.terminated + self.deleted

    @property
    def impossible(self) -> int:
        """Returns how many of the waiting runs no present worker can ever run."""
        return sum(kind.count for kind in self.kinds if kind.why and kind.why.is_final)

    @property
    def not_queued(self) -> dict[str, int]:
        """Returns how many staged runs are impossible, held or retrying; zeros are left out."""
        counts = {"impossible": self.impossible, "held": self.held, "retrying": len(self.retrying)}
        return {name: count for name, count in counts.items() if count}

    @property
    def positions(self) -> list[int | None]:
        """Returns the position in the queue of each of the first waiting runs; None for an impossible one."""
        numbers = itertools.count(1)
        return [None if run.why and run.why.is_final else next(numbers) for run in self.first]

    @property
    def terminated(self) -> int:
        return self.ends.get(End.TERMINATED.value, 0)


def left_in(state: State, last_phase: Phase) -> dict[str, AnyReason | None]:
    """Returns the staged runs that the last state of a scheduler lists, each with the reason why it has not started.

    `last_phase` is what the scheduler did until it ended or began to stop. A reason of the last plan is outdated if no
    run could start since.
    """
    phase = last_phase if state.phase is Phase.STOPPING and last_phase is not Phase.WORKING else state.phase
    ended = None if phase is Phase.WORKING else NoMoreStarts(phase.value)
    waiting = {run.run: run.why if run.why and run.why.is_final else ended or run.why for run in state.first}
    return {**waiting, **state.first_held, **dict.fromkeys(state.retrying, ToBeTriedAgain())}


def left_for_data(data: Any) -> dict[str, AnyReason | None]:
    """Returns what as_data() made of left_in(). Older schedulers wrote texts, and empty ones for no reason."""
    left = data if isinstance(data, Mapping) else {}
    return {str(run): reason_for_data(why) if why else None for run, why in left.items()}


# Fields with amounts of resources. They are written as the user typed them ("8GB"), to be shown that way.
_AMOUNTS = frozenset(("requests", "total", "used"))

_PLAIN = frozenset((str, int, float, bool, type(None)))


def as_data(value: Any, name: str = "", *, for_people: bool = False) -> Any:
    """Returns a value of this module, or a similar one, as JSON data.

    Amounts are texts as typed, from which the state is read back; with `for_people`, they are numbers, and reasons and
    troubles get a text.
    """
    if name in _AMOUNTS:
        return {key: float(amount) if for_people else format_amount(amount) for key, amount in value.items()}
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return [as_data(each, for_people=for_people) for each in value]
    if isinstance(value, Mapping):
        return {key: as_data(each, for_people=for_people) for key, each in value.items()}
    return _record_data(value, for_people)


def _record_data(value: Any, for_people: bool) -> Any:
    if isinstance(value, AnyReason):
        numbers = {key: float(each) for key, each in vars(value).items() if isinstance(each, Amount)}
        return data_for_reason(value) | ({**numbers, records.TEXT: str(value)} if for_people else {})
    if isinstance(value, Trouble):
        return text_for(value) if for_people else data_for_trouble(value)
    # The state has a few hundred records and is written every second, so plain values take a shortcut.
    fields = vars(value).items()
    data = {key: each if type(each) in _PLAIN else as_data(each, key, for_people=for_people) for key, each in fields}
    return data | {"why": value.why} if for_people and isinstance(value, EndedRun) else data


def state_for_data(data: Any) -> State | None:
    """Returns the state that as_data() wrote, or None for other data."""
    try:
        plain = {name: each for name, each in data.items() if name not in _READ_APART}
        return replace(
            records.value_for(State, plain),
            first=tuple(_with_reason(WaitingRun, each) for each in data["first"]),
            kinds=tuple(_with_reason(WaitingKind, each) for each in data["kinds"]),
            first_held={str(run): reason_for_data(why) for run, why in data["first_held"].items()},
            troubles=tuple(map(trouble_for_data, data.get("troubles", ()))),
            ended=tuple(map(ended_for_data, data["ended"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


# Fields with what other versions may not know, or wrote otherwise.
_READ_APART = frozenset(("first", "kinds", "first_held", "troubles", "ended"))


def _with_reason(kind: type[Waiting], data: Mapping[str, Any]) -> Waiting:
    why = data["why"]
    read = records.value_for(kind, {**data, "why": None})
    return read if why is None else replace(read, why=reason_for_data(why))


def ended_for_data(data: Any) -> EndedRun:
    """Returns an ended run that as_data() wrote; raises ValueError or TypeError for anything else."""
    cause = data.get("cause") or data.get("why", "")  # older schedulers wrote a text as `why`
    return records.value_for(EndedRun, {**data, "cause": str(cause)})
