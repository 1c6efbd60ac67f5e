"""Several clusters as one: a CPU partition and a GPU partition, or this machine and a job queue. One queue for all."""

import contextlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from guild_dask import job
from guild_dask.cluster.events import ClusterEvent, JobAdrift, JobEnded, JobLost
from guild_dask.cluster.kinds import Cluster, WorkerCapacity
from guild_dask.plan import StagedRun
from guild_dask.terms import Terms

# How many workers are remembered that have gone: a plan may have been made with one of them.
_REMEMBERED = 1000


class RunsOfPools:
    """Which pool has which run, until that is over. What pools report is to come by here."""

    def __init__(self, report: Callable[[ClusterEvent], object]) -> None:
        self._report = report
        self._pools: dict[str, Cluster] = {}

    def note(self, run_id: str, pool: Cluster) -> None:
        """Notes that a pool gets a run."""
        self._pools[run_id] = pool

    def pools_of(self, run_id: str) -> list[Cluster]:
        """Returns the pool that has a run, or nothing if none has."""
        pool = self._pools.get(run_id)  # at once: it may end meanwhile
        return [pool] if pool else []

    def report(self, event: ClusterEvent) -> None:
        """Passes on an event, and forgets the run if it was its last."""
        if isinstance(event, (JobEnded, JobLost, JobAdrift)):
            self._pools.pop(event.run_id, None)
        self._report(event)


class CompositeCluster:
    """Clusters by the names of their pools. Each scales for the runs that need it, the first that can before others."""

    def __init__(self, pools: Mapping[str, Cluster], runs: "RunsOfPools") -> None:
        self._pools = pools
        self._runs = runs
        self._of_worker: dict[str, Cluster] = {}  # those that have gone last included

    def workers(self) -> list[WorkerCapacity]:
        """Returns the workers of all pools there are now."""
        found = [(worker, pool) for pool in self._pools.values() for worker in pool.workers()]
        here = {worker.name: pool for worker, pool in found}
        gone = [(name, pool) for name, pool in self._of_worker.items() if name not in here]
        self._of_worker = {**dict(gone[-_REMEMBERED:]), **here}
        return [worker for worker, _ in found]

    def prospects(self) -> list[WorkerCapacity]:
        """Returns the workers that may come, one of each kind."""
        return [
            replace(worker, name=f"{worker.name} in {name}")
            for name, pool in self._pools.items()
            for worker in pool.prospects()
        ]

    @property
    def appetite(self) -> int:
        """Returns how many waiting runs adjust() has a use for."""
        return sum(pool.appetite for pool in self._pools.values())

    def adjust(self, waiting: Sequence[StagedRun], busy: Container[str]) -> Sequence[StagedRun]:
        """Has each pool ask for what the runs need that those before it have not asked for."""
        for pool in self._pools.values():
            waiting = pool.adjust(waiting, busy)
        return waiting

    def terms(self, worker: str) -> Terms:
        """Returns the terms of runs on a worker."""
        return self._pool(worker).terms(worker)

    def submit(self, work: job.Job, worker: str, asks: Mapping[str, float]) -> None:
        """Runs a job on a worker of one of the pools."""
        pool = self._pool(worker)
        self._runs.note(work.run_id, pool)
        pool.submit(work, worker, asks)

    def _pool(self, worker: str) -> Cluster:
        return self._of_worker.get(worker) or next(iter(self._pools.values()))

    def prepare(self, environ: Mapping[str, str]) -> None:
        """Lets workers get ready to start runs."""
        for pool in self._pools.values():
            pool.prepare(environ)

    def tidy(self) -> None:
        """Does what is to be done now and then."""
        for pool in self._pools.values():
            pool.tidy()

    def stop(self, run_id: str) -> None:
        """Asks a running job to end."""
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
        """Returns None: the dashboard of one pool is not the place for pages about all of them."""
        return None

    def close(self) -> None:
        """Closes all that was opened, the last one first."""
        with contextlib.ExitStack() as closing:
            for pool in self._pools.values():
                closing.callback(pool.close)
