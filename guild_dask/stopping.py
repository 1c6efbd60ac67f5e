"""Stops single runs that schedulers have started, from outside of the scheduler."""

import contextlib
import os
import pathlib
import signal

from guild_dask import claims, processes


class CannotStop(Exception):
    """The run cannot be stopped from here; the text is for the user."""


def stop(home: str, run_id: str) -> str:
    """Asks for the end of a run, and returns what was done; raises CannotStop."""
    found = next(
        (each for each in claims.all_claims(pathlib.Path(home, "dask", "claims")) if each.run_id == run_id), None
    )
    if found is None or found.claim is None:
        raise CannotStop("no scheduler has it in its hands; use 'guild stop'")
    owner = found.claim.owner
    lives = processes.is_alive(owner)
    if lives is None:
        return _ask_host(home, run_id, owner.host)
    if not lives:
        raise CannotStop("the process that started it is gone; the next scheduler looks after the run")
    # The starter ends the operation with all that came from it, and records its end.
    with contextlib.suppress(ProcessLookupError):
        os.kill(owner.pid, signal.SIGTERM)
    return "asked to end"


def _ask_host(_home: str, _run_id: str, host: str) -> str:
    raise CannotStop(f"it runs on {host}; use this command there")
