"""What happens to workers and to jobs on them. A cluster reports each of these as a value."""

from dataclasses import dataclass

from guild_dask.plan.troubles import NoWorkerStarted, Refusal
from guild_dask.worker.job import Ended


@dataclass(frozen=True)
class JobEnded:
    """An attempt at a run has ended on its worker. The exit code is what its starter reported."""

    run_id: str
    exit_code: int
    had_claim: bool = True  # False: the attempt did not own the run's claim, and started nothing
    problem: str = ""  # what kept it from starting, if something did; else Guild's last message
    may_be_of_run: bool = False  # what kept it from starting is no shortage of its host


def job_ended(run_id: str, ended: Ended) -> JobEnded:
    """Returns the event for what a worker reports."""
    return JobEnded(run_id, ended.exit_code, ended.had_claim, ended.problem, ended.may_be_of_run)


@dataclass(frozen=True)
class JobLost:
    """A job failed, or could not be submitted. The claim shows whether the run has started."""

    run_id: str
    problem: str
    may_be_of_run: bool = False  # the problem is neither the cluster's nor the home's, as far as is known


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
