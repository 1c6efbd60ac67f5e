"""The schedulers at work on a Guild home, with their published states, and the runs of dead schedulers."""

import contextlib
import pathlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from guild_dask.home import claims, layout
from guild_dask.home.claim_record import identity_for_data
from guild_dask.home.errors import raise_if_of_home
from guild_dask.home.heartbeat import counts_as_alive, file_system_time
from guild_dask.home.status import Status, known_status
from guild_dask.host import files, processes
from guild_dask.host.processes import ProcessIdentity
from guild_dask.monitor.state import State, state_for_data

# Bytes of a published state: some hundred for each run that is running, and for each of the first that wait.
_MOST_STATE = 256 << 20

# What is done about a file that cannot be read: it raises an error, or the file is left out.
Refusal = Callable[[Exception], None]


@dataclass(frozen=True)
class Scheduler:
    """A scheduler that is alive, as far as this host can tell."""

    id: str
    process: ProcessIdentity
    silent: float  # seconds since its last heartbeat
    state: State | None  # None: not published yet


def alive(home: str) -> list[Scheduler]:
    """Returns the schedulers that are alive, the oldest first; raises OSError if the home cannot be read."""
    return _alive(home, raise_if_of_home)


def known_alive(home: str) -> list[Scheduler]:
    """Returns the schedulers that are alive for views: without what cannot be read."""
    return _alive(home, _leave_out)


def _leave_out(_error: Exception) -> None:
    pass


def _alive(home: str, refuse: Refusal) -> list[Scheduler]:
    folder = layout.schedulers_folder(home)
    now = file_system_time(folder)
    try:
        names = files.names(folder)
    except OSError as e:
        refuse(e)
        names = []
    ids = [name.removesuffix(layout.HEARTBEAT) for name in names if name.endswith(layout.HEARTBEAT)]
    found = [_read(home, each, now, refuse) for each in ids]
    return sorted((each for each in found if each), key=lambda each: (each.state.started if each.state else 0, each.id))


def is_alive(home: str, scheduler: str) -> bool:
    """Returns whether a scheduler is alive."""
    return _read(home, scheduler, file_system_time(layout.schedulers_folder(home)), _leave_out) is not None


def last_heartbeat(home: str, scheduler: str) -> float:
    """Returns the time of a scheduler's last heartbeat; 0 if its record is gone."""
    try:
        return layout.heartbeat(home, scheduler).stat().st_mtime
    except OSError:
        return 0.0


@dataclass(frozen=True)
class Survivor:
    """A run that continues though its scheduler has died. The next scheduler counts its resources and settles it."""

    run: str
    scheduler: str
    worker: str
    host: str
    since: float
    requests: Mapping[str, float]


def survivors(home: str, living: Iterable[Scheduler]) -> list[Survivor]:
    """Returns the running runs of dead schedulers, the oldest first; `living` are the schedulers that are alive."""
    owners = {scheduler.process for scheduler in living}
    found = []
    with contextlib.suppress(OSError):
        for each in claims.all_claims(layout.claims_folder(home)):
            claim = each.claim
            if claim is None or not each.is_started or claim.scheduler in owners:
                continue
            if known_status(layout.run_dir(home, each.run_id)) is Status.RUNNING:
                host, since = claim.owner.host, each.written / 1e9
                found.append(Survivor(each.run_id, claim.scheduler_id, claim.worker, host, since, claim.requests))
    return sorted(found, key=lambda survivor: (survivor.since, survivor.run))


def _read(home: str, scheduler: str, now: float, refuse: Refusal) -> Scheduler | None:
    path = layout.heartbeat(home, scheduler)
    try:
        process = identity_for_data(files.read_json(path))
        if process is None:
            return None
        lives = processes.is_alive(process)
        silent = max(0.0, now - path.stat().st_mtime)
    except (OSError, ValueError) as e:
        refuse(e)
        return None
    if not counts_as_alive(lives, silent):
        return None
    return Scheduler(scheduler, process, silent, _state(layout.scheduler_state(home, scheduler), refuse))


def _state(path: pathlib.Path, refuse: Refusal) -> State | None:
    try:
        return state_for_data(files.read_json(path, most=_MOST_STATE))
    except (OSError, ValueError) as e:
        refuse(e)
        return None
