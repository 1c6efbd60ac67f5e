"""What happens to workers and to jobs on them. A cluster reports each of these as a value."""

from dataclasses import dataclass
from typing import ClassVar

from guild_dask.plan.troubles import NoWorkerStarted, Refusal


@dataclass(frozen=True)
class JobEnded:
    """A worker is done with a run's attempt; the exit code is the starter's."""

    run_id: str
    exit_code: int
    had_claim: bool = True  # False: the run was not that attempt's to start


@dataclass(frozen=True)
class JobLost:
    """A worker could not do its part, or is gone; whether the run started is for the claim to say."""

    run_id: str
    problem: str
    had_claim: ClassVar[bool] = False


@dataclass(frozen=True)
class JobAdrift:
    """The worker of a run is out of sight. The run may go on; what lies in the Guild home will tell."""

    run_id: str
    problem: str


@dataclass(frozen=True)
class WorkersChanged:
    """A worker came, or went; the news says which, if there is something to say."""

    news: str = ""


@dataclass(frozen=True)
class WorkerRefused:
    """A worker joined that cannot start runs."""

    worker: str
    refusal: Refusal


@dataclass(frozen=True)
class ClusterTrouble:
    """Requested workers did not start; the next request is made after a pause, in seconds."""

    trouble: NoWorkerStarted
    pause: float


ClusterEvent = JobEnded | JobLost | JobAdrift | WorkersChanged | WorkerRefused | ClusterTrouble
