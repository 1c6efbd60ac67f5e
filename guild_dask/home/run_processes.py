"""Which processes of this host belong to a run, by the variables that Guild gives to them.

An id alone does not tell: a copy of a Guild home, or a run that was imported into another one, has the same ids.
"""

import os
from collections.abc import Iterator
from typing import Any

from guild_dask.home import layout
from guild_dask.host import processes


def belongs_to(pid: int, run_dir: str) -> bool:
    """Returns whether a process was started for the run in that directory.

    If the directory that the process names cannot be seen from here, its run id decides.
    """
    if processes.variable_of(pid, "RUN_ID") != layout.run_id(run_dir):
        return False
    try:
        return os.path.samefile(processes.variable_of(pid, "RUN_DIR") or run_dir, run_dir)
    except (OSError, ValueError):
        return True


def all_of(run_dir: str) -> Iterator[Any]:
    """Yields the living processes of a run, wherever they are in the tree of processes."""
    return processes.all_where(lambda pid: belongs_to(pid, run_dir))


def runs_above(home: str) -> set[str]:
    """Returns the runs of a Guild home that this process is a part of: those of the processes that it descends from.

    A run that starts warm is no descendant of its starter, but it has the variables, too.
    """
    named = ((pid, processes.variable_of(pid, "RUN_ID")) for pid in processes.ancestors(os.getpid()))
    return {run for pid, run in named if run and belongs_to(pid, layout.run_dir(home, run))}


def go_on_without(starter_pid: int, run_dir: str) -> bool:
    """Returns whether processes of a run are alive on this host, though its starter is not.

    Only the processes themselves show that: by their environment or, before that is set, by the starter's session.
    """
    return processes.exists_in_session(starter_pid) or any(all_of(run_dir))
