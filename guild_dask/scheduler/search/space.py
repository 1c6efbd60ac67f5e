"""The space of a search: which flags vary, over which values. From Guild's flag values, and back. Pure.

[1:10]  [0.1:1.0]  [0.1:1.0:0.5]    a range of integers or numbers; the third number is tried first
uniform[0:1]  loguniform[1e-5:1]    numbers; in the second, each order of magnitude is as likely
logint[1:1024]                      integers, each order of magnitude as likely
quniform[0:1:0.05]                  multiples of a step, beginning at the lowest
[a, b, c]                           choices
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

_FUNCTION = re.compile(r"([a-zA-Z0-9_.-]*)\[(.*)\]", re.DOTALL)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)

Point = Mapping[str, Any]


class BadSpace(ValueError):
    """Flags that cannot be searched; the text is for the user."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; with a step, `low` and multiples of the step above it."""

    low: float
    high: float
    is_integer: bool = False
    is_log: bool = False
    step: float | None = None
    first: float | None = None  # the value of the first trial

    @property
    def size(self) -> float:
        """Returns the number of values."""
        if self.low == self.high:
            return 1
        if self.step:
            return self.steps_to(self.high) + 1
        return self.high - self.low + 1 if self.is_integer else math.inf

    def steps_to(self, value: float) -> int:
        """Returns the number of steps from the lowest value to the one nearest to a number, in a range with a step."""
        return int(((Decimal(str(value)) - Decimal(str(self.low))) / Decimal(str(self.step))).to_integral_value())

    def contains(self, value: Any) -> bool:
        """Returns whether a flag's value is one of the range."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not self.low <= value <= self.high:
            return False
        if self.is_integer and value != int(value):
            return False
        return not self.step or self.flag_value(value) == value

    def flag_value(self, number: float) -> float:
        """Returns the value of the range that is nearest to a number: an integer, or without a rounding error."""
        if self.step:
            return self.value_after(self.steps_to(number))
        return round(number) if self.is_integer else float(number)

    def value_after(self, steps: int) -> float:
        """Returns the value that is so many steps above the lowest one, without a rounding error."""
        exact = Decimal(str(self.low)) + steps * Decimal(str(self.step or 1))
        return int(exact) if self.is_integer else float(exact)

    def values(self) -> Iterator[float]:
        """Yields all values of a range with finitely many."""
        return (self.value_after(steps) for steps in range(int(self.size)))


@dataclass(frozen=True)
class Choices:
    """Any values; each is one of a list."""

    options: tuple[Any, ...]
    first: Any = None

    @property
    def size(self) -> float:
        """Returns the number of values."""
        return len(self.options)

    def index_of(self, value: Any) -> int | None:
        """Returns the place of a value in the list; None if it is not there. `1`, `true` and `"1"` differ."""
        return next((i for i, each in enumerate(self.options) if _key(each) == _key(value)), None)

    def contains(self, value: Any) -> bool:
        """Returns whether a flag's value is one of the list."""
        return self.index_of(value) is not None

    def values(self) -> Iterator[Any]:
        """Yields all values."""
        return iter(self.options)


Dimension = Range | Choices


@dataclass(frozen=True)
class Space:
    """The flags that vary, and the others with their one value."""

    dimensions: Mapping[str, Dimension]
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> float:
        """Returns the number of points."""
        return math.prod(each.size for each in self.dimensions.values())

    @property
    def first(self) -> dict[str, Any]:
        """Returns the values that the user wants to be tried first, of those flags that have one."""
        return {name: each.first for name, each in self.dimensions.items() if each.first is not None}

    def contains(self, flags: Point) -> bool:
        """Returns whether the flags of a run are a point of the space: the fixed ones are equal, too."""
        is_inside = all(name in flags and each.contains(flags[name]) for name, each in self.dimensions.items())
        return is_inside and all(_key(flags.get(name)) == _key(value) for name, value in self.fixed.items())

    def point(self, flags: Point) -> dict[str, Any]:
        """Returns the varying flags of a run that the space contains."""
        return {name: flags[name] for name in self.dimensions}

    def flags(self, point: Point) -> dict[str, Any]:
        """Returns all flags of the trial for a point."""
        return {**self.fixed, **point}


def key_of(point: Point) -> tuple[tuple[str, Any], ...]:
    """Returns a point as a hashable value: two points are the same if their keys are."""
    return tuple((name, _key(point[name])) for name in sorted(point))


def _key(value: Any) -> Any:
    """Returns a value as one that can be compared: 1 and 1.0 are the same number, but neither is true; nan is nan."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return (type(value).__name__, value)
    # Not as a float: large integers would be the same.
    return value if isinstance(value, int) or (isinstance(value, float) and not math.isnan(value)) else repr(value)


def space_for_flags(flags: Point) -> Space:
    """Returns the space that the flags of a batch describe; raises BadSpace."""
    dimensions: dict[str, Dimension] = {}
    fixed: dict[str, Any] = {}
    for name, value in flags.items():
        dimension = _dimension(name, value)
        if dimension is None:
            fixed[name] = value
        else:
            dimensions[name] = dimension
    if not dimensions:
        raise BadSpace("there is no flag to search: give one a range, such as lr=loguniform[1e-5:1e-1], or a list")
    return Space(dimensions, fixed)


def _dimension(name: str, value: Any) -> Dimension | None:
    if isinstance(value, list):
        return _choices(name, value)
    found = _FUNCTION.fullmatch(value.strip()) if isinstance(value, str) else None
    if not found:
        return None
    function, inside = found.groups()
    arguments = [part.strip() for part in inside.split(":")]
    if function not in _FUNCTIONS and len(arguments) < 2:
        return None  # a text with brackets
    return _range(name, value, function or "uniform", arguments)


def _choices(name: str, values: Sequence[Any]) -> Choices:
    options = tuple({_key(each): each for each in values}.values())
    if not options:
        raise BadSpace(f"flag {name} has an empty list: nothing can be chosen from it")
    for each in options:
        if not isinstance(each, (str, int, float, bool, type(None))):
            raise BadSpace(f"flag {name} has a list with {each}, a {type(each).__name__}: put it in quotes")
        if isinstance(each, str) and _FUNCTION.fullmatch(each) and ":" in each:
            raise BadSpace(f"flag {name} has a list with {each}: use a range, or a list of values")
    return Choices(options)


# The most values of a range with a step, or of integers.
_MOST_VALUES = 2**53

# For each function: whether it is of integers only, logarithmic, and with a step.
_FUNCTIONS = {
    "uniform": (False, False, False),
    "loguniform": (False, True, False),
    "log-uniform": (False, True, False),
    "logint": (True, True, False),
    "quniform": (False, False, True),
}


def _range(name: str, text: str, function: str, arguments: Sequence[str]) -> Range:
    if function not in _FUNCTIONS:
        raise BadSpace(f"flag {name} has an unknown function in {text}: use uniform, loguniform, logint or quniform")
    must_be_integer, is_log, has_step = _FUNCTIONS[function]
    most = 4 if has_step else 3
    if not most - 1 <= len(arguments) <= most:
        shape = "LOW:HIGH:STEP" if has_step else "LOW:HIGH"
        raise BadSpace(f"flag {name} has {len(arguments)} number(s) in {text}: use {function}[{shape}]")
    numbers = [_number(name, text, each) for each in arguments]
    low, high = numbers[:2]
    # A first value of 0.5 says that [0:1:0.5] is not of integers; with a step, it must be one of the steps.
    decisive = numbers[:3] if has_step else numbers
    is_integer = must_be_integer or (not is_log and all(isinstance(each, int) for each in decisive))
    if low > high:
        raise BadSpace(f"flag {name} has an inverted range in {text}: its end {high} is below its beginning {low}")
    if must_be_integer and not (isinstance(low, int) and isinstance(high, int)):
        raise BadSpace(f"flag {name} needs integers in {text}")
    if is_log and low <= 0:
        raise BadSpace(f"flag {name} has a logarithmic range that begins at {low} in {text}: use a number above 0")
    step = numbers[2] if has_step else None
    if step is not None and step <= 0:
        raise BadSpace(f"flag {name} has a step of {step} in {text}: use a number above 0")
    _check_size(f"flag {name} has", text, low, high, 1 if is_integer and step is None else step)
    found = Range(low, high, is_integer, is_log, step)
    if step:
        found = Range(low, found.flag_value(_lowered(low, high, step)), is_integer, is_log, step)
    first = numbers[most - 1] if len(numbers) == most else None
    if first is not None and not found.contains(first):
        raise BadSpace(f"flag {name} begins at {first} in {text}, which is not in its range")
    return Range(found.low, found.high, is_integer, is_log, step, first)


def _check_size(flag: str, text: str, low: float, high: float, step: float | None) -> None:
    """Raises BadSpace if floating-point numbers, with which samplers compute, cannot tell the values apart."""
    width = float(high) - float(low)
    if math.isinf(width):
        raise BadSpace(f"{flag} a range that is too wide in {text}")
    if step is not None and max(abs(low), abs(high), width) / float(step) > _MOST_VALUES:
        raise BadSpace(f"{flag} more than 2**53 values in {text}")


def _lowered(low: float, high: float, step: float) -> float:
    """Returns the highest value of a range with a step: its end may be between two of them."""
    begin, end, size = (Decimal(str(each)) for each in (low, high, step))
    return float(begin + (end - begin) // size * size)


def _number(name: str, text: str, part: str) -> int | float:
    try:
        number = int(part) if _INTEGER.fullmatch(part) else float(part)
    except ValueError:
        raise BadSpace(f"flag {name} has {part!r} in {text}, which is not a number") from None
    if not math.isfinite(float(part)):
        raise BadSpace(f"flag {name} has {part!r} in {text}: use finite numbers")
    return number
