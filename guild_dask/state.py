"""What a scheduler tells others about itself, as a value, and that value as data for a file and back.

Pure. Whoever wants to know what goes on (the command, the page, the progress line) reads this value and no more, so
its size depends on what runs and on the kinds of what waits, and not on how many wait.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from guild_dask.resources import amount_for_text, format_amount

T = TypeVar("T")

# How many waiting runs are named, and how many that ended.
MOST_WAITING = 100
MOST_ENDED = 50

# Ends that are failures.
FAILURES = ("failed", "could not start", "gone")


@dataclass(frozen=True)
class Why:
    """Why a run waits: the kind of reason, and the reason in words with numbers."""

    kind: str
    text: str
    is_final: bool = False  # no end of a run can remove it


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
    why: Why | None = None


@dataclass(frozen=True)
class WaitingKind:
    """The runs that ask for the same: how many wait, and why the first of them does."""

    count: int
    asks: Mapping[str, float] = field(default_factory=dict)
    why: Why | None = None


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
    why: str = ""  # what cut it short: a limit, the loss of its worker or host, or a signal

    @property
    def is_failure(self) -> bool:
        """Tells whether somebody should look at it: it failed, or was ended by nobody's wish."""
        return self.end in FAILURES or (self.end == "terminated" and bool(self.why))


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
    aside: Mapping[str, Why] = field(default_factory=dict)  # staged runs that cannot be started as they are: the first
    held: int = 0  # how many there are of these
    resting: Mapping[str, float] = field(default_factory=dict)  # runs that are tried again, and when
    blocked_by: tuple[str, ...] = ()  # runs of others, with wait-for-running
    troubles: tuple[str, ...] = ()  # what is wrong with workers
    ends: Mapping[str, int] = field(default_factory=dict)
    ended: tuple[EndedRun, ...] = ()
    durations: Mapping[str, float] = field(default_factory=dict)  # of an operation's runs that completed: the median

    @property
    def completed(self) -> int:
        return self.ends.get("completed", 0)

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
        return self.ends.get("terminated", 0)


def left_in(state: State) -> dict[str, str]:
    """Returns the runs that a scheduler leaves staged, as far as it names them, each with why it has not started."""
    waiting = {run.run: run.why.text if run.why else "" for run in state.first}
    held = {run: why.text for run, why in state.aside.items()}
    return {**waiting, **held, **dict.fromkeys(state.resting, "was to be tried again")}


# Fields that hold amounts of resources; they are written as typed ("8GB"), so that they can be shown so.
_AMOUNTS = frozenset(("asks", "total", "used"))

_PLAIN = frozenset((str, int, float, bool, type(None)))


def as_data(value: Any, name: str = "", *, typed: bool = True) -> Any:
    """Returns a value of this module, or the like of it, as what JSON can hold; amounts as typed, or as numbers."""
    if name in _AMOUNTS:
        return {key: format_amount(amount) if typed else float(amount) for key, amount in value.items()}
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, tuple):
        return [as_data(each, typed=typed) for each in value]
    if isinstance(value, Mapping):
        return {key: as_data(each, typed=typed) for key, each in value.items()}
    # The state has a few hundred of these, and is written every second: what is plain is not asked about again.
    fields = vars(value).items()
    return {key: each if type(each) in _PLAIN else as_data(each, key, typed=typed) for key, each in fields}


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
            workers=_each(data["workers"], worker_for_data),
            running=_each(data["running"], _running),
            waiting=int(data["waiting"]),
            first=_each(data["first"], _waiting),
            kinds=_each(data["kinds"], _kind),
            aside={str(run): _why(why) or Why("", "") for run, why in data["aside"].items()},
            held=int(data.get("held", 0)),
            resting={str(run): float(at) for run, at in data.get("resting", {}).items()},
            blocked_by=tuple(map(str, data["blocked_by"])),
            troubles=tuple(map(str, data.get("troubles", ()))),
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


def worker_for_data(data: Any) -> WorkerState:
    """Returns a worker that as_data() wrote; raises KeyError, TypeError or ValueError for anything else."""
    return WorkerState(
        str(data["name"]),
        str(data["host"]),
        int(data["slots"]),
        int(data["used_slots"]),
        amounts_for_data(data["total"]),
        amounts_for_data(data["used"]),
    )


def _running(data: Any) -> RunningRun:
    return RunningRun(
        run=str(data["run"]),
        operation=str(data["operation"]),
        worker=str(data["worker"]),
        host=str(data["host"]),
        since=float(data["since"]),
        waited=float(data["waited"]),
        attempt=int(data["attempt"]),
        asks=amounts_for_data(data["asks"]),
        devices=tuple(map(str, data.get("devices", ()))),
    )


def _waiting(data: Any) -> WaitingRun:
    asks = amounts_for_data(data["asks"])
    return WaitingRun(str(data["run"]), str(data["operation"]), float(data["since"]), asks, _why(data["why"]))


def _kind(data: Any) -> WaitingKind:
    return WaitingKind(int(data["count"]), amounts_for_data(data["asks"]), _why(data["why"]))


def _why(data: Any) -> Why | None:
    return None if data is None else Why(str(data["kind"]), str(data["text"]), bool(data["is_final"]))


def ended_for_data(data: Any) -> EndedRun:
    """Returns an ended run that as_data() wrote; raises KeyError, TypeError or ValueError for anything else."""
    return EndedRun(
        run=str(data["run"]),
        operation=str(data["operation"]),
        end=str(data["end"]),
        exit_code=None if data["exit_code"] is None else int(data["exit_code"]),
        worker=str(data["worker"]),
        host=str(data["host"]),
        at=float(data["at"]),
        ran=float(data["ran"]),
        waited=float(data["waited"]),
        attempt=int(data["attempt"]),
        asks=amounts_for_data(data["asks"]),
        used=amounts_for_data(data["used"]),
        why=str(data.get("why", "")),
    )
