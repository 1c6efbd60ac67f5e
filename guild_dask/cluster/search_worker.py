"""One more worker, in the scheduler's own process, that runs staged searches only.

A search proposes trials, which need the slots of the other workers. If it took the only slot, they could never start.
"""

import socket
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from guild_dask.cluster.base import Cluster, WorkerCapacity
from guild_dask.cluster.events import ClusterEvent, JobLost, job_ended
from guild_dask.plan.capacity import SEARCH
from guild_dask.plan.placement import StagedRun
from guild_dask.worker.job import Job
from guild_dask.worker.options import StarterOptions
from guild_dask.worker.runner import RUNNER

NAME = "scheduler"

# How many searches may run at the same time.
_MOST = 16


class WithSearchWorker:
    """A cluster with one more worker, which takes searches and nothing else."""

    def __init__(self, cluster: Cluster, report: Callable[[ClusterEvent], object]) -> None:
        self._cluster = cluster
        self._report = report
        self._worker = WorkerCapacity(NAME, _MOST, {SEARCH: _MOST}, socket.gethostname())
        self._own: set[str] = set()  # searches that have not ended

    def workers(self) -> list[WorkerCapacity]:
        """Returns the workers that are there now, and the one for searches."""
        return [*self._cluster.workers(), self._worker]

    def submit(self, work: Job, worker: str, requests: Mapping[str, float]) -> None:
        """Runs a job on a worker that has a free slot for it. An event reports its end."""
        if worker != NAME:
            self._cluster.submit(work, worker, requests)
            return
        self._own.add(work.run_id)
        threading.Thread(target=self._run, args=(work,), name=f"search {work.run_id}", daemon=True).start()

    def _run(self, work: Job) -> None:
        event: ClusterEvent
        try:
            ended = RUNNER.run(work)
            event = job_ended(work.run_id, ended)
        except Exception as e:  # noqa: BLE001  # any error is the job's
            event = JobLost(work.run_id, f"it could not be run: {e}")
        self._own.discard(work.run_id)
        self._report(event)

    def options(self, worker: str) -> StarterOptions:
        """Returns the options of runs on a worker, as far as the worker's kind decides them."""
        return StarterOptions() if worker == NAME else self._cluster.options(worker)

    def stop(self, run_id: str) -> None:
        """Requests the end of a running job."""
        (RUNNER if run_id in self._own else self._cluster).stop(run_id)

    def kill(self, run_id: str) -> None:
        """Ends the processes of a running job at once."""
        (RUNNER if run_id in self._own else self._cluster).kill(run_id)

    def destroy(self, run_id: str) -> None:
        """Ends a job that kill() has not ended."""
        (RUNNER if run_id in self._own else self._cluster).destroy(run_id)

    def tidy(self) -> None:
        """Does periodic work; called at every poll."""
        self._cluster.tidy()
        RUNNER.reap()  # what searches have left

    # All else is the cluster's.

    def prospects(self) -> list[WorkerCapacity]:
        """Returns one worker of each kind that may still join, where that is known."""
        return self._cluster.prospects()

    def parts(self) -> Sequence[Cluster]:
        """Returns the pools that the cluster is made of."""
        return self._cluster.parts()

    @property
    def most_waiting(self) -> int:
        """Returns how many waiting runs adjust() needs to see."""
        return self._cluster.most_waiting

    def adjust(self, waiting: Sequence[StagedRun], busy: Container[str]) -> Sequence[StagedRun]:
        """Requests workers for waiting runs, and gives back idle ones."""
        return self._cluster.adjust(waiting, busy)

    def prepare(self, environ: Mapping[str, str]) -> None:
        """Prepares workers that are in this process to start runs."""
        self._cluster.prepare(environ)

    def dashboard_link(self) -> str | None:
        """Returns where the dashboard can be seen, or None if there is none."""
        return self._cluster.dashboard_link()

    def add_pages(self, routes: Sequence[Any], first: str) -> str | None:
        """Adds pages to the dashboard and returns the link to the first; None if this cluster cannot add any."""
        return self._cluster.add_pages(routes, first)

    def close(self) -> None:
        """Closes what was opened, and nothing else. Jobs should have ended before."""
        self._cluster.close()
