"""Requests of users to schedulers: pause, resume, drain. Each request is a file in the Guild home.

    GUILD_HOME/dask/control/pause       no scheduler of this home starts a run, now or later, until the user resumes
    GUILD_HOME/dask/control/ID.pause    the scheduler ID starts none
    GUILD_HOME/dask/control/ID.drain    the scheduler ID starts none, and ends when its runs have ended
    GUILD_HOME/dask/control/RUN.changed the staged run RUN has other tags, or was staged again: read it now

A request is in force for as long as its file is there; the last kind is removed when it is old. The functions raise
OSError if the home cannot be written to.
"""

import contextlib
import pathlib
import time
from dataclasses import dataclass
from typing import Literal

from guild_dask.home import layout
from guild_dask.host import files

Request = Literal["pause", "resume", "drain"]

_PAUSE = "pause"
_DRAIN = "drain"
_CHANGED = ".changed"

# Seconds after which every scheduler has read a run that was reported as changed, by its regular polls.
_OLD = 3600.0


@dataclass(frozen=True)
class Control:
    """The requests to a scheduler that are in force."""

    is_paused: bool = False
    is_draining: bool = False


def folder(home: str) -> pathlib.Path:
    """Returns the folder of requests, which can be watched for changes."""
    return layout.control_folder(home)


def send(home: str, scheduler_id: str | None, request: Request) -> None:
    """Sends a request to one scheduler, or to all of the home. Only to pause all applies to later schedulers, too."""
    folder(home).mkdir(parents=True, exist_ok=True)
    if request == "pause":
        _file(home, scheduler_id, _PAUSE).touch()
    elif request == "drain":
        for each in [scheduler_id] if scheduler_id else _schedulers(home):
            _file(home, each, _DRAIN).touch()
    else:
        _resume(home, scheduler_id)


def _resume(home: str, scheduler_id: str | None) -> None:
    names = [f"{scheduler_id}.{_PAUSE}", f"{scheduler_id}.{_DRAIN}"] if scheduler_id else files.names(folder(home))
    for name in names:
        if name == _PAUSE or name.endswith((f".{_PAUSE}", f".{_DRAIN}")):
            (folder(home) / name).unlink(missing_ok=True)


def state(home: str, scheduler_id: str) -> Control:
    """Returns the requests to a scheduler, to it alone or to all."""
    names = files.names(folder(home))
    return Control(_PAUSE in names or f"{scheduler_id}.{_PAUSE}" in names, f"{scheduler_id}.{_DRAIN}" in names)


def report_changed(home: str, run_id: str) -> None:
    """Makes all schedulers of the home read a staged run now, rather than when its turn comes."""
    folder(home).mkdir(parents=True, exist_ok=True)
    files.write(folder(home) / f"{run_id}{_CHANGED}", "")  # a new file each time, which is noticed as a change


def changed_runs(home: str) -> dict[str, float]:
    """Returns the runs that were reported as changed, and when; reports that are old are removed."""
    found: dict[str, float] = {}
    for name in files.names(folder(home)):
        if name.endswith(_CHANGED):
            with contextlib.suppress(OSError):
                reported = (folder(home) / name).stat().st_mtime
                if time.time() - reported > _OLD:
                    (folder(home) / name).unlink(missing_ok=True)
                else:
                    found[name.removesuffix(_CHANGED)] = reported
    return found


def is_paused(home: str) -> bool:
    """Returns whether all schedulers of the home are paused."""
    return files.exists(_file(home, None, _PAUSE))


def forget(home: str, scheduler_id: str) -> None:
    """Removes the requests to a scheduler that ends; requests to all stay."""
    with contextlib.suppress(OSError):
        for request in (_PAUSE, _DRAIN):
            _file(home, scheduler_id, request).unlink(missing_ok=True)


def _file(home: str, scheduler_id: str | None, request: str) -> pathlib.Path:
    return folder(home) / (f"{scheduler_id}.{request}" if scheduler_id else request)


def _schedulers(home: str) -> list[str]:
    """Returns the schedulers that have a heartbeat, recent or not."""
    names = files.names(layout.schedulers_folder(home))
    return [name.removesuffix(layout.HEARTBEAT) for name in names if name.endswith(layout.HEARTBEAT)]
