"""Calls the function of an operation in trials of Ray Tune, with reused workers.

ray_trials.py PROJECT WORKERS COUNT OPERATION

Ray has no types and is not a requirement of the project, so it is imported by name.
"""

import importlib
import os
import sys
import tempfile


def main() -> None:
    """Runs one trial for each seed."""
    project, workers, count, operation = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    sys.path.insert(0, project)
    os.environ["PYTHONPATH"] = project  # of the workers
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    ray, tune = importlib.import_module("ray"), importlib.import_module("ray.tune")
    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)

    def trainable(config: "dict[str, int]") -> "dict[str, float]":
        return {"score": importlib.import_module(operation).objective(config["seed"])}

    with tempfile.TemporaryDirectory() as folder:
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": 1}),
            param_space={"seed": tune.grid_search(list(range(count)))},
            tune_config=tune.TuneConfig(reuse_actors=True),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        )
        assert len(tuner.fit()) == count
    ray.shutdown()


if __name__ == "__main__":
    main()
