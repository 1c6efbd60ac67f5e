"""What a check found."""

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    """How bad it is."""

    GOOD = "ok"
    NOTE = "note"
    BAD = "problem"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, what was found, and what to do about it if it is not as it should be."""

    what: str
    level: Level
    text: str
    remedy: str = ""


def good(what: str, text: str) -> Finding:
    """Returns that something is as it should be."""
    return Finding(what, Level.GOOD, text)


def note(what: str, text: str, remedy: str = "") -> Finding:
    """Returns something that is good to know."""
    return Finding(what, Level.NOTE, text, remedy)


def bad(what: str, text: str, remedy: str) -> Finding:
    """Returns something that keeps runs from being started, or will."""
    return Finding(what, Level.BAD, text, remedy)
