"""Opens the cluster that the settings request, and logs what it has."""

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from guild_dask.cluster import dashboard, existing, gpus, machine
from guild_dask.cluster.base import Cluster, Common, WorkerCapacity
from guild_dask.cluster.composite import CompositeCluster, RunsOfPools
from guild_dask.cluster.dask_settings import default_workers
from guild_dask.cluster.events import ClusterEvent
from guild_dask.cluster.jobqueue import JobQueue, job_script, open_job_queue
from guild_dask.cluster.local import LocalCluster
from guild_dask.cluster.pool import WorkerPool
from guild_dask.cluster.remote import RemoteCluster
from guild_dask.cluster.ssh import Hosts, open_hosts
from guild_dask.plan.devices import GPU
from guild_dask.plan.resources import AUTO, format_amounts
from guild_dask.settings.cluster_spec import Kind, WorkerCount
from guild_dask.settings.settings import DashboardAddress, Settings

log = logging.getLogger("guild")

Report = Callable[[ClusterEvent], object]


def open_cluster(settings: Settings, common: Common, run_dir: str, environ: Mapping[str, str]) -> Cluster:
    """Returns the opened cluster; raises ClusterError, with a text for the user, if it cannot be opened."""
    choice = settings.cluster
    if choice.kind is Kind.LOCAL:
        return _open_local(settings, common, environ)
    for name in settings.resources.automatic:
        log.warning("Ignoring %s=auto in resources: it is for cluster=local; give an amount for each worker", name)
    if choice.kind is Kind.POOLS:
        return _open_pools(settings, common, run_dir, environ)
    opened: WorkerPool | RemoteCluster
    if choice.kind is Kind.JOB_QUEUE:
        opened = _open_job_queue(settings, common, run_dir, environ)
    elif choice.kind is Kind.SSH:
        opened = _open_hosts(settings, common, run_dir, environ)
    elif choice.kind is Kind.CLASS:
        log.info("Initializing cluster %s", choice.name)
        opened = existing.open_class(choice.name, settings.workers.most if settings.workers else None, common)
    else:
        log.info("Initializing cluster %s", choice.name)
        opened = existing.open_existing(choice, common)
    if existing.is_open_to_others(opened.address):
        log.warning(
            "Connections to %s are not encrypted: whoever can reach it can run code as you; see docs/security.md",
            opened.address,
        )
    log.info("Dashboard link: %s", opened.dashboard_link() or "<disabled>")
    workers = opened.workers()
    if not workers and choice.kind in (Kind.ADDRESS, Kind.SCHEDULER_FILE):
        log.warning("The Dask scheduler has no worker yet; runs wait until one joins it")
    resources = described(workers)
    if resources:
        log.info("Cluster resources: %s", resources)
    return opened


def _open_pools(settings: Settings, common: Common, run_dir: str, environ: Mapping[str, str]) -> Cluster:
    """Opens one cluster for each pool; the first has the dashboard."""
    opened: dict[str, Cluster] = {}
    runs = RunsOfPools(common.report)
    common = replace(common, report=runs.report)
    with contextlib.ExitStack() as closing:
        for name, pool in settings.pools:
            log.info("Opening pool %s", name)
            dashboard = None if opened else settings.dashboard_address
            wanted = replace(pool, dashboard_address=dashboard, lease=settings.lease)
            opened[name] = open_cluster(wanted, common, run_dir, environ)
            closing.callback(opened[name].close)
        closing.pop_all()
    return CompositeCluster(opened, runs)


def _open_job_queue(settings: Settings, common: Common, run_dir: str, environ: Mapping[str, str]) -> WorkerPool:
    count = settings.workers or WorkerCount(1, 1)
    log.info("Initializing cluster %s with %s", settings.cluster.name, _jobs(count))
    queue = job_queue(settings, run_dir, environ)
    queue.cluster_class()  # with it come the defaults of the configuration
    warning = _walltime_warning(queue)
    if warning:
        log.warning("%s", warning)
    _become_user(environ)
    return open_job_queue(queue, count, _dashboard(settings.dashboard_address), common)


def _open_hosts(settings: Settings, common: Common, run_dir: str, environ: Mapping[str, str]) -> WorkerPool:
    names = settings.cluster.hosts
    slots = settings.workers.most if settings.workers else None
    log.info("Initializing cluster on %s", ", ".join(names))
    _become_user(environ)
    hosts = Hosts(names, slots, settings.resources.amounts, run_dir)
    return open_hosts(hosts, _dashboard(settings.dashboard_address), common)


def _become_user(environ: Mapping[str, str]) -> None:
    """Replaces our environment by the user's own, which every process started from here on inherits."""
    os.environ.clear()
    os.environ.update(environ)


def job_queue(settings: Settings, run_dir: str, environ: Mapping[str, str]) -> JobQueue:
    """Returns the job queue that the settings request."""
    return JobQueue(
        name=settings.cluster.name,
        resources=settings.resources.amounts,
        run_dir=run_dir,
        environ=environ,
        config_name=settings.config_name,
        workers=settings.pool or "guild",
    )


def dry_run(settings: Settings, run_dir: str, environ: Mapping[str, str]) -> str:
    """Returns a text that shows what would be submitted to a job queue; raises ClusterError if nothing can be."""
    queue = job_queue(settings, run_dir, environ)
    count = settings.workers or WorkerCount(1, 1)
    script = job_script(queue)
    warning = _walltime_warning(queue)
    shown = f"Would submit {_jobs(count)} to {queue.name}, each with this script:\n\n{script}"
    return f"{shown}\n{warning}" if warning else shown


def _walltime_warning(queue: JobQueue) -> str | None:
    """Returns a warning if the user has configured no walltime and the queue has a default one, or None."""
    default = queue.configured.get("walltime")
    if not default or queue.walltime_in_files() is not None:
        return None
    return (
        f"No walltime is configured (jobqueue.{queue.name}.walltime in ~/.config/dask/jobqueue.yaml), "
        f"so each job ends after {default}, dask-jobqueue's default"
    )


def _jobs(count: WorkerCount) -> str:
    """Returns `3 jobs`, or `0 to 20 jobs`."""
    if count.is_elastic:
        return f"{count.least} to {count.most} jobs"
    return f"{count.least} job{'s' if count.least > 1 else ''}"


def _devices(settings: Settings, environ: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """Returns the devices that are to be assigned to runs, and how they were found, if they were looked for."""
    if settings.gpus is None:
        return (), ""
    if GPU in settings.resources.amounts:
        log.warning("Ignoring gpu=... in resources: gpus=%s defines them", ",".join(settings.gpus))
    if settings.gpus != (AUTO,):
        doubt = gpus.doubt(settings.gpus, environ)
        if doubt:
            log.warning("GPUs (gpus=%s): %s; runs get what the flag names", ",".join(settings.gpus), doubt)
        return settings.gpus, ""
    found = gpus.found(environ)
    if not found.names:
        log.warning("GPUs (gpus=auto): %s", found)
    return found.names, str(found)


def _open_local(settings: Settings, common: Common, environ: Mapping[str, str]) -> Cluster:
    slots = settings.workers.most if settings.workers else default_workers()
    given = f" with {slots} worker{'s' if slots > 1 else ''}" if settings.workers_given else ""
    log.info("Initializing cluster%s", given)
    warning = machine.warning_about_files(slots, machine.most_files())
    if warning:
        log.warning("%s", warning)
    dashboard = _dashboard(settings.dashboard_address)
    devices, about_devices = _devices(settings, environ)
    resources = {**settings.resources.amounts, **machine.amounts(settings.resources.automatic)}
    resources = {**resources, GPU: float(len(devices))} if devices else resources
    opened = LocalCluster(
        slots, resources, dashboard, common.report, devices, about_devices=about_devices, access=common.access
    )
    log.info("Dashboard link: %s", opened.dashboard_link() or "<disabled>")
    if devices:
        log.info("GPUs: %s", about_devices or ", ".join(devices))
    if resources:
        log.info("Cluster resources: %s", format_amounts(resources))
    return opened


def _dashboard(wanted: DashboardAddress | None) -> DashboardAddress | None:
    found = dashboard.free_port(wanted) if wanted else None
    if wanted and found and found.port != wanted.port:
        log.warning("Port %d is in use, so the dashboard takes the next free one", wanted.port)
    return found


def described(workers: Sequence[WorkerCapacity]) -> str:
    """Returns what several workers have: the sum of each resource, and the most that one of them has."""
    names = sorted({name for worker in workers for name in worker.resources})
    total = {name: sum(worker.resources.get(name, 0.0) for worker in workers) for name in names}
    if len(workers) < 2 or not names:
        return format_amounts(total)
    largest: Mapping[str, float] = {name: max(w.resources.get(name, 0.0) for w in workers) for name in names}
    return f"{format_amounts(total)} on {len(workers)} workers, at most {format_amounts(largest)} on one"
