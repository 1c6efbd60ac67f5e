"""How much memory a process and all that came from it use, and the most that they did.

Where the run has a cgroup of its own, the kernel has counted it. Else the processes are asked one by one. What several
share, as after a fork, counts once. Files that are mapped do not count: the kernel takes their memory back when it
needs it.
"""

import contextlib
import os
import pathlib

import psutil

from guild_dask.host import processes
from guild_dask.host.cgroups import Cgroup


class Meter:
    """The memory of the processes below a given one, in bytes."""

    def __init__(self, pid: int, cgroup: Cgroup | None = None) -> None:
        self._pid = pid
        self.cgroup = cgroup  # of the same processes, if they have one
        self.peak = 0

    def sample(self) -> int:
        """Returns what is used now, or a little more: shared memory is told apart only where that can matter."""
        used = self._counted()
        if used is None:
            used = self._summed()
        self.peak = max(self.peak, used)
        return used

    def exact(self) -> int:
        """Returns what is used now, each page once. This may take longer."""
        used = self._counted()
        return sum(map(_proportional, below(self._pid))) if used is None else used

    def _counted(self) -> int | None:
        return self.cgroup.memory() if self.cgroup else None

    def _summed(self) -> int:
        pids = below(self._pid)
        used = sum(map(_resident, pids))
        return sum(map(_proportional, pids)) if used > self.peak and len(pids) > 1 else used


def below(pid: int) -> list[int]:
    """Returns the processes below one, as far as the kernel tells quickly, else all that can be found."""
    found: list[int] = []
    ahead = [pid]
    while ahead:
        try:
            children = _children(ahead.pop())
        except OSError:
            if found or ahead:
                continue  # it has just ended
            return [process.pid for process in processes.descendants(pid)]
        found += children
        ahead += children
    return found


def _children(pid: int) -> list[int]:
    """Returns the children that any thread of a process has started; raises OSError where that is not told."""
    children: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            children += map(int, pathlib.Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return children


def _resident(pid: int) -> int:
    """Returns the memory of a process that is its own, or shared by all means: what of files it has mapped is not."""
    try:
        return _kilobytes(f"/proc/{pid}/status", ("RssAnon:", "RssShmem:"))
    except (OSError, LookupError, ValueError):
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(pid).memory_info().rss)
        return 0


def _proportional(pid: int) -> int:
    """Returns the same with its part of what it shares with others; with all of that if nobody tells."""
    try:
        return _kilobytes(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:"))
    except (OSError, LookupError, ValueError):
        return _resident(pid)


def _kilobytes(path: str, names: tuple[str, ...]) -> int:
    """Returns the sum of lines such as `RssAnon: 12 kB`, in bytes; raises LookupError if one of them is not there."""
    found = dict(line.split(None, 1) for line in pathlib.Path(path).read_text().splitlines() if line.startswith(names))
    return sum(int(found[name].split()[0]) for name in names) * 1024
