"""What a scheduler tells others about itself, as a value, and that value as data for a file and back.

Pure. Whoever wants to know what goes on (the command, the page, the progress line) reads this value and no more, so
its size depends on what runs and on the kinds of what waits, and not on how many wait.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from guild_dask.home.outcome import FAILURES, NO_EXCESS, End, Ending, Excess
from guild_dask.plan import records
from guild_dask.plan.reasons import AnyReason, ToBeTriedAgain, data_for_reason, reason_for_data
from guild_dask.plan.troubles import Trouble, data_for_trouble, text_for, trouble_for_data
from guild_dask.plan.units import Amount, amount_for_text, format_amount

T = TypeVar("T")

# How many waiting runs are named, and how many that ended.
MOST_WAITING = 100
MOST_ENDED = 50


@dataclass(frozen=True)
class WorkerState:
    """A worker, what it has, and what runs have taken of it."""

    name: str
    host: str
    slots: int
    used_slots: int
    total: Mapping[str, float] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=dict)


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
    asks: Mapping[str, float] = field(default_factory=dict)
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class WaitingRun:
    """A run that waits, one of the first."""

    run: str
    operation: str
    since: float
    asks: Mapping[str, float] = field(default_factory=dict)
    why: AnyReason | None = None


@dataclass(frozen=True)
class WaitingKind:
    """The runs that ask for the same: how many wait, and why the first of them does."""

    count: int
    asks: Mapping[str, float] = field(default_factory=dict)
    why: AnyReason | None = None


@dataclass(frozen=True)
class EndedRun:
    """A run that ended, one of the last."""

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
    asks: Mapping[str, float] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=dict)
    cause: str = ""  # the name of what cut it short, if something did
    excess: Excess = NO_EXCESS

    @property
    def _ending(self) -> Ending:
        return Ending(self.end, self.exit_code, self.cause, self.excess)

    @property
    def is_failure(self) -> bool:
        """Tells whether somebody should look at it: it failed, or was ended by nobody's wish."""
        return self._ending.is_failure

    @property
    def why(self) -> str:
        """Returns what cut it short, as text; empty if nothing did but a person, or the run itself."""
        return self._ending.why


@dataclass(frozen=True)
class State:
    """All that a scheduler tells."""

    scheduler: str  # its run id
    host: str
    pid: int
    started: float
    updated: float = 0.0
    phase: str = "working"
    run_once: bool = False
    filter: str | None = None  # it sees only runs that match
    dashboard: str | None = None
    page: str | None = None  # where runs can be seen
    workers: tuple[WorkerState, ...] = ()
    running: tuple[RunningRun, ...] = ()
    waiting: int = 0
    first: tuple[WaitingRun, ...] = ()
    kinds: tuple[WaitingKind, ...] = ()
    aside: Mapping[str, AnyReason] = field(default_factory=dict)  # the first that cannot be started as they are
    held: int = 0  # how many there are of these
    resting: Mapping[str, float] = field(default_factory=dict)  # runs that are tried again, and when
    blocked_by: tuple[str, ...] = ()  # runs of others, with wait-for-running
    troubles: tuple[Trouble, ...] = ()  # what is wrong with workers
    ends: Mapping[str, int] = field(default_factory=dict)
    ended: tuple[EndedRun, ...] = ()
    durations: Mapping[str, float] = field(default_factory=dict)  # of an operation's runs that completed: the median

    @property
    def completed(self) -> int:
        return self.ends.get(End.COMPLETED.value, 0)

    @property
    def failed(self) -> int:
        return sum(self.ends.get(end, 0) for end in FAILURES)

    @property
    def hopeless(self) -> int:
        """Returns how many of the waiting runs can never start on the workers that there are."""
        return sum(kind.count for kind in self.kinds if kind.why and kind.why.is_final)

    @property
    def apart(self) -> dict[str, int]:
        """Returns how many staged runs do not wait for their turn like others, by what they are, if there are any."""
        counts = {"never to start": self.hopeless, "held": self.held, "to be tried again": len(self.resting)}
        return {name: count for name, count in counts.items() if count}

    @property
    def places(self) -> list[int | None]:
        """Returns the place in the queue of each of the first runs; None for one that can never start."""
        numbers = itertools.count(1)
        return [None if run.why and run.why.is_final else next(numbers) for run in self.first]

    @property
    def terminated(self) -> int:
        return self.ends.get(End.TERMINATED.value, 0)


def left_in(state: State) -> dict[str, AnyReason | None]:
    """Returns the runs that a scheduler leaves staged, as far as it names them, each with why it has not started."""
    waiting = {run.run: run.why for run in state.first}
    return {**waiting, **state.aside, **dict.fromkeys(state.resting, ToBeTriedAgain())}


def left_for_data(data: Any) -> dict[str, AnyReason | None]:
    """Returns what as_data() made of left_in(); older schedulers wrote texts, and an empty one for no reason."""
    left = data if isinstance(data, Mapping) else {}
    return {str(run): reason_for_data(why) if why else None for run, why in left.items()}


# Fields that hold amounts of resources; they are written as typed ("8GB"), so that they can be shown so.
_AMOUNTS = frozenset(("asks", "total", "used"))

_PLAIN = frozenset((str, int, float, bool, type(None)))


def as_data(value: Any, name: str = "", *, for_people: bool = False) -> Any:
    """Returns a value of this module, or the like of it, as what JSON can hold.

    Amounts are as typed, which the state is read back from; for people, they are numbers, and texts are added.
    """
    if name in _AMOUNTS:
        return {key: float(amount) if for_people else format_amount(amount) for key, amount in value.items()}
    if value is None or isinstance(value, (str, int, float)):
        return value
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
    # The state has a few hundred of these, and is written every second: what is plain is not asked about again.
    fields = vars(value).items()
    data = {key: each if type(each) in _PLAIN else as_data(each, key, for_people=for_people) for key, each in fields}
    return data | {"why": value.why} if for_people and isinstance(value, EndedRun) else data


def state_for_data(data: Any) -> State | None:
    """Returns the state that as_data() wrote, or None where the data is something else."""
    try:
        return State(
            scheduler=str(data["scheduler"]),
            host=str(data["host"]),
            pid=int(data["pid"]),
            started=float(data["started"]),
            updated=float(data["updated"]),
            phase=str(data["phase"]),
            run_once=bool(data["run_once"]),
            filter=None if data.get("filter") is None else str(data["filter"]),
            dashboard=None if data["dashboard"] is None else str(data["dashboard"]),
            page=None if data.get("page") is None else str(data["page"]),
            workers=_each(data["workers"], functools.partial(records.value_for, WorkerState)),
            running=_each(data["running"], functools.partial(records.value_for, RunningRun)),
            waiting=int(data["waiting"]),
            first=_each(data["first"], _waiting),
            kinds=_each(data["kinds"], _kind),
            aside={str(run): reason_for_data(why) for run, why in data["aside"].items()},
            held=int(data.get("held", 0)),
            resting={str(run): float(at) for run, at in data.get("resting", {}).items()},
            blocked_by=tuple(map(str, data["blocked_by"])),
            troubles=_each(data.get("troubles", ()), trouble_for_data),
            ends={str(end): int(count) for end, count in data["ends"].items()},
            ended=_each(data["ended"], ended_for_data),
            durations={str(name): float(seconds) for name, seconds in data["durations"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _each(data: Sequence[Any], read: Callable[[Any], T]) -> tuple[T, ...]:
    return tuple(read(each) for each in data)


def amounts_for_data(data: Mapping[str, Any]) -> dict[str, float]:
    """Returns amounts as they were before as_data(); what is none is left out."""
    read = {str(name): amount_for_text(str(text)) for name, text in data.items()}
    return {name: amount for name, amount in read.items() if amount is not None}


def _waiting(data: Any) -> WaitingRun:
    asks = amounts_for_data(data["asks"])
    return WaitingRun(str(data["run"]), str(data["operation"]), float(data["since"]), asks, _why(data["why"]))


def _kind(data: Any) -> WaitingKind:
    return WaitingKind(int(data["count"]), amounts_for_data(data["asks"]), _why(data["why"]))


def _why(data: Any) -> AnyReason | None:
    return None if data is None else reason_for_data(data)


def ended_for_data(data: Any) -> EndedRun:
    """Returns an ended run that as_data() wrote; raises ValueError or TypeError for anything else."""
    cause = data.get("cause") or data.get("why", "")  # older schedulers wrote a text
    return records.value_for(EndedRun, {**data, "cause": str(cause)})
