"""Stops single runs that schedulers have started, from outside of the scheduler and from any host."""

import contextlib
import os
import signal

from guild_dask.home import claims, layout, stop_request
from guild_dask.host import processes


class CannotStop(Exception):
    """The run cannot be stopped so; the text is for the user."""


def stop(home: str, run_id: str) -> str:
    """Asks for the end of a run, and returns what was done; raises CannotStop."""
    folder = layout.claims_folder(home)
    found = next((each for each in claims.all_claims(folder) if each.run_id == run_id), None)
    if found is None or found.claim is None:
        raise CannotStop("no scheduler has it in its hands; use 'guild stop'")
    if not found.is_started:
        raise CannotStop("it is only about to start; try again in a moment")
    owner = found.claim.owner
    lives = processes.is_alive(owner)
    if lives is False:
        raise CannotStop("the process that started it is gone; the next scheduler looks after the run")
    try:
        stop_request.request_stop(claims.path(folder, run_id))
    except OSError as e:
        raise CannotStop(f"cannot write to the Guild home: {e.strerror or e}") from e
    if lives is None:
        return f"asked to end, on {owner.host}"
    # Its starter polls for the request; on this host a signal makes it stop at once.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(owner.pid, signal.SIGTERM)
    return "asked to end"
