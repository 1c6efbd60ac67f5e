"""The protocol of all kinds of clusters, its values, and the error that a cluster cannot be opened."""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from guild_dask.cluster.events import ClusterEvent
from guild_dask.host.http_access import Access
from guild_dask.plan.placement import StagedRun
from guild_dask.plan.resources import format_amounts
from guild_dask.plan.troubles import Refusal
from guild_dask.worker.job import Job
from guild_dask.worker.options import StarterOptions

# Seconds before the end of a worker's lifetime by which its runs must have ended, and seconds from a worker's start to
# the first run on it. Each is at most a tenth of the worker's lifetime.
_END_MARGIN = 60.0
_START_MARGIN = 120.0


class ClusterError(Exception):
    """The cluster cannot be opened. The text is for the user."""


class OpeningStopped(Exception):
    """The user asked the scheduler to stop while its cluster was being opened; nothing is left open."""


@dataclass(frozen=True)
class WorkerCapacity:
    """A worker and its capacity when idle."""

    name: str
    slots: int
    resources: Mapping[str, float]
    host: str
    devices: tuple[str, ...] = ()  # names of its GPUs if they are assigned one by one; `gpu` is their number
    label: str = ""  # its name in messages
    about_devices: str = ""  # which GPUs were found on it, and how, if they were looked for
    lifetime: float | None = None  # seconds from its start to its end, where that is known
    ends: float | None = None  # when it ends, by time.monotonic()

    is_whole_host: bool = False  # no other worker of its cluster is or was on its host
    halt: Refusal | None = None  # why it accepts no run now; a run sent to it would wait there, not in the queue

    @property
    def margin(self) -> float:
        """Returns the seconds before the end of its lifetime by which its runs must have ended."""
        return min(_END_MARGIN, (self.lifetime or math.inf) / 10)

    @property
    def lasts(self) -> float:
        """Returns the seconds that a run may take on such a worker when it has just joined."""
        if not self.lifetime:
            return math.inf
        return self.lifetime - self.margin - min(_START_MARGIN, self.lifetime / 10)

    def described(self, node: str) -> str:
        """Returns the worker's label, node and capacity, for messages."""
        has = [f"{self.slots} slot{'s' if self.slots > 1 else ''}"]
        has += [format_amounts(self.resources)] if self.resources else []
        return f"{self.label} on {node} ({', '.join(has)})"


@dataclass(frozen=True)
class Timeouts:
    """How long other processes may take to answer, in seconds."""

    connect: float = 30.0  # a Dask scheduler, until a client is connected to it
    handshake: float = 60.0  # a worker, until it has answered whether it can start runs
    result: float = 20.0  # a worker, until it has sent how a run ended
    close: float = 8.0  # a cluster of another package, until it is closed


@dataclass(frozen=True)
class Common:
    """What every kind of cluster needs to know of the scheduler."""

    home: str
    token: str  # a file in the home while this scheduler lives; a worker that sees the file sees our home
    lease: float  # seconds that a run continues without the home
    report: Callable[[ClusterEvent], object]
    gpus: tuple[str, ...] | None = None  # to be assigned on each worker, or AUTO; None: GPUs are an amount
    is_stopping: Callable[[], bool] = lambda: False  # returns whether there is a stop request for the scheduler
    timeouts: Timeouts = Timeouts()
    access: Access | None = None  # who may read the dashboard; None: anyone who can reach it


class FixedWorkers:
    """Base of clusters that request no workers."""

    def prospects(self) -> list[WorkerCapacity]:
        """Returns no workers: none is requested."""
        return []

    @property
    def most_waiting(self) -> int:
        """Returns 0: adjust() needs no waiting runs."""
        return 0

    def adjust(self, waiting: Sequence[StagedRun], busy: Container[str]) -> Sequence[StagedRun]:
        """Requests nothing."""
        return waiting

    def parts(self) -> Sequence[Any]:
        """Returns this cluster."""
        return (self,)


class Cluster(Protocol):
    """Workers, and runs on them. What happens to them is reported as events."""

    def workers(self) -> list[WorkerCapacity]:
        """Returns the workers that are there now."""

    def prospects(self) -> list[WorkerCapacity]:
        """Returns one worker of each kind that may still join, where that is known."""

    def parts(self) -> "Sequence[Cluster]":
        """Returns the pools that it is made of; itself if it has none."""

    @property
    def most_waiting(self) -> int:
        """Returns how many waiting runs adjust() needs to see."""

    def adjust(self, waiting: Sequence[StagedRun], busy: Container[str]) -> Sequence[StagedRun]:
        """Requests workers for waiting runs, and gives back idle ones, never those in `busy`.

        Returns the runs that would still wait if all requested workers joined.
        """

    def options(self, worker: str) -> StarterOptions:
        """Returns the options of runs on a worker, as far as the worker's kind decides them."""

    def submit(self, work: Job, worker: str, requests: Mapping[str, float]) -> None:
        """Runs a job on a worker that has a free slot for it. An event reports its end."""

    def prepare(self, environ: Mapping[str, str]) -> None:
        """Prepares workers that are in this process to start runs."""

    def tidy(self) -> None:
        """Does periodic work; called at every poll."""

    def stop(self, run_id: str) -> None:
        """Requests the end of a running job."""

    def kill(self, run_id: str) -> None:
        """Ends the processes of a running job at once."""

    def destroy(self, run_id: str) -> None:
        """Ends a job that kill() has not ended."""

    def dashboard_link(self) -> str | None:
        """Returns where the dashboard can be seen, or None if there is none."""

    def add_pages(self, routes: Sequence[Any], first: str) -> str | None:
        """Adds pages to the dashboard and returns the link to the first; None if this cluster cannot add any."""

    def close(self) -> None:
        """Closes what was opened, and nothing else. Jobs should have ended before."""
