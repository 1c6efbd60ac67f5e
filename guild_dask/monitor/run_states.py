"""The states of runs: one table with the name, text, colours and meaning of each, for all views. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from guild_dask.home.outcome import End, text_for_end

RUNNING = "running"
WAITING = "waiting"
IMPOSSIBLE = "impossible"
HELD = "held"
RETRYING = "retrying"


@dataclass(frozen=True)
class RunState:
    """A state of a run.

    The colour has a contrast of 3 to 1 or more with a white and with a dark background, and no two states share one.
    """

    name: str  # in records and in --json
    text: str
    colour: str
    terminal: str | None  # the colour in a terminal, as click names it
    meaning: str


def _ended(end: End, colour: str, terminal: str | None, meaning: str) -> RunState:
    return RunState(end.value, text_for_end(end.value), colour, terminal, meaning)


# In the order in which views list them.
_ALL = (
    RunState(RUNNING, RUNNING, "#1f88d8", "cyan", "on a worker now"),
    RunState(WAITING, WAITING, "#a08000", None, "in the queue"),
    RunState(RETRYING, RETRYING, "#e0661c", "yellow", "waits for its next attempt"),
    RunState(HELD, HELD, "#9a6b4f", "yellow", "not in the queue: it comes after another run, or cannot start as it is"),
    RunState(IMPOSSIBLE, IMPOSSIBLE, "#9560d6", "magenta", "no present worker can ever run it"),
    _ended(End.FAILED, "#dc3545", "red", "ended with an error"),
    _ended(End.COULD_NOT_START, "#c2409c", "red", "Guild refused to start it"),
    _ended(End.TERMINATED, "#80858c", "yellow", "ended by a user, a search, a limit or the end of its scheduler"),
    _ended(End.COMPLETED, "#2f9552", "green", "ended without an error"),
    _ended(End.RETRIED, "#b58a6a", None, "an attempt that was followed by another"),
    _ended(End.STAGED_AGAIN, "#17948f", None, "was not started after all, and is staged"),
    _ended(End.GONE, "#4a86b8", None, "the run was deleted"),
)

# By name, in order.
STATES: Mapping[str, RunState] = {state.name: state for state in _ALL}


def state_for(name: str) -> RunState:
    """Returns a state by its name; one that another version of guild-dask has recorded gets a colour of its own."""
    return STATES.get(name) or RunState(name, name, "#6f7a2f", None, "recorded by another version")
