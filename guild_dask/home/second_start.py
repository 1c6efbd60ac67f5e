"""Whether Guild may start or stage a run that exists: not while a scheduler has it."""

import os

from guild_dask.home import claims, layout, run_processes
from guild_dask.host import processes

# The run directory that this process may start, since its scheduler has claimed it for this process.
_OWN: set[str] = set()


def allow(run_dir: str) -> None:
    """Lets this process start a run that was claimed for it."""
    _OWN.add(os.path.realpath(run_dir))


def refusal_for(run_dir: str) -> str:
    """Returns why a run must not be started or staged by this process; empty if it may be."""
    path = os.path.realpath(run_dir)
    home, run = os.path.dirname(os.path.dirname(path)), os.path.basename(path)
    if path in _OWN or path != os.path.realpath(layout.run_dir(home, run)):
        return ""
    try:
        found = claims.present(layout.claims_folder(home), run)
    except OSError as e:
        return f"cannot read whether a scheduler runs {run[:8]}: {e.strerror or e}"
    if found is None or found.claim is None or not _may_live(path, found, found.claim.owner):
        return ""
    who = f"scheduler {found.claim.scheduler_id[:8]}"
    if found.is_started:
        return f"{who} runs {run[:8]} on {found.claim.owner.host}; 'guild-dask stop {run[:8]}' ends it"
    return f"{who} is about to start {run[:8]}"


def _may_live(run_dir: str, found: claims.Found, owner: processes.ProcessIdentity) -> bool:
    """Returns whether the run may be running: its starter is alive, or was killed and left the operation behind."""
    if processes.is_alive(owner) is not False:
        return True
    return found.is_started and run_processes.go_on_without(owner.pid, run_dir)
