"""Calls the function of an operation in joblib's pool of reused processes (loky).

joblib_trials.py PROJECT WORKERS COUNT OPERATION

joblib has no types and is not a requirement of the project, so it is imported by name.
"""

import importlib
import sys


def main() -> None:
    """Calls the function so many times."""
    project, workers, count, operation = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    sys.path.insert(0, project)
    joblib = importlib.import_module("joblib")
    objective = importlib.import_module(operation).objective
    scores = joblib.Parallel(n_jobs=workers)(joblib.delayed(objective)(seed) for seed in range(count))
    assert len(scores) == count


if __name__ == "__main__":
    main()
