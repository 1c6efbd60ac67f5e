"""Whether Guild may start or stage a run that exists: not while a scheduler has it."""

import os

from guild_dask.home import claims, layout, run_directory
from guild_dask.home.errors import HomeUnavailable
from guild_dask.home.liveness import Liveness, liveness
from guild_dask.host import processes

# The run directory that this process may start, since its scheduler has claimed it for this process.
_OWN: set[str] = set()


def allow(run_dir: str) -> None:
    """Lets this process start a run that was claimed for it."""
    _OWN.add(os.path.realpath(run_dir))


def refusal_for(run_dir: str) -> str:
    """Returns why a run must not be started or staged by this process; empty if it may be.

    It may be if a dead scheduler has left its claim on the run, which is removed.
    """
    path = os.path.realpath(run_dir)
    home, run = layout.home_of_run(path), layout.run_id(path)
    if path in _OWN or path != os.path.realpath(layout.run_dir(home, run)):
        return ""
    try:
        found = claims.present(layout.claims_folder(home), run)
        if found is None:
            return ""
        if found.claim is None or liveness(found, path) is Liveness.DEAD:
            return _take_over(home, path, found)
    except OSError as e:
        return f"cannot read whether a scheduler runs {run[:8]}: {e.strerror or e}"
    who = f"scheduler {found.claim.scheduler_id[:8]}"
    if found.is_started:
        return f"{who} runs {run[:8]} on {found.claim.owner.host}; 'guild-dask stop {run[:8]}' ends it"
    return f"{who} is about to start {run[:8]}"


def _take_over(home: str, run_dir: str, found: claims.Found) -> str:
    """Removes the claim of a dead process: a scheduler that recovers it later would start the run, too.

    Returns why it cannot be removed, or why the run must not be started now; else empty.
    """
    from guild_dask.home.heartbeat import Heartbeat
    from guild_dask.home.run_queue import GuildHome

    this_process = processes.identity(os.getpid())
    assert this_process
    guild_home = GuildHome(home, Heartbeat(home, "", this_process))
    run, folder = found.run_id, guild_home.claims_folder
    try:
        with guild_home.lock():
            if claims.present(folder, run) != found:
                return f"a scheduler is about to start {run[:8]}, or has just staged it again"
            was_cut_short = not found.is_started and claims.has_snapshot(folder, run)
            if found.is_started:
                claims.remove(folder, run)
            elif guild_home.put_back(run) and not was_cut_short:
                # As Guild does at the start, which follows: no scheduler takes the run in between.
                run_directory.set_marker(run_dir, layout.PENDING)
                run_directory.clear_markers(run_dir, layout.STAGED)
    except HomeUnavailable as e:
        return str(e)
    # This process has read the records that the starter was about to write when it was killed.
    return f"{run[:8]} is staged again, since its start was cut short; repeat the command" if was_cut_short else ""
