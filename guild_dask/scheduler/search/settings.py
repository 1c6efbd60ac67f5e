"""The flags of a search to one frozen value; those of its scheduler are read by the room `settings`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from guild_dask.plan.units import ACCEPTED_DURATIONS, duration_for_text
from guild_dask.settings.settings import BadSetting, checked

_NONE = ("no", "none", "false", "off", "")

RULES = ("never", "asha", "median")
PRIORS = ("batch", "operation", "none")


@dataclass(frozen=True)
class SearchSettings:
    """The user's settings of a search."""

    parallel: int | None = None  # None: one trial for each slot
    max_time: float | None = None
    target: float | None = None
    max_failures: int | None = None  # None: only the first trials count
    stop_early: str = "never"
    min_steps: int | None = None
    reduction_factor: int = 3
    prior: str = "batch"


def settings_for(flags: Mapping[str, str | None], objectives: int) -> SearchSettings:
    """Returns the settings from flags as typed, for so many objectives; raises BadSetting."""
    values: dict[str, Any] = {}
    for name, read in _READERS.items():
        given = flags.get(name)
        if given is not None:
            values[name.replace("-", "_")] = checked(read, name, given)
    settings = SearchSettings(**values)
    for name, is_given in (("stop-early", settings.stop_early != "never"), ("target", settings.target is not None)):
        if is_given and objectives > 1:
            raise BadSetting(f"{name}={flags[name]} is for one objective, and there are {objectives}")
    return settings


def _count(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise ValueError(f"use a whole number of at least {least}")
        return number

    return read


def _duration(text: str) -> float | None:
    if text.lower() in _NONE:
        return None
    seconds = duration_for_text(text)
    if seconds is None:
        raise ValueError(f"use {ACCEPTED_DURATIONS}; or no for none")
    return seconds


def _target(text: str) -> float | None:
    if text.lower() in _NONE:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ValueError("use a number, or none")
    return number


def _one_of(names: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        # Guild passes `no` for a flag that a user sets to no.
        name = "never" if "never" in names and text.lower() in _NONE else text.lower()
        if name not in names:
            raise ValueError(f"use {', '.join(names[:-1])} or {names[-1]}")
        return name

    return read


_READERS: Mapping[str, Callable[[str], Any]] = {
    "parallel": _count(1),
    "max-time": _duration,
    "target": _target,
    "max-failures": _count(1),
    "stop-early": _one_of(RULES),
    "min-steps": _count(1),
    "reduction-factor": _count(2),
    "prior": _one_of(PRIORS),
}
