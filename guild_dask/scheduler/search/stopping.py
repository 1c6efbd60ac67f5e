"""Which running trials are not worth their time, by their curves and those of others. Pure.

A curve has a cost for each step that a run printed: the lower, the better. The rules look at curves as they are now,
and not at how they came to be, so that the answer is the same after a restart, and whatever was read first.
"""

import bisect
import functools
import math
import statistics
from collections.abc import Mapping, Sequence
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
class _Sorted:
    """A curve in the order of its steps, which are some."""

    steps: Sequence[int]
    costs: Sequence[float]

    @property
    def last(self) -> int:
        return self.steps[-1]

    @property
    def first(self) -> int | None:
        """Returns the first step above 0."""
        place = bisect.bisect_right(self.steps, 0)
        return self.steps[place] if place < len(self.steps) else None

    def cost_at(self, step: int) -> float | None:
        """Returns the cost that a run had at a step, or just before it; None if it has not come so far."""
        place = bisect.bisect_right(self.steps, step)
        return self.costs[place - 1] if place and self.last >= step else None

    def best_until(self, step: int) -> float | None:
        """Returns the best cost up to a step; None if there is none."""
        return min(self.costs[: bisect.bisect_right(self.steps, step)], default=None)


def _sorted(curves: Mapping[str, Curve]) -> dict[str, _Sorted]:
    ordered = {name: sorted(curve) for name, curve in curves.items() if curve}
    return {name: _Sorted(steps, [curves[name][step] for step in steps]) for name, steps in ordered.items()}


class Curves:
    """The curves of a search's trials, by how far they have come."""

    def __init__(
        self, running: Mapping[str, Curve], completed: Mapping[str, Curve], stopped: Mapping[str, Curve]
    ) -> None:
        """Sorts the curves; those that were stopped have ended early, by a rule."""
        self.running, self.completed = _sorted(running), _sorted(completed)
        self.all = [*_sorted(stopped).values(), *self.completed.values(), *self.running.values()]
        # The step at which trials end, as far as any has completed.
        self.last_step = max((curve.last for curve in self.completed.values()), default=math.inf)
        # The first step above 0 that any trial has printed; None if there is none.
        self.first_step = min((first for curve in self.all if (first := curve.first) is not None), default=None)

    def costs_at(self, step: int) -> list[float]:
        """Returns the costs of all trials that have reached a step there, the best first."""
        return sorted(cost for each in self.all if (cost := each.cost_at(step)) is not None)


def asha(curves: Curves, reduction: int = 3, least: int | None = None) -> dict[str, Stop]:
    """Returns the running trials that successive halving stops.

    Rungs are at `least` steps, and each at `reduction` times as many as the one before. A trial is judged at the
    highest rung that it and enough others have reached: there it must be among the best part, one in `reduction`.
    """
    first = least or curves.first_step
    if first is None:
        return {}
    costs_at = functools.cache(curves.costs_at)
    found = {}
    for name, curve in curves.running.items():
        for rung in _rungs(curve, first, reduction, curves.last_step):
            own, reached = curve.cost_at(rung), costs_at(rung)
            if own is None or len(reached) < reduction:
                continue
            needed = reached[len(reached) // reduction - 1]
            if own > needed:
                found[name] = Stop(rung, own, needed)
            break
    return found


def _rungs(curve: _Sorted, first: int, reduction: int, last_step: float) -> list[int]:
    """Returns the rungs that a trial has reached, below the step at which trials end, the highest first."""
    rungs = []
    step = first
    while step <= curve.last and step < last_step:
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
        step = curve.last
        others = [best for each in curves.completed.values() if (best := each.best_until(step)) is not None]
        if step < first or step >= curves.last_step or len(others) < _LEAST_COMPLETED:
            continue
        own, needed = curve.best_until(step), statistics.median(others)
        if own is not None and own > needed:
            found[name] = Stop(step, own, needed)
    return found
