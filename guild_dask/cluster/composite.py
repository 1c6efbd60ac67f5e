"""Several clusters as one: a CPU partition and a GPU partition, or this machine and a job queue."""

import contextlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from guild_dask.cluster.base import Cluster, WorkerCapacity
from guild_dask.cluster.events import ClusterEvent, JobEnded, JobLost, JobUnseen
from guild_dask.plan.placement import StagedRun
from guild_dask.worker.job import Job
from guild_dask.worker.options import StarterOptions

# How many lost workers are remembered: a plan may still name one of them.
_REMEMBERED = 1000


class RunsOfPools:
    """Which pool has which run until the run is over. All reports of pools pass through here."""

    def __init__(self, report: Callable[[ClusterEvent], object]) -> None:
        self._report = report
        self._pools: dict[str, Cluster] = {}

    def note(self, run_id: str, pool: Cluster) -> None:
        """Notes that a run is submitted to a pool."""
        self._pools[run_id] = pool

    def pools_of(self, run_id: str) -> list[Cluster]:
        """Returns the pool that has a run, or nothing if none has."""
        pool = self._pools.get(run_id)  # one access: the run may end meanwhile
        return [pool] if pool else []

    def report(self, event: ClusterEvent) -> None:
        """Passes on an event, and forgets the run if it has ended."""
        if isinstance(event, (JobEnded, JobLost, JobUnseen)):
            self._pools.pop(event.run_id, None)
        self._report(event)


class CompositeCluster:
    """Clusters by the names of their pools. Each scales for the runs that fit on it, in the order of the pools."""

    def __init__(self, pools: Mapping[str, Cluster], runs: "RunsOfPools") -> None:
        self._pools = pools
        self._runs = runs
        self._of_worker: dict[str, Cluster] = {}  # including recently lost ones

    def workers(self) -> list[WorkerCapacity]:
        """Returns the workers of all pools that are there now."""
        found = [(worker, pool) for pool in self._pools.values() for worker in pool.workers()]
        here = {worker.name: pool for worker, pool in found}
        gone = [(name, pool) for name, pool in self._of_worker.items() if name not in here]
        self._of_worker = {**dict(gone[-_REMEMBERED:]), **here}
        return [worker for worker, _ in found]

    def prospects(self) -> list[WorkerCapacity]:
        """Returns one worker of each kind that may still join."""
        return [
            replace(worker, name=f"{worker.name} in {name}")
            for name, pool in self._pools.items()
            for worker in pool.prospects()
        ]

    def parts(self) -> Sequence[Cluster]:
        """Returns the pools."""
        return tuple(self._pools.values())

    @property
    def most_waiting(self) -> int:
        """Returns how many waiting runs adjust() needs to see."""
        return sum(pool.most_waiting for pool in self._pools.values())

    def adjust(self, waiting: Sequence[StagedRun], busy: Container[str]) -> Sequence[StagedRun]:
        """Lets each pool request workers for the runs that the pools before it cannot take."""
        for pool in self._pools.values():
            waiting = pool.adjust(waiting, busy)
        return waiting

    def options(self, worker: str) -> StarterOptions:
        """Returns the options of runs on a worker."""
        return self._pool(worker).options(worker)

    def submit(self, work: Job, worker: str, requests: Mapping[str, float]) -> None:
        """Runs a job on a worker of one of the pools."""
        pool = self._pool(worker)
        self._runs.note(work.run_id, pool)
        pool.submit(work, worker, requests)

    def _pool(self, worker: str) -> Cluster:
        return self._of_worker.get(worker) or next(iter(self._pools.values()))

    def prepare(self, environ: Mapping[str, str]) -> None:
        """Prepares workers that are in this process to start runs."""
        for pool in self._pools.values():
            pool.prepare(environ)

    def tidy(self) -> None:
        """Does periodic work; called at every poll."""
        for pool in self._pools.values():
            pool.tidy()

    def stop(self, run_id: str) -> None:
        """Requests the end of a running job."""
        for pool in self._runs.pools_of(run_id):
            pool.stop(run_id)

    def kill(self, run_id: str) -> None:
        """Ends the processes of a running job at once."""
        for pool in self._runs.pools_of(run_id):
            pool.kill(run_id)

    def destroy(self, run_id: str) -> None:
        """Ends a job that kill() has not ended."""
        for pool in self._runs.pools_of(run_id):
            pool.destroy(run_id)

    def dashboard_link(self) -> str | None:
        """Returns where the dashboard of the first pool that has one can be seen."""
        links = (pool.dashboard_link() for pool in self._pools.values())
        return next((link for link in links if link), None)

    def add_pages(self, routes: Sequence[Any], first: str) -> str | None:
        """Returns None: the dashboard of one pool does not show pages about all of them."""
        return None

    def close(self) -> None:
        """Closes all that was opened, the last one first."""
        with contextlib.ExitStack() as closing:
            for pool in self._pools.values():
                closing.callback(pool.close)
