"""The result of a check."""

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    """The severity of a finding."""

    GOOD = "ok"
    NOTE = "note"
    BAD = "problem"


@dataclass(frozen=True)
class Finding:
    """The result of one check, and the remedy if there is a problem."""

    what: str
    level: Level
    text: str
    remedy: str = ""


def good(what: str, text: str) -> Finding:
    """Returns a finding without a problem."""
    return Finding(what, Level.GOOD, text)


def note(what: str, text: str, remedy: str = "") -> Finding:
    """Returns a finding that the user should know."""
    return Finding(what, Level.NOTE, text, remedy)


def bad(what: str, text: str, remedy: str) -> Finding:
    """Returns a problem that prevents runs from starting, or will."""
    return Finding(what, Level.BAD, text, remedy)
