"""The requirements of a run, read from its tags.

Everything here is total: a tag that cannot be read never raises. It is returned as a value that names it and what is
accepted, and the other tags of the run apply.
"""

import difflib
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from guild_dask.plan.devices import GPU
from guild_dask.plan.reasons import UnreadableTag
from guild_dask.plan.resources import (
    LEAST_MEMORY,
    MEMORY,
    Unreadable,
    request_for_spec,
    request_for_specs,
)
from guild_dask.plan.units import ACCEPTED_DURATIONS, duration_for_text, format_amount, unit_of

# The beginning of all tags for guild-dask.
PREFIX = "dask"

RESOURCES = "dask:"
PRIORITY = "dask-priority:"
TIME = "dask-time:"
RETRIES = "dask-retries:"
AFTER = "dask-after:"
AFTER_ANY = "dask-after-any:"

# What users should know about a staged batch.
BATCH = (
    "It is a batch, and runs its trials one after the other in one slot; to run them in parallel, use --stage-trials "
    "instead of --stage, or an optimizer of guild-dask, such as dask:tpe"
)

_HIGHEST = 1000
# A larger number of bytes is more likely meant as megabytes than as gigabytes.
_MOST_GIGABYTES = 1024

_WHOLE = re.compile(r"[+-]?\d{1,9}", re.ASCII)
_UNKNOWN = re.compile(rf"{PREFIX}(?:[-_][\w-]+)?\s*[:=]")
_SPACED = re.compile(rf"{PREFIX}\s+([\w.-]+)\s*=\s*[\d.]+\s*[a-z]{{0,3}}(?=\s|,|$)")
_BEGINNING = re.compile(r"[\w-]+")
_NAME = re.compile(r"([\w-]*)\s*[:=]?\s*(.*)", re.DOTALL)
# How similar a name must be to be taken for a misspelt one: `retry` for `retries`, and not `team` for `time`.
_RESEMBLING = 0.65
_AMOUNTS = tuple(f"{PREFIX}-{name}" for name in ("gpu", "cpu", "mem"))


@dataclass(frozen=True)
class BadTag:
    """A tag for guild-dask that cannot be read, and what is accepted."""

    tag: str
    problem: str
    example: str = ""  # the tag that was probably meant, or one of that kind; empty if it is unknown

    def __str__(self) -> str:
        return f"Ignoring tag {self.tag!r}: {self.problem}"


@dataclass(frozen=True)
class After:
    """A run, given by the beginning of its id, that must end before this one starts."""

    run: str
    however_it_ends: bool = False


@dataclass(frozen=True)
class Requirements:
    """The requirements of a run, and the tags or parts of tags that could not be read."""

    amounts: Mapping[str, float] = field(default_factory=dict)
    priority: int = 0
    time_limit: float | None = None  # seconds
    retries: int | None = None
    after: tuple[After, ...] = ()
    unreadable: tuple[Unreadable | BadTag, ...] = ()


def obstacle_in(requirements: Requirements, has_devices: bool) -> UnreadableTag | None:
    """Returns the first tag that cannot be read and without which the run must not start.

    A resources spec that is not of the form KEY=VAL is ignored instead, as the documented scheduler does; but not if it
    names memory, or GPUs where these are devices. A priority only changes the order, and is ignored, too.
    """
    found = (_obstacle(part, has_devices) for part in requirements.unreadable)
    return next((each for each in found if each), None)


def _obstacle(part: Unreadable | BadTag, has_devices: bool) -> UnreadableTag | None:
    if isinstance(part, BadTag):
        matters = part.example and not part.example.startswith(PRIORITY)
        return UnreadableTag(part.tag, part.problem, part.example) if matters else None
    name = part.name or part.part.strip().lower()
    if part.name or name == MEMORY or (name == GPU and has_devices):
        return UnreadableTag(f"{RESOURCES}{part.spec}", part.problem, f"{RESOURCES}{name}={_AMOUNT_OF.get(name, '1')}")
    return None


@functools.lru_cache(maxsize=4096)
def requirements_for_tags(tags: tuple[str, ...]) -> Requirements:
    """Returns the requirements in all tags of a run; if a value is given twice, the last one wins."""
    request = request_for_specs(tag[len(RESOURCES) :] for tag in tags if tag.startswith(RESOURCES))
    values: dict[str, Any] = {}
    after: list[After] = []
    bad: list[BadTag] = []
    for tag in tags:
        prefix, read = _reader(tag)
        if read is None:
            continue
        try:
            value = read(tag[len(prefix) :].strip())
        except _Misspelt as e:
            bad.append(BadTag(tag, str(e), e.meant))
            continue
        except ValueError as e:
            bad.append(BadTag(tag, str(e), _EXAMPLES[prefix]))
            continue
        if isinstance(value, tuple):
            after.extend(value)
        else:
            values[_FIELDS[prefix]] = value
    return Requirements(request.amounts, **values, after=tuple(after), unreadable=(*request.unreadable, *bad))


def few_bytes(tags: tuple[str, ...], requirements: Requirements, counted: float) -> str:
    """Returns a warning if tags with these requirements request so little memory that its unit is missing, or "".

    `counted` is the memory of a worker. If that is as small, the user counts memory in a unit of their own.
    """
    asked = requirements.amounts.get(MEMORY, 0.0)
    if counted < LEAST_MEMORY or not 0 < asked < LEAST_MEMORY:
        return ""
    if unit_of(asked)[1]:
        return ""
    text = format_amount(asked)
    specs = [tag for tag in tags if tag.startswith(RESOURCES)]
    tag = next(each for each in reversed(specs) if MEMORY in request_for_spec(each[len(RESOURCES) :]).amounts)
    unit = "GB" if asked <= _MOST_GIGABYTES else "MB"
    return f"Tag {tag!r} requests {text} bytes of memory: amounts of {MEMORY} are bytes; write {MEMORY}={text}{unit}"


def _reader(tag: str) -> tuple[str, Callable[[str], Any] | None]:
    for prefix, read in _READERS.items():
        if tag.startswith(prefix):
            return prefix, read
    return tag, functools.partial(_unknown, tag) if _looks_like_ours(tag) else None


def may_be_ours(tag: str) -> bool:
    """Returns whether a tag begins like the tags for guild-dask, as `daskboard` does, too."""
    return tag[: len(PREFIX)].lower() == PREFIX


def _looks_like_ours(tag: str) -> bool:
    """Returns whether a tag that is none of ours was probably meant as one.

    Examples: dask-prio:3, dask-time=2h, dask_after:RUN, dask-priority, Dask:gpu=1 and `dask gpu=1`.
    """
    if tag.startswith(RESOURCES):
        return False
    lower = tag.lower()
    return bool(_UNKNOWN.match(lower) or _SPACED.match(lower)) or f"{lower.replace('_', '-')}:" in _READERS


class _Misspelt(ValueError):
    """A tag that is none of ours, and the one that was probably meant, if that is known."""

    def __init__(self, text: str, meant: str = "") -> None:
        super().__init__(text)
        self.meant = meant


def _unknown(tag: str, _rest: str) -> Any:
    """Raises _Misspelt, which says how the tag is written, or which tags there are."""
    begin, spaced = _BEGINNING.match(tag), _SPACED.match(tag.lower())
    if spaced and f"{PREFIX}-{spaced[1]}:" in _READERS:
        tag = f"{PREFIX}-{tag[len(PREFIX) :].strip()}"
    elif spaced:
        meant = f"{RESOURCES}{tag[len(PREFIX) :].strip()}"
        raise _Misspelt(f"write it as '{meant}'", meant)
    elif begin:
        tag = begin[0].lower() + tag[begin.end() :]
    name, value = _NAME.match(tag.replace("_", "-", 1)).groups()  # type: ignore[union-attr]  # anything matches
    name = _name_meant_by(name)
    is_amount = name in _AMOUNTS
    meant = f"{name}:" if f"{name}:" in _READERS else RESOURCES if is_amount or name == PREFIX else ""
    if meant:
        value = f"{name.removeprefix(PREFIX)[1:]}={value}" if is_amount and value else value
        if value:
            raise _Misspelt(f"write it as '{meant}{value}'", f"{meant}{value}")
        raise _Misspelt(f"it has no value; write it as '{meant}...'", _EXAMPLES.get(meant, f"{RESOURCES}gpu=1"))
    raise _Misspelt(f"there is no such tag; use {', '.join((RESOURCES, *_READERS))}")


def _name_meant_by(name: str) -> str:
    """Returns the name of a tag that a misspelt one resembles; the name itself if it resembles none."""
    names = [each.removesuffix(":") for each in _READERS] + list(_AMOUNTS)
    if name in names:
        return name
    by_end = {each.removeprefix(f"{PREFIX}-"): each for each in names}
    found = difflib.get_close_matches(name.removeprefix(f"{PREFIX}-"), by_end, n=1, cutoff=_RESEMBLING)
    return by_end[found[0]] if found else name


def _priority(text: str) -> int:
    if not _WHOLE.fullmatch(text) or abs(int(text)) > _HIGHEST:
        raise ValueError(f"{text!r} is not a priority; use a whole number from {-_HIGHEST} to {_HIGHEST}")
    return int(text)


def _retries(text: str) -> int:
    if not _WHOLE.fullmatch(text) or int(text) < 0:
        raise ValueError(f"{text!r} is not a number of retries; use a whole number of at least 0")
    return int(text)


def _time(text: str) -> float:
    seconds = duration_for_text(text)
    if seconds is None:
        raise ValueError(f"{text!r} is not a time limit; use {ACCEPTED_DURATIONS}")
    return seconds


def _after(text: str, however_it_ends: bool = False) -> tuple[After, ...]:
    runs = [part.strip() for part in text.split(",")]
    if not all(runs) or any(len(run.split()) > 1 for run in runs):
        raise ValueError(f"{text!r} names no run; use the id of a run or the beginning of one, several with commas")
    return tuple(After(run, however_it_ends) for run in runs)


_READERS: Mapping[str, Callable[[str], Any]] = {
    PRIORITY: _priority,
    TIME: _time,
    RETRIES: _retries,
    AFTER: _after,
    AFTER_ANY: functools.partial(_after, however_it_ends=True),
}
# A tag of each kind that can be read, and amounts of resources.
_EXAMPLES = {
    PRIORITY: f"{PRIORITY}10",
    TIME: f"{TIME}90m",
    RETRIES: f"{RETRIES}3",
    AFTER: f"{AFTER}RUN",
    AFTER_ANY: f"{AFTER_ANY}RUN",
}
_AMOUNT_OF = {MEMORY: "8GB"}
_FIELDS = {PRIORITY: "priority", TIME: "time_limit", RETRIES: "retries"}
