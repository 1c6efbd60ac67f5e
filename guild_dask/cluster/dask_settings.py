"""Dask's settings for long-running jobs, and the user's own configuration of Dask."""

from typing import Any

import dask.config
from dask.system import CPU_COUNT

from guild_dask.cluster.base import ClusterError
from guild_dask.host.private_folders import private_folder

# Settings that long-running processes need; docs/architecture.md gives the reason of each.
FOR_LONG_RUNS = {
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.allowed-failures": 1_000_000,
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.worker-ttl": None,
    "distributed.scheduler.default-task-durations": {"guild-run": "1 hour"},
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.profile.enabled": False,
    "distributed.worker.daemon": False,
    "distributed.nanny.pre-spawn-environ": {},
    "distributed.comm.timeouts.connect": "60s",
    "distributed.comm.timeouts.tcp": "60s",
    "distributed.comm.retry.count": 3,
    # A run may continue on a worker that Dask has lost. The pool decides whether its job is given back.
    "distributed.deploy.lost-worker-timeout": "3650 days",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.system-monitor.log-length": 360,
    "distributed.client.heartbeat": "60s",
    "distributed.client.scheduler-info-interval": "60s",
}


def settings_of_a_cluster() -> dict[str, Any]:
    """Returns the settings for a cluster that we open; raises ClusterError if it can have no folder for files.

    Dask puts the folder in which a server or worker keeps its files first on `sys.path`. By default that is below /tmp,
    where another user may have made it first.
    """
    try:
        folder = private_folder(dask.config.get("temporary-directory", None))
    except OSError as e:
        raise ClusterError(f"there is no folder for temporary files: {e}") from e
    return {**FOR_LONG_RUNS, "temporary-directory": folder}


def configuration() -> dict[str, Any]:
    """Returns the whole of Dask's configuration: files and environment."""
    return dict(dask.config.config)


def default_workers() -> int:
    """Returns how many CPUs this process may use; affinity and cgroups count."""
    return int(CPU_COUNT)
