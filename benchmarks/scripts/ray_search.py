"""Searches with Ray Tune and its Optuna searcher; each trial starts a bare Python process.

ray_search.py SCRIPT SLOTS COUNT SEED SECONDS NAME=LOW:HIGH...

Prints a line for each trial that has ended: the seconds since the beginning, and its value. Ray has no types and is
not a requirement of the project, so it is imported by name.
"""

import importlib
import os
import sys
import tempfile
import time

from benchmarks.scripts import bare_trial


def main() -> None:
    """Runs all trials."""
    given = bare_trial.given(sys.argv)
    begun = time.time()  # the trials are in other processes, which have other monotonic clocks
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    ray, tune = importlib.import_module("ray"), importlib.import_module("ray.tune")
    searcher = importlib.import_module("ray.tune.search.optuna").OptunaSearch
    ray.init(num_cpus=given.slots, include_dashboard=False, log_to_driver=False)

    def trainable(config: "dict[str, float]") -> "dict[str, float]":
        return {"loss": given.value_at(config), "at": time.time()}

    with tempfile.TemporaryDirectory() as folder:
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": 1}),
            param_space={name: tune.uniform(*space) for name, space in given.spaces.items()},
            tune_config=tune.TuneConfig(
                metric="loss",
                mode="min",
                search_alg=searcher(seed=given.seed),
                num_samples=given.count,
                max_concurrent_trials=given.slots,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        )
        results = list(tuner.fit())
    ray.shutdown()
    for result in results:
        sys.stdout.write(f"{result.metrics['at'] - begun:.3f} {result.metrics['loss']!r}\n")


if __name__ == "__main__":
    main()
