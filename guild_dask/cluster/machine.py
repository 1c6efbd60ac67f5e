"""The CPUs and the memory of this machine that this process may use.

A container, a job of a batch system or a CPU affinity may allow less than the machine has.
"""

import contextlib
import math
import os
import pathlib
import resource
from collections.abc import Callable, Iterable, Mapping

import psutil

from guild_dask.plan.resources import CPU, MEMORY
from guild_dask.plan.units import Amount

_CGROUPS = pathlib.Path("/sys/fs/cgroup")
# Where there is no limit, cgroup v1 shows a number near the largest 64-bit integer.
_NO_LIMIT = 2**60

# Open files of a scheduler without runs, with some for the page of runs; and those of a slot, while a run starts.
_FILES = 40
_FILES_OF_A_SLOT = 6


def own_group(controller: str) -> pathlib.Path:
    """Returns the folder of this process's cgroup: of cgroup v2 if the controller is "", or of one controller of v1."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller == "" and controllers == "":
            return _below(_CGROUPS, path)
        if controller and controller in controllers.split(","):
            return _below(_CGROUPS / controller, path)
    raise FileNotFoundError(controller)


def _below(root: pathlib.Path, path: str) -> pathlib.Path:
    # A container sees its own group as the root, and the group's name as it is outside.
    folder = root / path.lstrip("/")
    return folder if folder.is_dir() else root


def warning_about_files(slots: int, limit: int) -> str:
    """Returns a warning if the limit on open files is too low for so many runs at a time; empty if it is not."""
    needed = _FILES + slots * _FILES_OF_A_SLOT
    if needed <= limit:
        return ""
    fit = max(1, (limit - _FILES) // _FILES_OF_A_SLOT)
    return (
        f"A limit of {limit} open files is too low for {slots} slots: about {fit} runs may start at a time, and others "
        f"wait; 'ulimit -n {needed}' raises the limit"
    )


def most_files() -> int:
    """Returns how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _NO_LIMIT if soft == resource.RLIM_INFINITY else soft


# Returns the folder of the cgroup for a controller; raises OSError if there is none.
Groups = Callable[[str], pathlib.Path]


def amounts(names: Iterable[str], group: Groups = own_group) -> dict[str, float]:
    """Returns the amounts of the named resources, which are `cpu` or `mem`."""
    found = {CPU: cpus, MEMORY: memory}
    return {name: found[name](group) for name in names}


def cpus(group: Groups = own_group) -> float:
    """Returns how many CPUs this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota(group)
    return float(max(1, min(allowed, math.ceil(quota)) if quota else allowed))


def _cpu_quota(group: Groups) -> float | None:
    """Returns the CPU quota of the container or job, or None if there is none."""
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (group("") / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        folder = group("cpu")
        quota_and_period = [int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period")]
        return quota_and_period[0] / quota_and_period[1] if quota_and_period[0] > 0 else None
    return None


def memory(group: Groups = own_group) -> Amount:
    """Returns how many bytes this container, job or machine may use, rounded down to a tenth of a gigabyte."""
    limits = [float(psutil.virtual_memory().total), *_memory_limits(os.environ, group)]
    # The amount is exactly the one that is shown.
    tenths = math.floor(min(limits) / 1e8)
    return Amount(tenths * 1e8, f"{tenths / 10:g}GB")


def _memory_limits(environ: Mapping[str, str], group: Groups) -> list[float]:
    """Returns the memory limits of the container and of the job, if any."""
    limits = []
    for controller, name in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        with contextlib.suppress(OSError, ValueError):
            limit = int((group(controller) / name).read_text())
            limits += [float(limit)] if limit < _NO_LIMIT else []
    with contextlib.suppress(KeyError, ValueError):
        limits.append(int(environ["SLURM_MEM_PER_NODE"]) * 2.0**20)
    return [limit for limit in limits if limit > 0]
