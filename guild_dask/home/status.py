"""The status of a run, by the rule of guildai 0.9, as `guild runs` shows it on this host, and its end by that.

Two other questions have rules of their own: whether a run can be taken from the queue (`run_directory.is_staged`), and
whether one of its processes is at work (`run_queue.GuildHome.running_elsewhere`).
"""

import enum
from collections.abc import Collection, Mapping
from typing import Any

import psutil

from guild_dask.home import layout, run_directory, run_info
from guild_dask.home.outcome import End


class Status(enum.Enum):
    """A run's status. The value is Guild's own name for it."""

    RUNNING = "running"
    PENDING = "pending"
    STAGED = "staged"
    COMPLETED = "completed"
    TERMINATED = "terminated"
    ERROR = "error"


# The statuses of runs that have ended.
ENDED = frozenset((Status.COMPLETED, Status.TERMINATED, Status.ERROR))

# The markers that decide, in Guild's order: the first one that is there counts.
_MARKERS = {
    layout.REMOTE_LOCK: Status.RUNNING,
    layout.PENDING: Status.PENDING,
    layout.STAGED: Status.STAGED,
}


def status_for(markers: Collection[str], exit_status: int | None, is_process_alive: bool) -> Status:
    """Returns the status of a run with these markers and exit status, whose process is alive on this host or not."""
    for marker, status in _MARKERS.items():
        if marker in markers:
            return status
    if exit_status is not None:
        return Status.COMPLETED if exit_status == 0 else Status.TERMINATED if exit_status < 0 else Status.ERROR
    return Status.RUNNING if is_process_alive else Status.ERROR


_ENDS = {Status.COMPLETED: End.COMPLETED, Status.TERMINATED: End.TERMINATED, Status.ERROR: End.FAILED}


def end_for(status: Status, facts: Mapping[str, Any]) -> End | None:
    """Returns how a run ended that has a status, and facts in its attribute `dask`; None if it has not ended. Pure.

    Guild's status is `terminated` for every signal. A run has failed if its record says that it was killed by one that
    does not request an end, and that we did not send.
    """
    if status is Status.TERMINATED and run_info.KILLED_BY in facts:
        return End.FAILED
    return _ENDS.get(status)


def status(run_dir: str) -> Status:
    """Returns a run's status; raises OSError if the home cannot be read.

    Reads no more than what decides: a home may have tens of thousands of runs.
    """
    marker, exit_status = run_directory.marker_or_end(run_dir, _MARKERS)
    if marker is not None:
        return status_for((marker,), None, False)
    return status_for((), exit_status, exit_status is None and living_process(run_dir) is not None)


def known_status(run_dir: str) -> Status:
    """Returns a run's status for views: that of a run without records if the home cannot be read."""
    try:
        return status(run_dir)
    except OSError:
        return Status.ERROR


def living_process(run_dir: str) -> int | None:
    """Returns the process that Guild has on record for a run, if there is one with that pid on this host.

    Raises OSError if the home cannot be read.
    """
    pid = run_directory.locked_by(run_dir)
    return pid if pid is not None and psutil.pid_exists(pid) else None
