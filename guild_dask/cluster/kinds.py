"""What every kind of cluster has in common, and the error that one cannot be opened."""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from guild_dask.cluster.events import ClusterEvent
from guild_dask.job import Job
from guild_dask.plan import StagedRun
from guild_dask.resources import format_amounts
from guild_dask.terms import Terms

# Seconds before a worker's end in which nothing new is started on it, and by which a run must have ended; and seconds
# between the beginning of a worker's life and the first run on it. Each is a tenth of its life if that is less.
_GOING = 60.0
_COMING = 120.0


class ClusterError(Exception):
    """The cluster cannot be opened; the text is for the user."""


class OpeningStopped(Exception):
    """The user has asked the scheduler to stop while its cluster was being opened; nothing of it is left."""


@dataclass(frozen=True)
class WorkerCapacity:
    """A worker and what it has when it is idle."""

    name: str
    slots: int
    resources: Mapping[str, float]
    host: str
    devices: tuple[str, ...] = ()  # the names of its GPUs, where these are given out one by one; `gpu` is their number
    label: str = ""  # its name, for people
    lifetime: float | None = None  # seconds from its start to its end, where that is known
    ends: float | None = None  # when that will be, by time.monotonic()

    is_whole_host: bool = False  # no other worker of its kind is on its host, now or earlier
    halt: str = ""  # why it takes nothing new at the moment: what was sent to it would wait there, not in the queue

    @property
    def margin(self) -> float:
        """Returns the seconds before its end in which nothing new is started on it."""
        return min(_GOING, (self.lifetime or math.inf) / 10)

    @property
    def lasts(self) -> float:
        """Returns the seconds that a run may take on such a worker when it has just come."""
        if not self.lifetime:
            return math.inf
        return self.lifetime - self.margin - min(_COMING, self.lifetime / 10)

    def described(self, node: str) -> str:
        """Returns the worker's name and what it has, for people."""
        has = [f"{self.slots} slot{'s' if self.slots > 1 else ''}"]
        has += [format_amounts(self.resources)] if self.resources else []
        return f"{self.label} on {node} ({', '.join(has)})"


@dataclass(frozen=True)
class Common:
    """What a scheduler and the workers of any kind of cluster have in common."""

    home: str
    token: str  # a file in the home that is there as long as this scheduler is: who sees it, sees our home
    lease: float  # seconds for which a run goes on without the home
    report: Callable[[ClusterEvent], object]
    gpus: tuple[str, ...] | None = None  # to be given out on each worker, or AUTO; None: GPUs are an amount
    is_stopping: Callable[[], bool] = lambda: False  # tells whether the user has asked the scheduler to stop


class AsManyAsThereAre:
    """What a cluster has in common with others that ask for no workers: it has those that it has."""

    def prospects(self) -> list[WorkerCapacity]:
        """Returns no workers: none is known to come."""
        return []

    @property
    def appetite(self) -> int:
        """Returns 0: waiting runs are of no use to adjust()."""
        return 0

    def adjust(self, waiting: Sequence[StagedRun], busy: Container[str]) -> Sequence[StagedRun]:
        """Asks for nothing."""
        return waiting


class Cluster(Protocol):
    """Workers, and runs on them. What happens to these comes up as events."""

    def workers(self) -> list[WorkerCapacity]:
        """Returns the workers there are now."""

    def prospects(self) -> list[WorkerCapacity]:
        """Returns workers such as may come, one of each kind, where that is known."""

    @property
    def appetite(self) -> int:
        """Returns how many waiting runs adjust() has a use for; 0: for none."""

    def adjust(self, waiting: Sequence[StagedRun], busy: Container[str]) -> Sequence[StagedRun]:
        """Asks for workers that the waiting runs need, and gives back idle ones, but for those that are busy.

        Returns the runs that would still wait if all that was asked for came.
        """

    def terms(self, worker: str) -> Terms:
        """Returns the terms of runs on a worker, as far as the worker's kind decides them."""

    def submit(self, work: Job, worker: str, asks: Mapping[str, float]) -> None:
        """Runs a job on a worker, which the plan has found to have room. An event tells its end."""

    def prepare(self, environ: Mapping[str, str]) -> None:
        """Lets workers get ready to start runs."""

    def tidy(self) -> None:
        """Does what is to be done now and then."""

    def stop(self, run_id: str) -> None:
        """Asks a running job to end."""

    def kill(self, run_id: str) -> None:
        """Ends the processes of a running job at once."""

    def destroy(self, run_id: str) -> None:
        """Ends a job that kill() has not ended."""

    def dashboard_link(self) -> str | None:
        """Returns where the dashboard can be seen, or None if there is none."""

    def add_pages(self, routes: Sequence[Any], first: str) -> str | None:
        """Adds pages to the dashboard and returns the link to the first; None if this cluster cannot add any."""

    def close(self) -> None:
        """Closes what was opened, and nothing else. Jobs should have ended by now."""
