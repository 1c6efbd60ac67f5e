"""Searches with Optuna and Dask through DaskStorage, and starts each trial as a bare Python process.

optuna_dask.py SCRIPT SLOTS COUNT SEED SECONDS NAME=LOW:HIGH...

Prints a line for each trial that has ended: the seconds since the beginning, and its value. Optuna and Dask are
imported by name, since they are in the environment that is measured.
"""

import importlib
import sys
import time
from typing import Any

from benchmarks.scripts import bare_trial


def main() -> None:
    """Runs all trials, each as a task of Dask, as the documentation of optuna-integration shows it."""
    given = bare_trial.given(sys.argv)
    begun = time.monotonic()
    optuna, distributed = importlib.import_module("optuna"), importlib.import_module("distributed")
    storage_class = importlib.import_module("optuna_integration.dask").DaskStorage
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial: Any) -> float:
        value = given.value_at({name: trial.suggest_float(name, *space) for name, space in given.spaces.items()})
        sys.stdout.write(f"{time.monotonic() - begun:.3f} {value!r}\n")
        return value

    # In this process, with one thread for each slot: the quickest way for trials that are processes anyway.
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=given.slots, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        sampler = optuna.samplers.TPESampler(seed=given.seed)
        study = optuna.create_study(storage=storage_class(client=client), sampler=sampler)
        tasks = [client.submit(study.optimize, objective, n_trials=1, pure=False) for _ in range(given.count)]
        distributed.wait(tasks)
        for task in tasks:
            task.result()


if __name__ == "__main__":
    main()
