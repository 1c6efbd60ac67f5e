"""Searches with Optuna in this process, and starts each trial as a bare Python process: no records, no directories.

optuna_processes.py SCRIPT SLOTS COUNT SEED SECONDS NAME=LOW:HIGH...

Prints a line for each trial that has ended: the seconds since the beginning, and its value. Optuna is imported by name,
since it is in the environment that is measured.
"""

import importlib
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor


def main() -> None:
    """Runs all trials."""
    script, slots, count, seed, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    spaces = {name: tuple(map(float, text.split(":"))) for name, text in (word.split("=") for word in sys.argv[6:])}
    begun = time.monotonic()
    optuna = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    lock = threading.Lock()

    def one(_: int) -> None:
        with lock:
            trial = study.ask()
            point = {name: trial.suggest_float(name, *space) for name, space in spaces.items()}
        words = [f"--{name}={value!r}" for name, value in point.items()]
        command = [sys.executable, script, f"--seconds={seconds}", *words]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        value = float(output.rpartition("loss:")[2])
        with lock:
            study.tell(trial, value)
            sys.stdout.write(f"{time.monotonic() - begun:.3f} {value!r}\n")

    with ThreadPoolExecutor(slots) as pool:
        list(pool.map(one, range(count)))


if __name__ == "__main__":
    main()
