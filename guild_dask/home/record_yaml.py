"""Guild's records, read as YAML within bounds.

Some hundred bytes of YAML can stand for billions of values, because an alias repeats all that its anchor names, and
deep nesting can crash the parser. So the parser's events are counted first: that needs little time and no recursion.
"""

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

# Guild's records have a few levels, and aliases add some hundred letters at most.
_DEEPEST = 50
_MOST = 200_000

# Events of the parser for the records of a run, about one for each value; each takes some two microseconds.
MOST_EVENTS = 100_000

# Blocks of YAML that are nested deeply: in one line, or by their indentation.
_MAY_BE_DEEP = re.compile(rb"(?:[-?:][ \t]+){20}| {%d}" % _DEEPEST)

# Characters of a whole number. Python refuses to print one of more than 4,300 digits.
_LONGEST_NUMBER = 1_000

# Whole numbers are smaller, so that each of them can be divided and compared as a float. Flags may have any of these.
_MOST_DIGITS = 300
_LARGEST = 10**_MOST_DIGITS

_CLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_CLoader):  # type: ignore[misc, valid-type]
    def construct_short_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > _LONGEST_NUMBER:
            raise ValueError("a number is too long")
        number = int(self.construct_yaml_int(node))
        if abs(number) >= _LARGEST:
            raise BadRecord(f"has a number of more than {_MOST_DIGITS} digits")
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_short_int)

# PyYAML passes on exceptions of Python for values such as 2023-13-45, 0b_, `!!bool maybe` or 0001-01-01 00:00:00+23:00.
_ERRORS = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError)


class BadRecord(ValueError):
    """A record is not YAML, or would become too large; the text says which, as the rest of a sentence."""


def load(text: str) -> Any:
    """Returns the value of a record; raises BadRecord."""
    measure(text)
    try:
        return yaml.load(text, _Loader)
    except BadRecord:
        raise
    except _ERRORS as e:
        raise BadRecord("is not YAML") from e


def measure(text: str | bytes, most_events: int = MOST_EVENTS) -> int:
    """Returns how many events the parser needed to measure text; 0 for text that needs none.

    Raises BadRecord for text that is nested too deeply, that aliases make too large, or that needs more events. Text
    that is not YAML is measured up to where that shows.
    """
    plain = text.encode(errors="replace") if isinstance(text, str) else text
    has_aliases = b"*" in plain and b"&" in plain
    if not (has_aliases or plain.count(b"[") + plain.count(b"{") > _DEEPEST or _MAY_BE_DEEP.search(plain)):
        return 0
    count = itertools.count()
    with contextlib.suppress(yaml.YAMLError, UnicodeError):
        _add_up(_limited(yaml.parse(text, Loader=_CLoader), count, most_events), _MOST + 2 * len(text))
    return next(count)


def _limited(events: Iterable[yaml.Event], count: Iterator[int], most: int) -> Iterator[yaml.Event]:
    """Yields events and counts them; raises BadRecord if there are too many."""
    for event in events:
        if next(count) >= most:
            raise BadRecord("has too many values")
        yield event


def _add_up(events: Iterable[yaml.Event], most: int) -> None:
    """Adds up the size of all nodes, each alias with the size of what it repeats; raises BadRecord."""
    sizes: dict[str, int] = {}  # of what anchors name; 0 for a node that has not ended
    ahead: list[tuple[str | None, int]] = [(None, 0)]  # the anchor of each open node, and its size so far
    for event in events:
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            size = sizes.get(anchor or "", 0)
            if not size:
                raise BadRecord("has an alias of nothing, or of itself")
        elif isinstance(event, yaml.ScalarEvent):
            size = 1 + len(event.value)
            sizes.update({anchor: size} if anchor else {})
        elif isinstance(event, yaml.CollectionStartEvent):
            ahead.append((anchor, 1))
            sizes.update({anchor: 0} if anchor else {})
            if len(ahead) > _DEEPEST:
                raise BadRecord(f"is nested more than {_DEEPEST} levels deep")
            continue
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = ahead.pop()
            sizes.update({anchor: size} if anchor else {})
        else:
            continue
        above, before = ahead[-1]
        ahead[-1] = above, before + size
        if before + size > most:
            raise BadRecord(f"grows to more than {_MOST // 1000} kB through aliases")
