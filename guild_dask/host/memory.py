"""The memory that a process's descendants use, and its peak.

If a run has a cgroup of its own, the kernel counts its memory. Otherwise the processes are measured one by one. Memory
that several processes share, as after a fork, counts once. Mapped files do not count: the kernel can reclaim their
pages.
"""

import contextlib
import os
import pathlib

import psutil

from guild_dask.host import processes
from guild_dask.host.cgroups import Cgroup


class Meter:
    """Measures the memory of the descendants of a process, in bytes."""

    def __init__(self, pid: int, cgroup: Cgroup | None = None) -> None:
        self.pids = [pid]  # the processes whose descendants are measured
        self.cgroup = cgroup  # the cgroup of these processes, if they have one
        self.peak = 0

    def sample(self) -> int:
        """Returns an upper bound of the memory in use. Shared memory is counted once only if the sum is a new peak."""
        used = self._counted()
        if used is None:
            used = self._summed()
        self.peak = max(self.peak, used)
        return used

    def exact(self) -> int:
        """Returns the memory in use, with each page counted once. This may take longer."""
        used = self._counted()
        return sum(map(_proportional, self._measured())) if used is None else used

    def _counted(self) -> int | None:
        return self.cgroup.memory() if self.cgroup else None

    def _summed(self) -> int:
        pids = self._measured()
        used = sum(map(_resident, pids))
        # A process below another one than the first was forked, and shares pages with processes that are not measured.
        may_share = len(pids) > 1 or len(self.pids) > 1
        return sum(map(_proportional, pids)) if used > self.peak and may_share else used

    def _measured(self) -> list[int]:
        return [each for pid in self.pids for each in below(pid)]


def below(pid: int) -> list[int]:
    """Returns the descendants of a process, from the kernel's lists of children if it has them."""
    found: list[int] = []
    ahead = [pid]
    while ahead:
        try:
            children = _children(ahead.pop())
        except OSError:
            if found or ahead:
                continue  # the process has just ended
            return [process.pid for process in processes.descendants(pid)]
        found += children
        ahead += children
    return found


def _children(pid: int) -> list[int]:
    """Returns the children of all threads of a process; raises OSError if the kernel does not list them."""
    children: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            children += map(int, pathlib.Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return children


def _resident(pid: int) -> int:
    """Returns the anonymous and shared memory of a process, without mapped files."""
    try:
        return _kilobytes(f"/proc/{pid}/status", ("RssAnon:", "RssShmem:"))
    except (OSError, LookupError, ValueError):
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(pid).memory_info().rss)
        return 0


def _proportional(pid: int) -> int:
    """Returns the same, with a proportional part of shared pages; with all of them if the kernel has no such sum."""
    try:
        return _kilobytes(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:"))
    except (OSError, LookupError, ValueError):
        return _resident(pid)


def _kilobytes(path: str, names: tuple[str, ...]) -> int:
    """Returns the sum of lines such as `RssAnon: 12 kB`, in bytes; raises LookupError if a line is missing."""
    found = dict(line.split(None, 1) for line in pathlib.Path(path).read_text().splitlines() if line.startswith(names))
    return sum(int(found[name].split()[0]) for name in names) * 1024
