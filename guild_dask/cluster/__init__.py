"""All of Dask: opens a cluster, says what its workers have, runs jobs on them, and closes it.

No exception of Dask's leaves this package; what goes wrong with a job comes up as an event.
"""

from guild_dask.cluster.dask_settings import configuration, default_workers
from guild_dask.cluster.kinds import Cluster, ClusterError, WorkerCapacity
from guild_dask.cluster.local import LocalCluster
from guild_dask.cluster.ports import free_port

__all__ = ["Cluster", "ClusterError", "LocalCluster", "WorkerCapacity", "configuration", "default_workers", "free_port"]
