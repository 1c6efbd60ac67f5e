"""Whether the run of a claim goes on: one rule for whoever starts, stages, settles or shows it.

On this host, processes are looked up. On another host, the starter's heartbeat must be older than the time for which a
starter lets its run go on without the Guild home.
"""

import enum
import pathlib

from guild_dask.home import claims, run_directory, run_processes
from guild_dask.home.claims import Found
from guild_dask.host import processes
from guild_dask.host.processes import ProcessIdentity

# A starter ends its run when it could not send a heartbeat for as long as its lease. It notices that up to a quarter of
# the lease later, then needs time to end the run, and network file systems show a change up to a minute late.
_LEASES_OF_SILENCE = 3.0
_TIME_TO_END = 15.0


class Liveness(enum.Enum):
    """Whether a process of a claim is alive: the one that may start the run or, if that was killed, the operation."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"  # this host cannot see it


def liveness(found: Found, run_dir: str, has_ended: bool = False) -> Liveness:
    """Returns whether a process of a claim is alive, as far as this host can see; raises OSError if it cannot look.

    Of a run that `has_ended`, which is on record, only the starter counts. An unreadable claim has no process.
    """
    if found.claim is None:
        return Liveness.DEAD
    owner = found.claim.owner
    cannot_see = found.claim.lease > 0 and not processes.is_of_this_boot(owner)
    lives = None if cannot_see else processes.is_alive(owner)
    if lives is None:
        return Liveness.UNKNOWN
    may_live = found.is_started and not has_ended
    return Liveness.ALIVE if lives or (may_live and _is_operation_alive(run_dir, owner)) else Liveness.DEAD


def _is_operation_alive(run_dir: str, starter: ProcessIdentity) -> bool:
    """Returns whether the operation's own process is alive, though its starter is not."""
    pid = run_directory.locked_by(run_dir)
    if pid is not None:
        return run_processes.belongs_to(pid, run_dir)
    # Guild records the pid just after it has started the process. After a boot, the starter's pid is that of another.
    if not processes.is_of_this_boot(starter):
        return any(run_processes.all_of(run_dir))
    return run_processes.go_on_without(starter.pid, run_dir)


def is_silent(folder: pathlib.Path, found: Found, now: float) -> bool:
    """Returns whether the starter of a claim with a lease has been silent for so long that its run must have ended.

    `now` is the time by the clock of the file system. Raises OSError if the heartbeat cannot be read.
    """
    lease = found.claim.lease if found.claim else 0.0
    silence = now - claims.last_heartbeat(folder, found.run_id)
    return lease > 0 and silence > _LEASES_OF_SILENCE * lease + _TIME_TO_END
