"""Dask's settings for long-running jobs, and the user's own configuration of Dask."""

from typing import Any

import dask.config
from dask.system import CPU_COUNT

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


def configuration() -> dict[str, Any]:
    """Returns the whole of Dask's configuration: files and environment."""
    return dict(dask.config.config)


def default_workers() -> int:
    """Returns how many CPUs this process may use; affinity and cgroups count."""
    return int(CPU_COUNT)
