"""Which running trials are not worth their time, by their curves and those of others. Pure.

A curve has a cost for each step that a run printed: the lower, the better. The rules look at curves as they are now,
and not at how they came to be, so that the answer is the same after a restart, and whatever was read first.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

Curve = Mapping[int, float]

# How many trials must have completed before the median of them decides.
_LEAST_COMPLETED = 5


@dataclass(frozen=True)
class Stop:
    """Why a trial is stopped: at this step its cost is worse than what a trial must have to go on."""

    step: int
    cost: float
    needed: float


@dataclass(frozen=True)
class Curves:
    """The curves of a search's trials, by how far they have come."""

    running: Mapping[str, Curve]
    completed: Mapping[str, Curve]
    stopped: Mapping[str, Curve]  # they ended early, by a rule

    @property
    def all(self) -> dict[str, Curve]:
        return {**self.stopped, **self.completed, **self.running}

    @property
    def last_step(self) -> float:
        """Returns the step at which trials end, as far as any has completed."""
        return max((max(curve) for curve in self.completed.values() if curve), default=math.inf)

    @property
    def first_step(self) -> int | None:
        """Returns the first step above 0 that any trial has printed; None if there is none."""
        return min((step for curve in self.all.values() for step in curve if step > 0), default=None)


def cost_at(curve: Curve, step: int) -> float | None:
    """Returns the cost that a run had at a step, or just before it; None if it has not come so far."""
    if not curve or max(curve) < step:
        return None
    before = [each for each in curve if each <= step]
    return curve[max(before)] if before else None


def asha(curves: Curves, reduction: int = 3, least: int | None = None) -> dict[str, Stop]:
    """Returns the running trials that successive halving stops.

    Rungs are at `least` steps, and each at `reduction` times as many as the one before. A trial is judged at the
    highest rung that it and enough others have reached: there it must be among the best part, one in `reduction`.
    """
    first = least or curves.first_step
    if first is None:
        return {}
    found = {}
    for name, curve in curves.running.items():
        for rung in _rungs(curve, first, reduction, curves.last_step):
            own = cost_at(curve, rung)
            reached = [cost for each in curves.all.values() if (cost := cost_at(each, rung)) is not None]
            if own is None or len(reached) < reduction:
                continue
            needed = sorted(reached)[len(reached) // reduction - 1]
            if own > needed:
                found[name] = Stop(rung, own, needed)
            break
    return found


def _rungs(curve: Curve, first: int, reduction: int, last_step: float) -> list[int]:
    """Returns the rungs that a trial has reached, below the step at which trials end, the highest first."""
    reached = max(curve, default=0)
    rungs = []
    step = first
    while step <= reached and step < last_step:
        rungs.append(step)
        step *= reduction
    return rungs[::-1]


def median(curves: Curves, least: int | None = None) -> dict[str, Stop]:
    """Returns the running trials whose best cost so far is worse than the median of completed trials at that step."""
    first = least or curves.first_step
    if first is None or len(curves.completed) < _LEAST_COMPLETED:
        return {}
    found = {}
    for name, curve in curves.running.items():
        step = max(curve, default=0)
        others = [best for each in curves.completed.values() if (best := _best_until(each, step)) is not None]
        if step < first or step >= curves.last_step or len(others) < _LEAST_COMPLETED:
            continue
        own, needed = _best_until(curve, step), statistics.median(others)
        if own is not None and own > needed:
            found[name] = Stop(step, own, needed)
    return found


def _best_until(curve: Curve, step: int) -> float | None:
    return min((cost for each, cost in curve.items() if each <= step), default=None)
