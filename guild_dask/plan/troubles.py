"""Why workers get no runs or do not start: values with a problem and a remedy. Pure."""

from dataclasses import dataclass
from typing import Any

from guild_dask.plan import records


class _Refusal:
    """Base of the reasons why a worker gets no runs: what is wrong with it, and what to do."""

    @property
    def problem(self) -> str:
        """Returns what is wrong, to follow the worker's name."""
        raise NotImplementedError

    @property
    def remedy(self) -> str:
        """Returns what to do; empty if there is nothing to do but wait."""
        return ""

    def __str__(self) -> str:
        return f"{self.problem}: {self.remedy}" if self.remedy else self.problem


@dataclass(frozen=True)
class OtherVersion(_Refusal):
    """The worker has another version of guild-dask than its scheduler."""

    found: str
    wanted: str

    @property
    def problem(self) -> str:
        return f"has guild-dask {self.found}; the scheduler has {self.wanted}"

    @property
    def remedy(self) -> str:
        return _install(self.wanted)


@dataclass(frozen=True)
class NotInstalled(_Refusal):
    """The worker has no guild-dask."""

    wanted: str

    @property
    def problem(self) -> str:
        return "does not have guild-dask"

    @property
    def remedy(self) -> str:
        return _install(self.wanted)


def _install(version: str) -> str:
    return f"install guild-dask {version} in the environment of the worker"


@dataclass(frozen=True)
class HomeNotSeen(_Refusal):
    """The worker does not see the Guild home of its scheduler."""

    home: str

    @property
    def problem(self) -> str:
        return f"does not see the Guild home {self.home}"

    @property
    def remedy(self) -> str:
        return "set GUILD_HOME to a folder that all hosts share"


@dataclass(frozen=True)
class NoAnswer(_Refusal):
    """The worker has not answered whether it can start runs; it is asked again."""

    @property
    def problem(self) -> str:
        return "does not answer; it is asked again"


@dataclass(frozen=True)
class CannotStartRuns(_Refusal):
    """The worker failed when it was asked whether it can start runs."""

    error: str

    @property
    def problem(self) -> str:
        return f"cannot start runs ({self.error})"

    @property
    def remedy(self) -> str:
        return "see the log of the worker"


@dataclass(frozen=True)
class Paused(_Refusal):
    """Dask has paused the worker, for example because memory is nearly full."""

    @property
    def problem(self) -> str:
        return "is paused by Dask"


@dataclass(frozen=True)
class Closing(_Refusal):
    """The worker accepts no new runs, and closes when it is idle."""

    @property
    def problem(self) -> str:
        return "is about to close"


@dataclass(frozen=True)
class StartFailed(_Refusal):
    """The worker could not start its last run, because its host was short of something; it gets one at each poll."""

    why: str

    @property
    def problem(self) -> str:
        return f"could not start the last one ({self.why}); one is tried at each poll"


Refusal = OtherVersion | NotInstalled | HomeNotSeen | NoAnswer | CannotStartRuns | Paused | Closing | StartFailed


@dataclass(frozen=True)
class WorkerWithoutRuns:
    """A worker gets no run."""

    worker: str
    refusal: Refusal

    @property
    def problem(self) -> str:
        return f"worker {self.worker} gets no run: it {self.refusal.problem}"

    @property
    def remedy(self) -> str:
        return self.refusal.remedy


@dataclass(frozen=True)
class NoWorkerStarted:
    """Requested workers did not start, by an error of the job queue or Dask, or none of them can start runs."""

    error: str = ""
    worker: str = ""  # the first worker that joined and cannot start runs
    refusal: Refusal | None = None
    others: int = 0  # the number of further failures

    @property
    def problem(self) -> str:
        first = f"worker {self.worker} {self.refusal.problem}" if self.refusal else self.error
        return f"no worker started: {first} (and {self.others} more)" if self.others else f"no worker started: {first}"

    @property
    def remedy(self) -> str:
        return self.refusal.remedy if self.refusal else ""


@dataclass(frozen=True)
class UnknownTrouble:
    """A trouble that a scheduler with another version of guild-dask recorded."""

    text: str

    @property
    def problem(self) -> str:
        return self.text

    @property
    def remedy(self) -> str:
        return ""


Trouble = WorkerWithoutRuns | NoWorkerStarted | UnknownTrouble


def text_for(trouble: Trouble) -> str:
    """Returns what is wrong, and what to do if that is known."""
    return f"{trouble.problem}: {trouble.remedy}" if trouble.remedy else trouble.problem


def sentence_for(trouble: Trouble) -> str:
    """Returns the same as a sentence."""
    text = text_for(trouble)
    return text[:1].upper() + text[1:]


def data_for_trouble(trouble: Trouble) -> dict[str, Any]:
    """Returns a trouble as data: its kind, and its fields."""
    return records.tagged_data_for(trouble)


def trouble_for_data(data: Any) -> Trouble:
    """Returns the trouble that data_for_trouble() wrote. Never raises: other data becomes an UnknownTrouble."""
    found: Trouble | None = records.tagged_value_for((WorkerWithoutRuns, NoWorkerStarted, UnknownTrouble), data)
    return found or UnknownTrouble(records.text_for_unknown(data))
