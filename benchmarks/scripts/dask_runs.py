"""Submits all runs at once to a Dask cluster with resources, each as the run's own process.

dask_runs.py SLOTS RESOURCES < LINES

A line has the request, the directory and the command of a run, separated by tabs. The cluster is the one of guildai's
built-in scheduler: one worker with a thread for each slot.
"""

import subprocess
import sys

from distributed import Client, LocalCluster

START = '. "$1/.guild/ENV" && cd "$1" && shift && exec "$@"'


def main() -> None:
    """Submits all runs, and waits until they have ended."""
    slots, resources = int(sys.argv[1]), amounts(sys.argv[2])
    settings = {"n_workers": 1, "threads_per_worker": slots, "processes": False, "dashboard_address": None}
    with LocalCluster(**settings, resources=resources) as cluster, Client(cluster) as client:
        futures = []
        for line in sys.stdin:
            requests, folder, *command = line.rstrip("\n").split("\t")
            start = ["sh", "-c", START, "sh", folder, *command]
            futures.append(client.submit(subprocess.call, start, resources=amounts(requests), pure=False))
        client.gather(futures)


def amounts(text: str) -> dict[str, float]:
    """Returns the amounts of a text such as `gpu=1 mem=4`."""
    pairs = (part.partition("=") for part in text.split())
    return {name: float(amount) for name, _, amount in pairs}


if __name__ == "__main__":
    main()
