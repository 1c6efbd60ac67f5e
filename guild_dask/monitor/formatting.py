"""Durations, amounts and texts, formatted for people. Pure."""

import itertools
import math
import unicodedata
from collections.abc import Mapping

from guild_dask.plan.units import format_amount, unit_of


def duration(seconds: float) -> str:
    """Returns a duration in one or two units: `42 s`, `3 min`, `2 h 05 min`, `3 d 4 h`."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 3 * 3600:
        hours, minutes = divmod(round(whole / 60), 60)
        return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
    if whole < 48 * 3600:
        hours, minutes = divmod(round(whole / 60), 60)
        return f"{hours} h {minutes:02} min"
    days, hours = divmod(round(whole / 3600), 24)
    return f"{days} d {hours} h"


def exact_duration(seconds: float) -> str:
    """Returns a duration that may be short with two digits: `12 ms`, `0.31 s`, `14 s`; a longer one as duration()."""
    if seconds < 0.0995:
        return f"{1000 * seconds:.2g} ms"
    return f"{seconds:.2g} s" if seconds < 9.95 else duration(seconds)


def about(seconds: float | None, before: str = "", is_least: bool = False) -> str:
    """Returns an estimated duration: `soon`, or `~2 min` or `at least 2 min` with a prefix; a dash if it is unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if is_least:
        return f"{before}at least {duration(seconds)}"
    return "soon" if seconds < 5 else f"{before}~{duration(seconds)}"


def share(used: float, total: float) -> str:
    """Returns used/total in the unit of the total: `16/64GB`."""
    return f"{format_amount(_rounded(used / unit_of(total)[0]))}/{format_amount(total)}"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}") if abs(value) < 1e4 else round(value)


def amount_shares(used: Mapping[str, float], total: Mapping[str, float]) -> str:
    """Returns used/total of each resource: `gpu 1/2  mem 16/64GB`."""
    return "  ".join(f"{name} {share(used.get(name, 0.0), total[name])}" for name in sorted(total))


def one_line(text: str) -> str:
    """Returns text with control characters, which a terminal would execute, replaced by spaces."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def escaped(text: str) -> str:
    """Returns text with control characters, and all that is not printed, as escape sequences of Python."""
    return "".join(letter if _is_harmless(letter) else letter.encode("unicode_escape").decode() for letter in text)


def _is_harmless(letter: str) -> bool:
    return letter.isprintable() or unicodedata.category(letter) == "Zs"  # all kinds of spaces


def width(text: str) -> int:
    """Returns the terminal columns that a text takes: wide characters, such as Chinese ones, take two."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def cut(text: str, most: int) -> str:
    """Returns text in at most that many columns, with an ellipsis if it was cut."""
    if width(text) <= most:
        return text
    ends = itertools.accumulate(map(_columns, text))
    return f"{text[: sum(1 for _ in itertools.takewhile(lambda end: end < most, ends))]}…"


def padded(text: str, columns: int) -> str:
    """Returns text padded with spaces to that many columns."""
    return text + " " * (columns - width(text))


def short(run_id: str) -> str:
    """Returns the short form of a run id, as Guild shows it. It may be the name of any folder."""
    return escaped(run_id[:8])
