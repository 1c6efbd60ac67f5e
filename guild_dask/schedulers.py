"""Which schedulers are at work on a Guild home, and what they tell, for those who only look."""

import json
import pathlib
import time
from dataclasses import dataclass

from guild_dask import processes
from guild_dask.presence import SILENCE, STATE
from guild_dask.processes import ProcessIdentity
from guild_dask.state import State, state_for_data


@dataclass(frozen=True)
class Scheduler:
    """A scheduler that lives, as far as can be seen from here."""

    id: str
    process: ProcessIdentity
    silent: float  # seconds since it was last heard of
    state: State | None  # None: it has told nothing yet


def folder(home: str) -> pathlib.Path:
    """Returns where schedulers tell of themselves."""
    return pathlib.Path(home, "dask", "schedulers")


def alive(home: str) -> list[Scheduler]:
    """Returns the schedulers that live, the oldest first."""
    found = [_read(path) for path in folder(home).glob("*.json")]
    return sorted((each for each in found if each), key=lambda each: (each.state.started if each.state else 0, each.id))


def _read(path: pathlib.Path) -> Scheduler | None:
    try:
        process = processes.identity_for_data(json.loads(path.read_text()))
        silent = max(0.0, time.time() - path.stat().st_mtime)
    except (OSError, ValueError):
        return None
    if process is None:
        return None
    # On another host we cannot look for the process; its heartbeat has to do.
    lives = processes.is_alive(process)
    if lives is False or (lives is None and silent > SILENCE):
        return None
    return Scheduler(path.stem, process, silent, _state(path.with_suffix(STATE)))


def _state(path: pathlib.Path) -> State | None:
    try:
        return state_for_data(json.loads(path.read_text()))
    except (OSError, ValueError):
        return None
