"""Text such as `gpu=1 mem=8GB` to amounts and back; comparing and subtracting amounts.

Everything here is total: text that cannot be read never raises, and is returned as a value that says why.
"""

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from guild_dask.plan.units import ACCEPTED_AMOUNTS, Amount, amount_for_text, format_amount

# A sum of fractions that a user typed (0.1 + 0.2) may have a rounding error. Amounts that differ by less than this are
# equal. The relative tolerance is small enough to distinguish single bytes of hundreds of gigabytes.
TOLERANCE = 1e-9
RELATIVE_TOLERANCE = 1e-12

# The resources with a meaning to guild-dask; all other names are the user's own.
MEMORY = "mem"
CPU = "cpu"

# Below this, `mem` is not in bytes, but in a unit of the user's own.
LEAST_MEMORY = 1e6

# A worker's resource may be defined as `auto` instead of an amount: as much as its machine has, if we can measure it.
AUTO = "auto"
_AUTOMATIC = (CPU, MEMORY)

_NEEDS_QUOTES = re.compile(r"[\s,\"'\\]")


@dataclass(frozen=True)
class Unreadable:
    """A part of a resources spec that cannot be read, and why."""

    spec: str
    part: str
    problem: str
    name: str = ""  # the resource that is requested, if the part has the form KEY=VAL

    def __str__(self) -> str:
        # The text up to the colon is documented, and must not change.
        if self.part == self.spec:
            return f"Ignoring invalid dask resources spec {self.spec!r}: {self.problem}"
        return f"Ignoring {self.part!r} in invalid dask resources spec {self.spec!r}: {self.problem}"


@dataclass(frozen=True)
class Request:
    """What a spec or a run's tags request, and the parts that could not be read."""

    amounts: Mapping[str, float]
    unreadable: tuple[Unreadable, ...] = ()
    automatic: tuple[str, ...] = ()  # resources that are as much as the worker's machine has


def request_for_specs(specs: Iterable[str]) -> Request:
    """Returns the amounts of all specs together; if a name is given twice, the last value wins."""
    amounts: dict[str, float] = {}
    unreadable: list[Unreadable] = []
    for spec in specs:
        request = request_for_spec(spec)
        amounts.update(request.amounts)
        unreadable.extend(request.unreadable)
    return Request(amounts, tuple(unreadable))


def request_for_spec(spec: str) -> Request:
    """Returns the amounts of one spec: pairs of NAME=VALUE, separated by white space or commas."""
    try:
        parts = _parts(spec)
    except ValueError as e:  # "No closing quotation", or "No escaped character" after a backslash at the end
        return Request({}, (Unreadable(spec, spec, f"{str(e).lower()}; parts must be in format KEY=VAL"),))
    if not parts:
        return Request({}, (Unreadable(spec, spec, "it is empty; parts must be in format KEY=VAL"),))
    amounts: dict[str, float] = {}
    unreadable: list[Unreadable] = []
    for before, part in zip(["", *parts], parts, strict=False):
        name, amount, problem = _read_part(part)
        if amount is None and _is_unit_of(before, part):
            key = before.partition("=")[0].strip()
            unreadable.append(Unreadable(spec, part, f"write the unit without a space: {before}{part}", key))
        elif amount is None:
            # With a single part, the spec as typed (quotes included) is the part.
            key = name.strip() if "=" in part else ""
            unreadable.append(Unreadable(spec, spec if len(parts) == 1 else part, problem, key))
        else:
            amounts[name] = amount
    return Request(amounts, tuple(unreadable))


def _is_unit_of(before: str, part: str) -> bool:
    """Returns whether a part is the unit of the amount before it, as in `mem=8 GB`."""
    return "=" in before and part.isalpha() and _read_part(before + part)[1] is not None


def definition_for_spec(spec: str) -> Request:
    """Returns the resources that a spec defines for a worker: amounts, and the names of those that are `auto`."""
    request = request_for_spec(spec)
    automatic: list[str] = []
    unreadable: list[Unreadable] = []
    for part in request.unreadable:
        name, _, text = part.part.partition("=")
        if text.strip().lower() == AUTO and name in _AUTOMATIC:
            automatic.append(name)
        elif text.strip().lower() == AUTO:
            accepted = f"{' and '.join(_AUTOMATIC)} can be {AUTO}; for devices there is the flag gpus={AUTO}"
            unreadable.append(Unreadable(part.spec, part.part, accepted))
        else:
            unreadable.append(part)
    amounts = {name: amount for name, amount in request.amounts.items() if name not in automatic}
    return Request(amounts, tuple(unreadable), tuple(automatic))


def _parts(spec: str) -> list[str]:
    """Returns the parts between white space or commas; quotes and backslashes work as in a shell."""
    reader = shlex.shlex(spec, posix=True, punctuation_chars=False)
    reader.whitespace += ","
    reader.whitespace_split = True
    reader.commenters = ""
    return list(reader)


def _read_part(part: str) -> tuple[str, Amount | None, str]:
    name, equals, text = part.partition("=")
    if not equals:
        return name, None, "parts must be in format KEY=VAL"
    if not name.strip():
        return name, None, f"there is no name before '='; parts must be in format KEY=VAL with {ACCEPTED_AMOUNTS}"
    amount = amount_for_text(text)
    if amount is None:
        return name, None, f"{text!r} is not an amount; use {ACCEPTED_AMOUNTS}"
    return name, amount, ""


def format_amounts(amounts: Mapping[str, float]) -> str:
    """Returns a text such as `bar=1 foo=2.5`, sorted by name, which request_for_spec() reads."""
    return " ".join(_quoted(f"{name}={format_amount(amounts[name])}") for name in sorted(amounts))


def _quoted(part: str) -> str:
    if not _NEEDS_QUOTES.search(part):
        return part
    quoted = shlex.quote(part)
    return quoted if quoted != part else f"'{part}'"  # a shell needs no quotes around a comma


def fits(requested: float, free: float) -> bool:
    """Returns whether that much is free; rounding errors of sums are ignored."""
    return requested <= free or math.isclose(requested, free, rel_tol=RELATIVE_TOLERANCE, abs_tol=TOLERANCE)


def remaining(free: Mapping[str, float], taken: Mapping[str, float]) -> dict[str, float]:
    """Returns what is left of each free amount; taken names that are not free are ignored."""
    return {name: amount - taken.get(name, 0.0) for name, amount in free.items()}
