"""A cluster in this process: Dask's scheduler and one worker, with a thread for each slot."""

import asyncio
import contextlib
import itertools
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dask.config
import distributed.scheduler
import distributed.worker
from dask.utils import key_split
from distributed import Client, Future, Scheduler, SpecCluster, Worker
from distributed.utils import format_dashboard_link

from guild_dask.cluster.base import ClusterError, FixedWorkers, WorkerCapacity
from guild_dask.cluster.dask_settings import settings_of_a_cluster
from guild_dask.cluster.events import ClusterEvent, JobLost, job_ended
from guild_dask.cluster.http_ports import NoPortWithoutDashboard
from guild_dask.cluster.tasks import known_to_dask
from guild_dask.host.http_access import Access
from guild_dask.settings.settings import DashboardAddress
from guild_dask.worker.job import Job
from guild_dask.worker.options import StarterOptions
from guild_dask.worker.runner import RUNNER

# Least period of each of Dask's periodic callbacks in our process, in milliseconds.
_LEAST_PERIOD = 5000.0

# How many futures of ended runs are released together: for each release, Dask sends two messages.
_RELEASED_TOGETHER = 20

# Seconds that a closing worker waits for its heartbeat to end.
_LONGEST_HEARTBEAT = 2.0


class _Quiet(NoPortWithoutDashboard):
    """A Dask server that opens an HTTP port only for a dashboard, and wakes up rarely."""

    periodic_callbacks: dict[str, Any]

    def start_periodic_callbacks(self) -> None:
        # With Dask's own periods, they wake the process up about a hundred times a second.
        for callback in self.periodic_callbacks.values():
            callback.callback_time = max(callback.callback_time, _LEAST_PERIOD)
        super().start_periodic_callbacks()  # type: ignore[misc]


class QuietScheduler(_Quiet, Scheduler):  # type: ignore[misc]  # Dask is not typed
    """Dask's scheduler, with no port but the dashboard's."""


class _QuietWorker(_Quiet, Worker):  # type: ignore[misc]
    """Dask's worker, with no port at all."""

    _heartbeat: asyncio.Task[Any] | None = None

    async def heartbeat(self) -> None:
        self._heartbeat = asyncio.current_task()
        try:
            await super().heartbeat()
        finally:
            self._heartbeat = None
        # The scheduler's answer requests another one soon, which a worker in its own process does not need.
        self.periodic_callbacks["heartbeat"].callback_time = _LEAST_PERIOD

    async def close(self, *args: Any, **kwargs: Any) -> Any:
        # Dask logs a traceback for a heartbeat that finds its worker closed.
        self.periodic_callbacks["heartbeat"].stop()
        if self._heartbeat and self._heartbeat is not asyncio.current_task():
            await asyncio.wait([self._heartbeat], timeout=_LONGEST_HEARTBEAT)
        return await super().close(*args, **kwargs)


# The jobs of this process's clusters that have not been reported yet, by the keys of their Dask tasks. The worker is in
# this process, so a task gets only its key, and reports its end itself: sending the job to Dask and the result back
# would take as long as everything else that Dask does for it.
_jobs: dict[str, tuple[Job, Callable[[ClusterEvent], object]]] = {}


def _do(key: str) -> None:
    """Runs a job and reports its end, in a thread of the worker."""
    work, report = _jobs[key]
    try:
        ended = RUNNER.run(work)
    except Exception as e:  # noqa: BLE001  # as in Dask, any error is the job's and not the worker's
        _report_lost(key, f"its worker reports: {e}")
        return
    if _jobs.pop(key, None):
        report(job_ended(work.run_id, ended))


def _report_lost(key: str, problem: str) -> None:
    work, report = _jobs.pop(key, (None, None))
    if work and report:
        report(JobLost(work.run_id, problem))


class LocalCluster(FixedWorkers):
    """One Dask worker in this process, with a thread for each slot."""

    WORKER = "local"

    def __init__(  # noqa: PLR0913  # what the settings decide about the one worker
        self,
        slots: int,
        resources: Mapping[str, float],
        dashboard: DashboardAddress | None,
        report: Callable[[ClusterEvent], object],
        devices: tuple[str, ...] = (),
        *,
        about_devices: str = "",
        access: Access | None = None,
    ) -> None:
        here = socket.gethostname()
        self._capacity = WorkerCapacity(self.WORKER, slots, resources, here, devices, about_devices=about_devices)
        self._report = report
        self._futures: dict[str, Future] = {}
        self._count = itertools.count()  # no two submissions have the same key
        self._dashboard_host = dashboard.host if dashboard else None
        with contextlib.ExitStack() as opened:
            opened.enter_context(dask.config.set(settings_of_a_cluster()))
            try:
                self._cluster = opened.enter_context(_spec_cluster(self._capacity, dashboard, access))
                self.client = opened.enter_context(Client(self._cluster, set_as_default=False))
            except (OSError, RuntimeError, ValueError) as e:
                raise ClusterError(f"cannot open a local Dask cluster: {e}") from e
            self._opened = opened.pop_all()

    def dashboard_link(self) -> str | None:
        """Returns where the dashboard can be seen, or None if there is none."""
        if self._dashboard_host is None:
            return None
        port = self._cluster.scheduler.http_server.port
        host = socket.gethostname() if self._dashboard_host in ("0.0.0.0", "::") else self._dashboard_host
        return str(format_dashboard_link(host, port))

    def add_pages(self, routes: Sequence[Any], first: str) -> str | None:
        """Adds pages to the dashboard, with a link to the first of them on all of Dask's own."""
        if self._dashboard_host is None:
            return None
        from distributed.dashboard.scheduler import template_variables

        scheduler = self._cluster.scheduler
        scheduler.http_application.add_handlers(r".*$", list(routes))
        pages = template_variables(scheduler)["pages"]
        if first not in pages:
            pages.insert(0, first)
        # The user may have configured a link through a proxy in Dask.
        before, status, after = (self.dashboard_link() or "").rpartition("status")
        return f"{before}{first}{after}" if status else None

    def workers(self) -> list[WorkerCapacity]:
        """Returns the workers that are there now."""
        return [self._capacity]

    def options(self, worker: str) -> StarterOptions:
        """Returns the options of runs on a worker: if devices are assigned, a run without one sees none."""
        return StarterOptions(devices="" if self._capacity.devices else None)

    def submit(self, work: Job, worker: str, requests: Mapping[str, float]) -> None:
        """Runs a job on a worker that has a free slot for it. An event reports its end."""
        key = f"guild-run-{work.run_id}-{work.claim.attempt}-{next(self._count)}"
        _jobs[key] = work, self._report
        try:
            future = self.client.submit(
                _do,
                key,
                key=key,
                workers=[worker],
                resources=known_to_dask(requests, self._capacity.resources),
                pure=False,
                retries=0,
            )
        except (OSError, RuntimeError, TypeError, ValueError) as e:
            _report_lost(key, f"the Dask cluster does not accept it: {e}")
            return
        self._futures[key] = future
        # After the submission: Dask delays messages that closely follow others by a few milliseconds.
        self._release_done(_RELEASED_TOGETHER)

    def _release_done(self, least: int = 1) -> None:
        """Releases futures whose tasks are done, if there are enough, and reports tasks that Dask could not run."""
        done = {key: future for key, future in self._futures.items() if future.done()}
        for key, future in done.items():
            if future.status != "finished":
                problem = future.exception() if future.status == "error" else f"its Dask task is {future.status}"
                _report_lost(key, f"its worker reports: {problem}")
        if len(done) >= least:
            for key, future in done.items():
                del self._futures[key]
                future.release()

    def prepare(self, environ: Mapping[str, str]) -> None:
        """Prepares the worker to start runs with this environment."""
        RUNNER.prepare(environ)

    def tidy(self) -> None:
        """Reaps dead processes that runs left behind, and releases what Dask keeps of ended runs."""
        RUNNER.reap()
        self._release_done()
        key_split.cache_clear()  # Dask caches 100,000 keys, and ours are never reused

    def stop(self, run_id: str) -> None:
        """Requests the end of a running job."""
        RUNNER.stop(run_id)

    def kill(self, run_id: str) -> None:
        """Ends the processes of a running job at once."""
        RUNNER.kill(run_id)

    def destroy(self, run_id: str) -> None:
        """Ends a job that kill() has not ended."""
        RUNNER.destroy(run_id)

    def close(self) -> None:
        """Closes the cluster. Jobs should have ended before."""
        RUNNER.close()
        self._opened.close()


def _without_spans(extensions: Mapping[str, Any]) -> dict[str, Any]:
    """Returns Dask's extensions without work stealing, and without the one whose records grow with every task."""
    return {name: extension for name, extension in extensions.items() if name not in ("spans", "stealing")}


def _spec_cluster(capacity: WorkerCapacity, dashboard: DashboardAddress | None, access: Access | None) -> SpecCluster:
    address = f"{dashboard.host}:{dashboard.port}" if dashboard else None
    scheduler = {
        "cls": QuietScheduler,
        "options": {
            "protocol": "inproc://",
            "dashboard": dashboard is not None,
            "dashboard_address": address,
            "access": access,
            "extensions": _without_spans(distributed.scheduler.DEFAULT_EXTENSIONS),
        },
    }
    worker = {
        "cls": _QuietWorker,
        "options": {
            "protocol": "inproc://",
            "nthreads": capacity.slots,
            "resources": {name: float(amount) for name, amount in capacity.resources.items()},
            "memory_limit": 0,
            "dashboard": False,
            "dashboard_address": None,
            "extensions": _without_spans(distributed.worker.DEFAULT_EXTENSIONS),
        },
    }
    with warnings.catch_warnings():
        # Dask warns when the port is in use; opening.py has found a free one and logged that.
        warnings.simplefilter("ignore")
        workers = {capacity.name: worker}
        return SpecCluster(scheduler=scheduler, workers=workers, silence_logs=False, scheduler_sync_interval=60)
