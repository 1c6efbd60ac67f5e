"""All of Dask: opens a cluster, says what its workers have, runs jobs on them, and closes it.

No exception of Dask's leaves this package; what goes wrong with a job comes up as an event.
"""

from guild_dask.cluster.address import is_open_to_others, open_class, open_existing
from guild_dask.cluster.composite import CompositeCluster, RunsOfPools
from guild_dask.cluster.dask_settings import configuration, default_workers
from guild_dask.cluster.jobqueue import JobQueue, job_script, open_job_queue
from guild_dask.cluster.kinds import Cluster, ClusterError, Common, OpeningStopped, WorkerCapacity
from guild_dask.cluster.local import LocalCluster
from guild_dask.cluster.ports import free_port, link
from guild_dask.cluster.ssh import Hosts, open_hosts

__all__ = [
    "Cluster",
    "ClusterError",
    "Common",
    "CompositeCluster",
    "Hosts",
    "JobQueue",
    "LocalCluster",
    "OpeningStopped",
    "RunsOfPools",
    "WorkerCapacity",
    "configuration",
    "default_workers",
    "free_port",
    "is_open_to_others",
    "job_script",
    "link",
    "open_class",
    "open_existing",
    "open_hosts",
    "open_job_queue",
]
