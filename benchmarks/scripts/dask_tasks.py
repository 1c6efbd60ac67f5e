"""Prints the CPU seconds of one empty task in Dask: client, scheduler and worker in one process.

    python dask_tasks.py COUNT

Each task waits for the previous one. Dask's settings are those of guild-dask.
"""

import sys
import time

import dask.config
from distributed import Client, LocalCluster

from guild_dask.cluster.dask_settings import FOR_LONG_RUNS


def nothing(number: int) -> int:
    """Does nothing."""
    return number


def main() -> None:
    """Measures a number of tasks, after a few to warm up."""
    count = int(sys.argv[1])
    with (
        dask.config.set(FOR_LONG_RUNS),
        LocalCluster(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for number in range(20):
            client.submit(nothing, number, pure=False).result()
        before = time.process_time()
        for number in range(count):
            client.submit(nothing, number, pure=False).result()
        sys.stdout.write(f"{(time.process_time() - before) / count}\n")


if __name__ == "__main__":
    main()
