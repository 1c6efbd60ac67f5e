"""Workers that we request ourselves, from a job queue or over SSH: as many as runs need, each given back when idle."""

import contextlib
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from distributed import Client, SpecCluster

from guild_dask.cluster.base import ClusterError, Common, WorkerCapacity
from guild_dask.cluster.remote import RemoteCluster, WorkerTraits
from guild_dask.cluster.scaling import Need, need
from guild_dask.cluster.security import remove_certificates
from guild_dask.cluster.worker_jobs import LAST_COMMANDS, PoolTerms, WorkerJobs
from guild_dask.plan.placement import StagedRun
from guild_dask.plan.troubles import NoWorkerStarted, Refusal
from guild_dask.worker.job import Job
from guild_dask.worker.options import StarterOptions

# Seconds for the Dask cluster to close.
_CLOSE = 8.0


class WorkerPool:
    """The workers of a Dask cluster that we opened, and close: jobs that bring them, and runs on them."""

    def __init__(
        self, cluster: SpecCluster, terms: PoolTerms, common: Common, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._terms = terms
        self._past: dict[str, str] = {}  # address -> name of a worker that is gone and may have runs
        self._refused: dict[str, NoWorkerStarted] = {}  # job -> why its worker cannot start runs
        self._jobs = WorkerJobs(cluster, terms, common.report, clock)
        traits = WorkerTraits(
            lifetime=terms.worker.lifetime if terms.worker else None,
            is_whole_host=terms.of_host,
            on_lost=self._past.update,
            on_refused=self._note_refused,
        )
        self._remote = RemoteCluster(_client_of(cluster), common, traits=traits)

    # Jobs

    def prospects(self) -> list[WorkerCapacity]:
        """Returns a worker such as may still join."""
        return [self._terms.worker] if self._terms.worker else []

    def parts(self) -> "Sequence[WorkerPool]":
        """Returns this pool."""
        return (self,)

    @property
    def most_waiting(self) -> int:
        """Returns how many waiting runs adjust() needs to see."""
        count, worker = self._terms.count, self._terms.worker
        return count.most * self._terms.of_each_job * worker.slots if worker and count.is_elastic else 0

    def adjust(self, waiting: Sequence[StagedRun], busy: Container[str]) -> Sequence[StagedRun]:
        """Requests the workers that waiting runs need, and gives idle ones back. `busy` are workers that have runs."""
        self._note_presence(busy)
        self._give_up_refused()
        self._jobs.check_missing()
        for name in self._jobs.idle_for_long():
            self._give_back(name)
        requested, may_request = self._jobs.requested(), self._jobs.may_request()
        # Dask knows of a worker before it has been asked whether it can start runs.
        ready = {self._jobs.job_of(each.name) for each in self._remote.known_workers() if each.is_member}
        expected = sum(name not in ready for name in requested)
        worker = self._terms.worker
        needed = need(waiting, worker, expected, may_request, self._terms.of_each_job) if worker else Need(0, waiting)
        self._jobs.request(min(may_request, max(needed.jobs, self._terms.count.least - len(requested))))
        return needed.left

    def _note_presence(self, busy: Container[str]) -> None:
        """Notes which jobs have workers, and gives up jobs whose workers are gone with all their runs."""
        here: dict[str, list[tuple[str, bool]]] = {}
        for worker in self._remote.known_workers():
            here.setdefault(self._jobs.job_of(worker.name), []).append((worker.address, worker.is_member))
        for address in list(self._past):
            if address not in busy:
                self._past.pop(address)
        for name, job in self._jobs.requested().items():
            workers = here.get(name, [])
            if any(is_member for _, is_member in workers):
                self._jobs.note_joined(name, is_idle=not any(address in busy for address, _ in workers))
            elif job.has_come and not workers and name not in map(self._jobs.job_of, list(self._past.values())):
                self._give_back(name)  # it is over; a new one is requested if it is needed

    def _note_refused(self, name: str, problem: Refusal) -> None:
        """Notes that a job has brought a worker that cannot start runs."""
        self._refused[self._jobs.job_of(name)] = NoWorkerStarted(worker=name, refusal=problem)

    def _give_up_refused(self) -> None:
        """Gives back jobs with workers that cannot start runs. Several at a time are one failure."""
        problems = []
        for name in list(self._refused):
            problem = self._refused.pop(name)
            if self._jobs.is_missing(name):
                self._give_back(name)
                problems.append(problem)
        if problems:
            self._jobs.fail(problems)

    def _give_back(self, name: str) -> None:
        """Gives a job back. Nothing is planned on its workers from this moment on."""
        for worker in self._remote.known_workers():
            if self._jobs.job_of(worker.name) == name:
                self._remote.drop(worker.address)
        self._jobs.give_back(name)

    # Workers, and runs on them

    @property
    def address(self) -> str:
        """Returns the address of the Dask scheduler."""
        return self._remote.address

    def workers(self) -> list[WorkerCapacity]:
        """Returns the workers that are there now."""
        return self._remote.workers()

    def options(self, worker: str) -> StarterOptions:
        """Returns the options of runs on a worker."""
        return self._remote.options(worker)

    def submit(self, work: Job, worker: str, requests: Mapping[str, float]) -> None:
        """Runs a job on a worker that has a free slot for it. An event reports its end."""
        self._remote.submit(work, worker, requests)

    def prepare(self, environ: Mapping[str, str]) -> None:
        """Does nothing: a worker gets ready when it joins, with the environment of its own job."""

    def tidy(self) -> None:
        """Looks for workers that joined or left without an event."""
        self._remote.tidy()

    def stop(self, run_id: str) -> None:
        """Requests the end of a running job."""
        self._remote.stop(run_id)

    def kill(self, run_id: str) -> None:
        """Ends the processes of a running job at once."""
        self._remote.kill(run_id)

    def destroy(self, run_id: str) -> None:
        """Ends a job that kill() has not ended."""
        self._remote.destroy(run_id)

    def dashboard_link(self) -> str | None:
        """Returns where the dashboard can be seen, or None if there is none."""
        server = getattr(self._cluster.scheduler, "http_server", None)
        return str(self._cluster.dashboard_link) if getattr(server, "port", None) else None

    def add_pages(self, routes: Sequence[Any], first: str) -> str | None:
        """Returns None: pages are added to the dashboard of a local cluster only."""
        return None

    def close(self) -> None:
        """Closes the workers and the scheduler."""
        self._remote.stop_refreshing()
        self._jobs.close()
        self._remote.disconnect(LAST_COMMANDS)
        # Dask insists on states that jobs of a queue never have, and would try to close it once more at exit.
        self._cluster._created.clear()
        self._cluster.shutdown_on_close = False
        with contextlib.suppress(Exception):
            self._cluster.close(timeout=_CLOSE)
        if self._terms.folder:
            remove_certificates(self._cluster, self._terms.folder)


def _client_of(cluster: SpecCluster) -> Client:
    """Returns a client of our own cluster; raises ClusterError, and closes the cluster, if there is none."""
    try:
        return Client(cluster, set_as_default=False)
    except Exception as e:
        with contextlib.suppress(Exception):
            cluster.close(timeout=_CLOSE)
        raise ClusterError(f"cannot connect to the Dask scheduler in this process: {e or type(e).__name__}") from e
