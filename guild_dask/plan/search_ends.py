"""Why a search is over: values with numbers and names, whose text is made where it is shown. Pure."""

from dataclasses import dataclass
from typing import Any, get_args

from guild_dask.plan import records


class _Ends:
    """Base of the reasons why a search is over."""

    @property
    def is_failure(self) -> bool:
        """Returns whether the search stops at once, and has failed."""
        return False


class _Fails(_Ends):
    @property
    def is_failure(self) -> bool:
        return True


@dataclass(frozen=True)
class TrialsUsed(_Ends):
    """The search has had all its trials."""

    trials: int

    def __str__(self) -> str:
        return f"it has had {self.trials} trial(s)"


@dataclass(frozen=True)
class OutOfTime(_Ends):
    """The time of the search is over."""

    def __str__(self) -> str:
        return "its time is over"


@dataclass(frozen=True)
class TargetReached(_Ends):
    """A trial, or an earlier run that the search learns from, is as good as the user wants."""

    objective: str
    target: float
    earlier: str = ""  # the run that has reached it, if that is none of its trials

    def __str__(self) -> str:
        which = f"the earlier run {self.earlier[:8]}" if self.earlier else "a trial"
        return f"{which} has reached the target, {self.objective} {self.target:g}"


@dataclass(frozen=True)
class SpaceExhausted(_Ends):
    """No point of the space is left."""

    def __str__(self) -> str:
        return "every point of its space was tried"


@dataclass(frozen=True)
class FailedInARow(_Fails):
    """Too many trials failed one after the other."""

    trials: int
    is_first: bool  # the very first trials failed; else the last ones did
    last: str  # the run of the last of them

    def __str__(self) -> str:
        which = "the first" if self.is_first else "the last"
        return f"{which} {self.trials} trial(s) failed; see why with 'guild-dask logs {self.last[:8]}'"


@dataclass(frozen=True)
class MissingScalar(_Fails):
    """A trial completed without the scalars that are to be optimized."""

    trial: str  # its run
    missing: tuple[str, ...]
    found: tuple[str, ...]  # the scalars that it has
    batch: str  # the run of the search
    direction: str  # of the first objective, as the option is named

    def __str__(self) -> str:
        has = f"it has {', '.join(self.found)}" if self.found else "it has no scalars"
        command = f"guild run --restart {self.batch[:8]} --{self.direction} NAME"
        names = " and ".join(self.missing)
        return f"trial {self.trial[:8]} completed without the scalar {names} ({has}); name one to optimize: {command}"


@dataclass(frozen=True)
class CannotStageTrial(_Fails):
    """Guild refuses to stage a trial."""

    problem: str

    def __str__(self) -> str:
        return f"Guild cannot stage a trial: {self.problem}"


@dataclass(frozen=True)
class SearchDeleted(_Fails):
    """The run of the search is gone."""

    def __str__(self) -> str:
        return "its run was deleted"


@dataclass(frozen=True)
class ErrorOfItsOwn(_Fails):
    """There is an error in guild-dask."""

    error: str
    details: str  # the path of a file

    def __str__(self) -> str:
        return f"there is an error in guild-dask itself: {self.error} (details are in {self.details})"


@dataclass(frozen=True)
class UnknownEnd(_Ends):
    """An end that another version of guild-dask recorded."""

    text: str

    def __str__(self) -> str:
        return self.text


SearchEnd = (
    TrialsUsed
    | OutOfTime
    | TargetReached
    | SpaceExhausted
    | FailedInARow
    | MissingScalar
    | CannotStageTrial
    | SearchDeleted
    | ErrorOfItsOwn
    | UnknownEnd
)


def data_for_end(end: SearchEnd) -> dict[str, Any]:
    """Returns an end as data: its kind, and its fields."""
    return records.tagged_data_for(end)


def data_for_people(end: SearchEnd | None) -> dict[str, Any] | None:
    """Returns an end as data with its text; None for a search that goes on, or was cut short."""
    return None if end is None else {**data_for_end(end), records.TEXT: str(end)}


def end_for_data(data: Any) -> SearchEnd:
    """Returns the end that data_for_end() wrote. Never raises: other data, such as a text, becomes an UnknownEnd."""
    found: SearchEnd | None = records.tagged_value_for(get_args(SearchEnd), data)
    return found or UnknownEnd(records.text_for_unknown(data))
