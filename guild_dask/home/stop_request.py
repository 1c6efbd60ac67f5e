"""Requests to stop a run, from any host: a file beside its claim, which the run's starter checks for.

An empty file is the user's request. A scheduler that is being stopped, and a search that prunes a trial, write the name
of that cause into it.
"""

import os
import pathlib

from guild_dask.home.errors import raise_if_of_home
from guild_dask.home.outcome import Cause, cause_for_name
from guild_dask.host import files

STOP = ".stop"


def request_stop(claim: pathlib.Path, cause: Cause = Cause.STOPPED) -> None:
    """Requests the end of the run that a claim is for. A user's request replaces others, and not vice versa."""
    file = claim.with_suffix(STOP)
    if cause is Cause.STOPPED:
        files.overwrite(file)  # empty, so that it can be made on a full disk, too
        return
    try:
        files.overwrite(file, cause.value, os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    except OSError:
        withdraw(claim)  # what is empty would be the user's
        raise


def withdraw(claim: pathlib.Path) -> None:
    """Withdraws a request to stop."""
    claim.with_suffix(STOP).unlink(missing_ok=True)


def requested_cause(claim: pathlib.Path) -> Cause | None:
    """Returns the cause for which the run is requested to stop, or None if it is not, as far as that can be seen."""
    try:
        return recorded_cause(claim)
    except OSError:
        return None


def recorded_cause(claim: pathlib.Path) -> Cause | None:
    """Returns what requested_cause() does; raises OSError if the home, or this host, does not let it be read."""
    try:
        cause = cause_for_name(files.read_text(claim.with_suffix(STOP)))
    except OSError as e:
        raise_if_of_home(e)
        return None
    except ValueError:
        return Cause.STOPPED
    return cause if cause in (Cause.SCHEDULER_STOPPED, Cause.PRUNED) else Cause.STOPPED


def is_requested(claim: pathlib.Path) -> bool:
    """Returns whether the run is requested to stop."""
    return files.exists(claim.with_suffix(STOP))
