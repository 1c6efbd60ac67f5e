"""Which options of Optuna's TPE find good points with several trials in flight.

    python -m benchmarks.samplers

asks for 100 points of Branin and Hartmann6, eight of which are in flight at any time, and prints the median of the best
value over the seeds, for TPE with its parameters together (multivariate) or one by one, with the constant liar or
without, and for random points. No trial is run: the functions are evaluated here. It takes some minutes.
"""

import math
import statistics
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import optuna

from benchmarks.search import BRANIN, HARTMANN, PROBLEMS, Problem

TRIALS = 100
IN_FLIGHT = 8
SEEDS = 10

TEXTS = {"branin": BRANIN, "hartmann": HARTMANN}

Sampler = Callable[[int], Any]


def _tpe(multivariate: bool, constant_liar: bool) -> Sampler:
    return lambda seed: optuna.samplers.TPESampler(seed=seed, multivariate=multivariate, constant_liar=constant_liar)


SAMPLERS: dict[str, Sampler] = {
    "as dask:tpe has it": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "together, constant liar": _tpe(multivariate=True, constant_liar=True),
    "together, without": _tpe(multivariate=True, constant_liar=False),
    "one by one, constant liar": _tpe(multivariate=False, constant_liar=True),
    "one by one, without": _tpe(multivariate=False, constant_liar=False),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
}


def value_of(problem: Problem, point: dict[str, float]) -> float:
    """Returns the value of a function, as its operation prints it."""
    printed: list[float] = []
    exec(TEXTS[problem.operation], {"given": point, "math": math, "print": lambda _, value: printed.append(value)})
    return printed[0]


def best_of(problem: Problem, sampler: Any) -> float:
    """Returns the best value of one search, whose trials end in the order in which they began."""
    study = optuna.create_study(sampler=sampler)
    running: deque[Any] = deque()
    for _ in range(TRIALS):
        trial = study.ask()
        for name, (low, high) in problem.ranges.items():
            trial.suggest_float(name, low, high)
        running.append(trial)
        if len(running) == IN_FLIGHT:
            ended = running.popleft()
            study.tell(ended, value_of(problem, ended.params))
    for trial in running:
        study.tell(trial, value_of(problem, trial.params))
    return float(study.best_value)


def main() -> None:
    """Prints a row for each sampler."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sys.stdout.write(
        f"| {TRIALS} trials, {IN_FLIGHT} in flight | {' | '.join(each.operation for each in PROBLEMS)} |\n"
    )
    sys.stdout.write("| --- | ---: | ---: |\n")
    for name, sampler in SAMPLERS.items():
        found = [
            statistics.median(best_of(problem, sampler(seed)) for seed in range(1, SEEDS + 1)) for problem in PROBLEMS
        ]
        sys.stdout.write(f"| {name} | {' | '.join(f'{each:.3f}' for each in found)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
