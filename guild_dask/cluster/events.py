"""What happens to workers and to jobs on them. A cluster reports each of these as a value."""

from dataclasses import dataclass

from guild_dask.plan.troubles import NoWorkerStarted, Refusal


@dataclass(frozen=True)
class JobEnded:
    """An attempt at a run has ended on its worker. The exit code is what its starter reported."""

    run_id: str
    exit_code: int
    had_claim: bool = True  # False: the attempt did not own the run's claim, and started nothing
    problem: str = ""  # why its host starts no run now, if that kept it from starting; else Guild's last message


@dataclass(frozen=True)
class JobLost:
    """A job failed, or could not be submitted. The claim shows whether the run has started."""

    run_id: str
    problem: str


@dataclass(frozen=True)
class JobUnseen:
    """The worker of a run cannot be reached. The run may continue; its records in the Guild home show when it ends."""

    run_id: str
    problem: str


@dataclass(frozen=True)
class WorkersChanged:
    """A worker joined, left, or changed its state. `news` is a message for the log, if there is one."""

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


ClusterEvent = JobEnded | JobLost | JobUnseen | WorkersChanged | WorkerRefused | ClusterTrouble
