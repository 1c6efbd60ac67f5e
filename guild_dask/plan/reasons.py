"""Why a run waits: values that can be compared, logged, recorded and shown. Pure.

Code decides by the class of a reason and its fields. Its text is for people, and is never parsed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from guild_dask.plan import records
from guild_dask.plan.units import format_amount, format_duration


class _Waits:
    """Base of all reasons."""

    @property
    def kind(self) -> str:
        """Returns the name under which the reason is recorded."""
        return type(self).__name__

    @property
    def is_final(self) -> bool:
        """Returns whether the run can start only with other workers or other tags, however many runs end before."""
        return isinstance(self, IMPOSSIBLE)


@dataclass(frozen=True)
class NotDefined(_Waits):
    """No worker defines some of the resources that the run requests."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"requires resources not defined for cluster: {', '.join(self.names)}"


@dataclass(frozen=True)
class TooLarge(_Waits):
    """Workers define the resource, but none has that much of it when idle."""

    name: str
    requested: float
    largest: float

    def __str__(self) -> str:
        requested, largest = format_amount(self.requested), format_amount(self.largest)
        return f"requests {self.name}={requested}, largest worker has {self.name}={largest}"


@dataclass(frozen=True)
class TooLong(_Waits):
    """No worker exists for as long as the run's time limit."""

    requested: float  # seconds
    longest: float

    def __str__(self) -> str:
        requested, longest = format_duration(self.requested), format_duration(self.longest)
        return f"may take {requested}, but no worker lasts longer than {longest}"


@dataclass(frozen=True)
class NotWhole(_Waits):
    """The run requests a number of devices that is neither a whole number nor a fraction of one."""

    name: str
    requested: float

    def __str__(self) -> str:
        requested = format_amount(self.requested)
        return f"requests {self.name}={requested}; use a whole number (1, 2, ...) or a part of one (0.5)"


@dataclass(frozen=True)
class NoSingleWorker(_Waits):
    """Each requested amount exists on some worker, but no worker has all of them."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"no single worker has all that it requests: {', '.join(self.names)}"


@dataclass(frozen=True)
class NoWorker(_Waits):
    """There is no worker, or none that has slots."""

    def __str__(self) -> str:
        return "waits for a worker"


@dataclass(frozen=True)
class NoFreeSlot(_Waits):
    """All slots of the workers that could hold the run are in use."""

    slots: int

    def __str__(self) -> str:
        return f"waits for one of {self.slots} slot(s)"


@dataclass(frozen=True)
class InUse(_Waits):
    """A worker with a free slot could hold the run, but other runs use what it requests."""

    name: str
    requested: float
    free: float

    def __str__(self) -> str:
        return f"waits for {self.name}={format_amount(self.requested)}, {format_amount(max(self.free, 0.0))} free"


@dataclass(frozen=True)
class Reserved(_Waits):
    """What the run requests is free, but reserved for an earlier run that has been passed over too often."""

    for_run: str

    def __str__(self) -> str:
        return f"waits because run {self.for_run} has been passed over too often and is next"


Reason = NotDefined | TooLarge | TooLong | NotWhole | NoSingleWorker | NoWorker | NoFreeSlot | InUse | Reserved

# The reasons that are final.
IMPOSSIBLE = (NotDefined, TooLarge, TooLong, NotWhole, NoSingleWorker)


@dataclass(frozen=True)
class AfterRuns(_Waits):
    """The run comes after other runs, which have not ended."""

    runs: tuple[str, ...]

    def __str__(self) -> str:
        return f"waiting for runs to finish: {', '.join(self.runs)}"


@dataclass(frozen=True)
class AfterFailed(_Waits):
    """The run comes after a run that failed or was terminated."""

    run: str
    how: str  # the value of its RunStatus

    def __str__(self) -> str:
        return f"run {self.run}, which it comes after, {_HOW.get(self.how, self.how)}"


_HOW = {"failed": "failed", "terminated": "was terminated"}


@dataclass(frozen=True)
class AfterUnknown(_Waits):
    """The run comes after a run that does not exist."""

    run: str

    def __str__(self) -> str:
        return f"there is no run {self.run}, which it comes after"


@dataclass(frozen=True)
class AfterAmbiguous(_Waits):
    """The run comes after a run that is given by the beginning of several ids."""

    run: str
    candidates: tuple[str, ...]

    def __str__(self) -> str:
        return f"it comes after run {self.run}, which may be any of {', '.join(self.candidates)}"


@dataclass(frozen=True)
class AfterCycle(_Waits):
    """The run comes after itself, directly or through other runs."""

    runs: tuple[str, ...]

    def __str__(self) -> str:
        return f"runs wait for each other: {' -> '.join((*self.runs, *self.runs[:1]))}"


@dataclass(frozen=True)
class IsScheduler(_Waits):
    """The run is a scheduler or a queue, or a batch of them, which only the user may start."""

    run: str

    def __str__(self) -> str:
        return f"it is a scheduler itself; start it with 'guild run --start {self.run}'"


# Why a run is not considered for a start.
Hold = AfterRuns | AfterFailed | AfterUnknown | AfterAmbiguous | AfterCycle


@dataclass(frozen=True)
class CannotBeClaimed(_Waits):
    """The run cannot be claimed because of a problem with its directory."""

    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass(frozen=True)
class CannotBeRead(_Waits):
    """A file of the run, or the directory in which it was staged, cannot be read now. The next poll tries again."""

    problem: str

    def __str__(self) -> str:
        return self.problem


# Why a run in a queue does not start: the plan has no slot for it, or it could not be claimed.
Delay = Reason | CannotBeRead


@dataclass(frozen=True)
class StartsFailed(_Waits):
    """The run was submitted to workers several times, and never started."""

    count: int
    problem: str = ""  # of the last attempt, if it is known

    def __str__(self) -> str:
        text = f"{self.count} attempts to start it failed"
        return f"{text}: {self.problem}" if self.problem else text


@dataclass(frozen=True)
class Broken(_Waits):
    """The run's directory cannot be read."""

    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass(frozen=True)
class UnreadableTag(_Waits):
    """A tag of the run cannot be read, without which the run would start in another way than its user wants."""

    tag: str
    problem: str
    example: str  # a tag that can be read

    def __str__(self) -> str:
        return f"its tag {self.tag!r} cannot be read: {self.problem}"


# Why a run is held until it is staged or tagged again.
Obstacle = CannotBeClaimed | StartsFailed | IsScheduler | UnreadableTag


@dataclass(frozen=True)
class ToBeTriedAgain(_Waits):
    """The run waits for its next attempt."""

    def __str__(self) -> str:
        return "was waiting for its next attempt"


@dataclass(frozen=True)
class NoMoreStarts(_Waits):
    """The run's scheduler ended after it had been paused, drained or stopped, and started no run from then on."""

    phase: str  # the value of its Phase

    def __str__(self) -> str:
        return f"the scheduler was {_PHASES.get(self.phase, self.phase)}"


_PHASES = {"draining": "drained", "stopping": "stopped"}


@dataclass(frozen=True)
class Unknown(_Waits):
    """A reason that a scheduler with another version of guild-dask recorded."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.name

    @property
    def is_final(self) -> bool:
        return self.fields.get(_IS_FINAL) is True

    def __str__(self) -> str:
        return records.text_for_unknown({name: each for name, each in self.fields.items() if name != _IS_FINAL})


AnyReason = Reason | Hold | Obstacle | Broken | CannotBeRead | ToBeTriedAgain | NoMoreStarts | Unknown

_KNOWN = tuple(each for each in get_args(AnyReason) if each is not Unknown)
_IS_FINAL = "is_final"


def data_for_reason(reason: AnyReason) -> dict[str, Any]:
    """Returns a reason as data: its kind, whether it is final, and its fields."""
    fields = reason.fields if isinstance(reason, Unknown) else records.data_for(reason)
    return {records.KIND: reason.kind, _IS_FINAL: reason.is_final, **fields}


def reason_for_data(data: Any) -> AnyReason:
    """Returns the reason that data_for_reason() wrote. Never raises: other data becomes an Unknown with its text."""
    if not isinstance(data, Mapping):
        return Unknown("", {records.TEXT: str(data)})
    fields = {str(name): value for name, value in data.items()}
    known: AnyReason | None = records.tagged_value_for(_KNOWN, fields)
    return known or Unknown(str(fields.get(records.KIND, "")), fields)
