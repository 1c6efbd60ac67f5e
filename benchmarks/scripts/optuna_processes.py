"""Searches with Optuna in this process, and starts each trial as a bare Python process: no records, no directories.

optuna_processes.py SCRIPT SLOTS COUNT SEED SECONDS NAME=LOW:HIGH...

Prints a line for each trial that has ended: the seconds since the beginning, and its value. Optuna is imported by name,
since it is in the environment that is measured.
"""

import importlib
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.scripts import bare_trial


def main() -> None:
    """Runs all trials."""
    given = bare_trial.given(sys.argv)
    begun = time.monotonic()
    optuna = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=given.seed))
    lock = threading.Lock()

    def one(_: int) -> None:
        with lock:
            trial = study.ask()
            point = {name: trial.suggest_float(name, *space) for name, space in given.spaces.items()}
        value = given.value_at(point)
        with lock:
            study.tell(trial, value)
            sys.stdout.write(f"{time.monotonic() - begun:.3f} {value!r}\n")

    with ThreadPoolExecutor(given.slots) as pool:
        list(pool.map(one, range(given.count)))


if __name__ == "__main__":
    main()
