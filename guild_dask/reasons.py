"""Why a run waits: values that can be compared, logged and shown. Pure."""

from dataclasses import dataclass

from guild_dask.resources import format_amount
from guild_dask.units import format_duration


@dataclass(frozen=True)
class NotDefined:
    """No worker defines some of the resources that the run asks for."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"requires resources not defined for cluster: {', '.join(self.names)}"


@dataclass(frozen=True)
class TooLarge:
    """Workers define the resource, but none has that much of it when idle."""

    name: str
    asked: float
    largest: float

    def __str__(self) -> str:
        asked, largest = format_amount(self.asked), format_amount(self.largest)
        return f"asks {self.name}={asked}, largest worker has {self.name}={largest}"


@dataclass(frozen=True)
class TooLong:
    """No worker lasts as long as the run may take."""

    asked: float  # seconds
    longest: float

    def __str__(self) -> str:
        asked, longest = format_duration(self.asked), format_duration(self.longest)
        return f"may take {asked}, and the longest that a worker lasts is {longest}"


@dataclass(frozen=True)
class NotWhole:
    """The run asks for one device and a part of another, or the like."""

    name: str
    asked: float

    def __str__(self) -> str:
        return f"asks {self.name}={format_amount(self.asked)}, and gets whole ones (1, 2, ...) or a part of one (0.5)"


@dataclass(frozen=True)
class NoSingleWorker:
    """Each amount is somewhere, but no worker has all of them together."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"no single worker has all it asks for: {', '.join(self.names)}"


@dataclass(frozen=True)
class NoWorker:
    """There is no worker at all at the moment, or none that has slots."""

    def __str__(self) -> str:
        return "waits for a worker"


@dataclass(frozen=True)
class NoFreeSlot:
    """Every worker that could hold the run is running as many as it may."""

    slots: int

    def __str__(self) -> str:
        return f"waits for one of {self.slots} worker slot(s)"


@dataclass(frozen=True)
class InUse:
    """A worker with a free slot could hold the run, but other runs use what it asks for."""

    name: str
    asked: float
    free: float

    def __str__(self) -> str:
        return f"waits for {self.name}={format_amount(self.asked)}, {format_amount(max(self.free, 0.0))} free"


@dataclass(frozen=True)
class Reserved:
    """What the run asks for is free, but kept for an earlier run that has waited too long."""

    for_run: str

    def __str__(self) -> str:
        return f"waits because run {self.for_run} has been passed over too often and is next"


Reason = NotDefined | TooLarge | TooLong | NotWhole | NoSingleWorker | NoWorker | NoFreeSlot | InUse | Reserved

# Reasons that no end of a run can remove: only other workers, or other tags.
IMPOSSIBLE = (NotDefined, TooLarge, TooLong, NotWhole, NoSingleWorker)


@dataclass(frozen=True)
class AfterRuns:
    """The run comes after others, which have not ended."""

    runs: tuple[str, ...]

    def __str__(self) -> str:
        return f"waiting for runs to finish: {', '.join(self.runs)}"


@dataclass(frozen=True)
class AfterFailed:
    """The run comes after one that has ended otherwise than it should."""

    run: str
    how: str

    def __str__(self) -> str:
        return f"run {self.run}, which it comes after, {self.how}"


@dataclass(frozen=True)
class AfterUnknown:
    """The run comes after one that is not there."""

    run: str

    def __str__(self) -> str:
        return f"there is no run {self.run}, which it comes after"


@dataclass(frozen=True)
class AfterAmbiguous:
    """The run comes after one whose id may be that of several."""

    run: str
    candidates: tuple[str, ...]

    def __str__(self) -> str:
        return f"it comes after run {self.run}, which may be any of {', '.join(self.candidates)}"


@dataclass(frozen=True)
class AfterCycle:
    """The run comes, by way of others, after itself."""

    runs: tuple[str, ...]

    def __str__(self) -> str:
        return f"runs wait for each other: {' -> '.join((*self.runs, self.runs[0]))}"


@dataclass(frozen=True)
class IsScheduler:
    """The run is a scheduler or a queue, or a batch of them; only its user can want to start it."""

    run: str

    def __str__(self) -> str:
        return f"it is a scheduler itself; start it with 'guild run --start {self.run}'"


# Why a run is not even considered for a start.
Hold = AfterRuns | AfterFailed | AfterUnknown | AfterAmbiguous | AfterCycle
