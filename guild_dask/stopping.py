"""Stops single runs that schedulers have started, from outside of the scheduler."""

import contextlib
import os
import pathlib
import signal

from guild_dask import claims, last_word, processes


class CannotStop(Exception):
    """The run cannot be stopped from here; the text is for the user."""


def stop(home: str, run_id: str) -> str:
    """Asks for the end of a run, and returns what was done; raises CannotStop."""
    folder = pathlib.Path(home, "dask", "claims")
    found = next((each for each in claims.all_claims(folder) if each.run_id == run_id), None)
    if found is None or found.claim is None:
        raise CannotStop("no scheduler has it in its hands; use 'guild stop'")
    owner = found.claim.owner
    lives = processes.is_alive(owner)
    if lives is False:
        raise CannotStop("the process that started it is gone; the next scheduler looks after the run")
    _ask(folder, run_id)
    if lives is None:
        return f"asked {owner.host} to end it"
    # The starter ends the operation with all that came from it, and records its end.
    with contextlib.suppress(ProcessLookupError):
        os.kill(owner.pid, signal.SIGTERM)
    return "asked to end"


def _ask(folder: pathlib.Path, run_id: str) -> None:
    """Leaves a wish to stop beside the claim: it tells a stop from a loss, and reaches other hosts."""
    try:
        last_word.ask_to_stop(claims.path(folder, run_id))
    except OSError as e:
        raise CannotStop(f"cannot write to {folder}: {e.strerror or e}") from e
