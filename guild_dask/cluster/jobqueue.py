"""Workers that are jobs of a job queue, through dask-jobqueue and its own configuration.

A new job queue has its name in `settings/cluster_spec.py`, its class here, what it says of ended jobs in
`queue_inquiries.py`, and its command in `cli/doctor/cluster.py`.
"""

import contextlib
import itertools
import os
import pathlib
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dask.config

from guild_dask.cluster.base import ClusterError, Common, WorkerCapacity
from guild_dask.cluster.dask_settings import settings_of_a_cluster
from guild_dask.cluster.local import QuietScheduler
from guild_dask.cluster.pool import WorkerPool
from guild_dask.cluster.private_worker import AS_PRIVATE
from guild_dask.cluster.queue_inquiries import jobs_over
from guild_dask.cluster.security import remove_certificates, security_for
from guild_dask.cluster.worker_jobs import PoolTerms
from guild_dask.host import files
from guild_dask.plan.units import seconds_for_walltime
from guild_dask.settings.cluster_spec import WorkerCount
from guild_dask.settings.settings import DashboardAddress

CLASSES = {
    "slurm": "SLURMCluster",
    "pbs": "PBSCluster",
    "sge": "SGECluster",
    "lsf": "LSFCluster",
    "oar": "OARCluster",
    "moab": "MoabCluster",
    "htcondor": "HTCondorCluster",
}

# Bytes at the end of a job's log in which its last line is looked for.
_LOG_END = 20_000


@dataclass(frozen=True)
class JobQueue:
    """A job queue and what is configured for it."""

    name: str
    resources: Mapping[str, float]
    run_dir: str  # of the scheduler, on the file system that all hosts share
    environ: Mapping[str, str]
    config_name: str = ""  # a section of the configuration other than that of the queue
    workers: str = "guild"  # prefix of the names of workers

    @property
    def section(self) -> str:
        """Returns the name of the section in dask-jobqueue's configuration."""
        return self.config_name or self.name

    @property
    def configured(self) -> Mapping[str, Any]:
        """Returns the section of dask-jobqueue's configuration."""
        own = dask.config.get(f"jobqueue.{self.section}", None) or {}
        return {**dask.config.get(f"jobqueue.{self.name}", {}), **own}

    def cluster_class(self) -> Any:
        """Returns dask-jobqueue's class; raises ClusterError if it is not installed."""
        try:
            import dask_jobqueue
        except ImportError as e:
            raise ClusterError(
                f"cluster={self.name} needs dask-jobqueue: pip install dask-jobqueue cryptography in this environment"
            ) from e
        return getattr(dask_jobqueue, CLASSES[self.name])

    def job_options(self) -> dict[str, Any]:
        """Returns the options that are added to the user's configuration of a job."""
        configured = self.configured
        options: dict[str, Any] = {}
        if self.section != self.name:
            # The section of a pool needs only the values that differ from the section of the queue.
            dask.config.set({f"jobqueue.{self.section}": dict(configured)})
            options["config_name"] = self.section
        if (configured.get("processes") or 1) == 1:
            # A nanny would restart a dead worker and change the environment; the job is to end with its worker.
            options.update(nanny=False, processes=1)
        python = configured.get("python") or shlex.quote(sys.executable)
        # The worker replaces the job's shell, so that signals of the job queue reach it.
        options["python"] = f"exec {python} {shlex.join(AS_PRIVATE)}"
        if self.resources:
            amounts = ",".join(f"{name}={amount!r}" for name, amount in _plain(self.resources).items())
            extra = list(configured.get("worker-extra-args") or configured.get("extra") or [])
            options["worker_extra_args"] = [*extra, "--resources", shlex.quote(amounts)]
        logs = configured.get("log-directory") or os.path.join(self.run_dir, "jobs")
        options["log_directory"] = logs
        if self.name == "oar":
            options["job_extra_directives"] = _oar_directives(configured.get("job-extra-directives") or (), logs)
        return options

    def walltime_in_files(self) -> str | None:
        """Returns the walltime that the user configured, not the one that dask-jobqueue has by default."""
        collected = dask.config.collect(paths=dask.config.paths, env=self.environ)
        sections = collected.get("jobqueue") or {}
        found = [(sections.get(name) or {}).get("walltime") for name in (self.section, self.name)]
        return next((str(walltime) for walltime in found if walltime), None)

    def walltime(self) -> float | None:
        """Returns the seconds that a job may take, or None if that cannot be read."""
        return seconds_for_walltime(self.name, str(self.configured.get("walltime") or ""))


def _oar_directives(configured: Sequence[str], logs: str) -> list[str]:
    """Returns the directives of an OAR job, with its logs in their folder, which dask-jobqueue does not define."""
    files = {"-O": "out", "-E": "err"}
    given = [word for directive in configured for word in directive.split()[:1]]
    own = [
        f"{option} {shlex.quote(os.path.join(logs, f'dask-worker-%jobid%.{suffix}'))}"
        for option, suffix in files.items()
        if option not in given
    ]
    return [*configured, *own]


def _plain(amounts: Mapping[str, float]) -> dict[str, float]:
    return {name: float(amount) for name, amount in amounts.items()}


def job_script(queue: JobQueue) -> str:
    """Returns the script of a job as it would be submitted; raises ClusterError if it cannot be made."""
    job_class = queue.cluster_class().job_cls
    with _translated(queue):
        job = job_class("tcp://SCHEDULER:PORT", name="guild-1", **queue.job_options())
        return str(job.job_script())


def open_job_queue(
    queue: JobQueue,
    count: WorkerCount,
    dashboard: DashboardAddress | None,
    common: Common,
    clock: Callable[[], float] = time.monotonic,
) -> WorkerPool:
    """Opens a Dask scheduler in this process for workers that are jobs; raises ClusterError if it cannot be done."""
    cluster_class = queue.cluster_class()
    command = shlex.split(cluster_class.job_cls.submit_command)[0]
    if not shutil.which(command):
        raise ClusterError(f"cluster={queue.name} needs the command {command}, which was not found; try a login node")
    configured = queue.configured
    options = dict(configured.get("scheduler-options") or {})
    # Our flags decide, since they are checked: without a token, nothing is open to other hosts.
    options["dashboard_address"] = f"{dashboard.host}:{dashboard.port}" if dashboard else None
    options["dashboard"] = dashboard is not None
    options["access"] = common.access
    secure, folder = _security(queue, configured, options)
    dask.config.set(settings_of_a_cluster())  # permanently: Dask reads some of them only when it needs them
    with contextlib.ExitStack() as closing:
        with _translated(queue):
            cluster = cluster_class(
                scheduler_options=options,
                scheduler_cls=QuietScheduler,
                silence_logs=False,
                **secure,
                **queue.job_options(),
            )
            closing.callback(remove_certificates, cluster, folder or "")
            closing.callback(cluster.close, timeout=5)
            job = cluster._dummy_job
            worker = WorkerCapacity(
                name="to come",
                slots=int(job.worker_process_threads),
                resources=resources_in(str(job.job_script())),
                host="",
                lifetime=queue.walltime(),
            )
        closing.pop_all()
    failures = _failures_of(queue, job.log_directory)
    terms = PoolTerms(worker, int(job.worker_processes), count, failures, prefix=queue.workers, folder=folder)
    return WorkerPool(cluster, terms, common, clock)


def _security(
    queue: JobQueue, configured: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """Returns options that encrypt connections, none if the user has chosen a protocol, and the certificates' folder.

    Loopback is no exception: every user of the host can connect to a port on it.
    """
    protocol = str(options.get("protocol") or "")
    if protocol and not protocol.startswith("tls"):
        return {"protocol": protocol}, None
    security, folder = security_for(queue.run_dir)
    shared = configured.get("shared-temp-directory") or folder
    return {"security": security, "protocol": "tls://", "shared_temp_directory": shared}, folder


def resources_in(script: str) -> dict[str, float]:
    """Returns the resources that a worker of that script declares; raises ValueError if they cannot be read."""
    for line in script.splitlines():
        if "--resources" not in line or line.lstrip().startswith("#"):
            continue
        try:
            words = shlex.split(line)
        except ValueError:
            continue  # an unclosed quote: the command continues on the next line, and that of a worker never does
        for word, following in itertools.pairwise(words):
            if word == "--resources":
                return _declared(following)
    return {}


def _declared(text: str) -> dict[str, float]:
    pairs = [pair.partition("=") for pair in text.replace(",", " ").split()]
    try:
        return {name: float(value) for name, _, value in pairs}
    except ValueError:
        raise ValueError(f"--resources {text!r} cannot be read; use NAME=NUMBER, such as GPU=2") from None


def _failures_of(queue: JobQueue, log_directory: str | None) -> Callable[[Sequence[str]], Mapping[str, str]]:
    """Returns a function that returns why jobs have failed, by their ids; jobs that are not over are left out."""

    def failures(job_ids: Sequence[str]) -> Mapping[str, str]:
        return {
            job_id: f"job {job_id} is held: {held}"
            if held
            else f"job {job_id} ended before its worker joined{end_of_log(log_directory, job_id)}"
            for job_id, held in sorted(jobs_over(queue.name, job_ids).items())
        }

    return failures


def end_of_log(log_directory: str | None, job_id: str) -> str:
    """Returns the last line of a job's log and where it is, to follow a text about the job."""
    # As a whole number: the logs of job 12 are not those of job 1 or 2.
    of_job = re.compile(rf"(?<!\d){re.escape(job_id)}(?!\d)")
    paths = sorted(pathlib.Path(log_directory).iterdir()) if log_directory and os.path.isdir(log_directory) else []
    for path in [path for path in paths if of_job.search(path.name)]:
        with contextlib.suppress(OSError):
            lines = [line for line in files.tail(path, _LOG_END).decode(errors="replace").splitlines() if line.strip()]
            if lines:
                return f": {lines[-1].strip()} ({path} has more)"
    return f"; see {log_directory}" if log_directory else ""


@contextlib.contextmanager
def _translated(queue: JobQueue) -> Any:
    """Translates errors of dask-jobqueue in the configuration to ClusterError."""
    try:
        yield
    except (ValueError, TypeError, OSError, RuntimeError, KeyError) as e:
        problem = (str(e).splitlines() or [type(e).__name__])[0]
        if "cores and memory" in problem:
            problem = f"define what a job has, such as jobqueue: {{{queue.section}: {{cores: 4, memory: 16GB}}}}"
        raise ClusterError(
            f"cluster={queue.name} is not configured: {problem} "
            f"(dask-jobqueue reads jobqueue.{queue.section} in ~/.config/dask/jobqueue.yaml; see docs/clusters.md)"
        ) from e
