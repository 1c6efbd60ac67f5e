"""What a search minimizes or maximizes: a batch's objective as values, and which results are better. Pure."""

import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

# Words before a scalar's name that choose one of its values, as in Guild's columns.
_QUALIFIERS = ("first", "last", "min", "max")
_OTHER_QUALIFIERS = ("avg", "total", "count")

_PARTS = re.compile(r"[\s,]+")


class BadObjective(ValueError):
    """An objective that cannot be used; the text says why, and what is accepted."""


class HasValues(Protocol):
    """The values of a scalar, as home.run_scalars has them."""

    first: float
    last: float
    low: float
    high: float


@dataclass(frozen=True)
class Objective:
    """One scalar that is minimized or maximized."""

    scalar: str
    is_maximized: bool = False
    qualifier: str = "last"

    @property
    def tag(self) -> str:
        """Returns the scalar's name without its folder."""
        return self.scalar.rpartition("#")[2]

    def __str__(self) -> str:
        return self.scalar if self.qualifier == "last" else f"{self.qualifier} {self.scalar}"

    @property
    def direction(self) -> str:
        """Returns `minimize` or `maximize`."""
        return "maximize" if self.is_maximized else "minimize"

    def value_of(self, scalar: HasValues) -> float:
        """Returns the value of a run with such a scalar."""
        return {"first": scalar.first, "last": scalar.last, "min": scalar.low, "max": scalar.high}[self.qualifier]

    def cost_of(self, value: float) -> float:
        """Returns a value as a cost: the lower, the better. What is not a number is the worst."""
        if math.isnan(value):
            return math.inf
        return -value if self.is_maximized else value

    def costs_by_step(self, values: Mapping[int, float]) -> dict[int, float]:
        """Returns a curve as costs in the order of steps; each is that of a run that would end there."""
        found: dict[int, float] = {}
        combine = _COMBINED[self.qualifier]
        value = math.nan
        for step in sorted(values):
            value = values[step] if math.isnan(value) else combine(value, values[step])
            found[step] = self.cost_of(value)
        return found


_COMBINED: Mapping[str, Callable[[float, float], float]] = {
    "first": lambda before, _: before,
    "last": lambda _, now: now,
    "min": min,
    "max": max,
}


def objectives_for_text(text: str, is_minus_for_all: bool = True) -> tuple[Objective, ...]:
    """Returns the objectives in a text such as `loss`, `-accuracy` or `loss max accuracy`; raises BadObjective.

    A minus maximizes. Guild writes `--maximize 'a b'` as `-a b`. So with `is_minus_for_all`, a minus before the first
    name is for all.
    """
    parts = [part for part in _PARTS.split(text.strip()) if part]
    is_all = is_minus_for_all and bool(parts) and parts[0].startswith("-")
    found: list[Objective] = []
    qualifier, is_maximized = "", False
    for number, part in enumerate(parts):
        is_maximized = is_maximized or part.startswith("-") or is_all
        word = part.removeprefix("-")
        is_last = number == len(parts) - 1
        if word in _OTHER_QUALIFIERS and not qualifier and not is_last:
            raise BadObjective(f"cannot use {word!r} in objective {text!r}: use {', '.join(_QUALIFIERS)}")
        if word in _QUALIFIERS and not qualifier and not is_last:
            qualifier = word
            continue
        if not word:
            raise BadObjective(f"objective {text!r} has a minus without a name")
        found.append(Objective(word, is_maximized, qualifier or "last"))
        qualifier, is_maximized = "", False
    if not found:
        raise BadObjective("there is no objective: name a scalar, as in --minimize loss")
    names = [str(each) for each in found]
    if len(set(names)) < len(names):
        raise BadObjective(f"objective {text!r} has a scalar twice")
    return tuple(found)


def objectives_for_options(minimized: str | None, maximized: str | None) -> tuple[Objective, ...]:
    """Returns the objectives that `--minimize` or `--maximize` names, of which one is given; raises BadObjective."""
    # With --minimize, each name has a sign of its own.
    return objectives_for_text(f"-{maximized}") if maximized else objectives_for_text(str(minimized), False)


def source_for(objectives: Sequence[Objective]) -> str:
    """Returns objectives as a text in which each name has a sign of its own: `loss -accuracy`."""
    return " ".join(f"-{_source(each)}" if each.is_maximized else _source(each) for each in objectives)


def _source(objective: Objective) -> str:
    is_plain = objective.qualifier == "last" and objective.scalar not in _QUALIFIERS + _OTHER_QUALIFIERS
    return objective.scalar if is_plain else f"{objective.qualifier} {objective.scalar}"


def option_for(objectives: Sequence[Objective]) -> str:
    """Returns the option of `guild run` that names the objectives: `--maximize accuracy`."""
    if all(each.is_maximized for each in objectives):
        return f"--maximize {shlex.quote(' '.join(map(_source, objectives)))}"
    return f"--minimize {shlex.quote(source_for(objectives))}"


def text_for(objectives: Iterable[Objective]) -> str:
    """Returns objectives as text for a log: `minimize loss, maximize accuracy`."""
    return ", ".join(f"{each.direction} {each}" for each in objectives)


def costs(objectives: Sequence[Objective], values: Sequence[float]) -> tuple[float, ...]:
    """Returns the values of several objectives as costs."""
    return tuple(objective.cost_of(value) for objective, value in zip(objectives, values, strict=True))


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Returns whether costs are nowhere worse than others, and somewhere better."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and any(a < b for a, b in zip(one, other, strict=True))


def best_of(found: Mapping[str, Sequence[float]]) -> list[str]:
    """Returns whose costs no others dominate: for one objective the first of the best, for several the Pareto set."""
    names = sorted(found, key=lambda name: tuple(found[name]))
    if names and len(found[names[0]]) == 1:
        return names[:1]
    # What dominates comes first in this order, and of these, those that nothing dominates are enough.
    kept: list[str] = []
    for name in names:
        if not any(dominates(found[other], found[name]) for other in kept):
            kept.append(name)
    return kept
