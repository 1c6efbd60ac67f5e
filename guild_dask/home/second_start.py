"""Whether Guild may start or stage a run that exists: not while a scheduler has it."""

import os

from guild_dask.home import claims, layout
from guild_dask.home.liveness import Liveness, liveness

# The run directory that this process may start, since its scheduler has claimed it for this process.
_OWN: set[str] = set()


def allow(run_dir: str) -> None:
    """Lets this process start a run that was claimed for it."""
    _OWN.add(os.path.realpath(run_dir))


def refusal_for(run_dir: str) -> str:
    """Returns why a run must not be started or staged by this process; empty if it may be."""
    path = os.path.realpath(run_dir)
    home, run = layout.home_of_run(path), layout.run_id(path)
    if path in _OWN or path != os.path.realpath(layout.run_dir(home, run)):
        return ""
    try:
        found = claims.present(layout.claims_folder(home), run)
        if found is None or found.claim is None or liveness(found, path) is Liveness.DEAD:
            return ""
    except OSError as e:
        return f"cannot read whether a scheduler runs {run[:8]}: {e.strerror or e}"
    who = f"scheduler {found.claim.scheduler_id[:8]}"
    if found.is_started:
        return f"{who} runs {run[:8]} on {found.claim.owner.host}; 'guild-dask stop {run[:8]}' ends it"
    return f"{who} is about to start {run[:8]}"
