"""How much memory a process and all that came from it use, and the most that they did.

The processes are asked one by one. What several share, as after a fork, counts once.
"""

import contextlib
import os
import pathlib

import psutil

from guild_dask import processes

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Meter:
    """The memory of the processes below this one, in bytes."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.peak = 0

    def sample(self) -> int:
        """Returns what is used now, or a little more: shared memory is told apart only where that can matter."""
        pids = below(self._pid)
        used = sum(_resident(pid) for pid in pids)
        if used > self.peak and len(pids) > 1:
            used = max(self.proportional(pids), 0)
        self.peak = max(self.peak, used)
        return used

    def proportional(self, pids: list[int] | None = None) -> int:
        """Returns what is used now, each page once. This takes longer."""
        return sum(_proportional(pid) for pid in (below(self._pid) if pids is None else pids))


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
    try:
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(pid).memory_info().rss)
        return 0


def _proportional(pid: int) -> int:
    """Returns the memory of a process, with its part of what it shares with others; all of that if nobody tells."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return _resident(pid)
