"""Starts runs with `guild run --start` through HyperQueue, a number of them at a time.

hyperqueue_runs.py WORKERS GUILD < DIRECTORIES

HyperQueue has no types and is not a requirement of the project, so it is imported by name.
"""

import importlib
import os
import sys
import tempfile


def main() -> None:
    """Submits one job with a task for each run, and waits until it has ended."""
    workers, guild = int(sys.argv[1]), sys.argv[2]
    hyperqueue = importlib.import_module("hyperqueue")
    clusters = importlib.import_module("hyperqueue.cluster")
    with tempfile.TemporaryDirectory() as folder:
        configuration = clusters.WorkerConfig(cores=workers)
        with clusters.LocalCluster(folder, configuration) as cluster:
            client = cluster.client()
            job = hyperqueue.Job(default_workdir=os.getcwd(), default_env=dict(os.environ))
            for line in sys.stdin:
                command = [guild, "run", "--start", line.strip(), "-y"]
                job.program(command, stdout=os.devnull, stderr=os.devnull)
            client.wait_for_jobs([client.submit(job)])


if __name__ == "__main__":
    main()
