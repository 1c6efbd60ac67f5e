"""A cgroup of its own for a run, where this process may make one: the kernel then counts the memory of all in it.

Only version 2 is looked at. A cgroup that has processes cannot have others below it that are counted, unless it is the
root, so the run's is made beside our own: in a folder for all runs that are started from there, to which only the
counting of memory is handed on. So what a run gets of CPUs and disks is what it would get anyway.

A run must not get out of what holds us, either. Where our own cgroup has a limit, or is that of a service, which is to
end with all that came from it, the run stays in it. Where anything fails, nobody is told: the run's processes are
then asked one by one (`usage.py`). No function here raises an exception.
"""

import contextlib
import os
import pathlib
import re
import time
from collections.abc import Iterator

_PREFIX = "guild-dask-"
_LEAF = re.compile(r"run-(\d+)-\d+")

_PROCESSES = "cgroup.procs"
_HANDED_ON = "cgroup.subtree_control"

# What a cgroup has where nobody has set anything. `cpu.max` goes on with a period.
_UNLIMITED = {
    "cpu.idle": "0",
    "cpu.max": "max",
    "cpu.weight": "100",
    "cpuset.cpus": "",
    "cpuset.mems": "",
    "io.max": "",
    "io.weight": "default 100",
    "memory.high": "max",
    "memory.low": "0",
    "memory.max": "max",
    "memory.min": "0",
    "memory.oom.group": "0",
    "memory.swap.high": "max",
    "memory.swap.max": "max",
}

# The folder for all runs is removed with the last of them, perhaps in the moment in which the next one is made.
_TRIES = 3


class Cgroup:
    """The cgroup of one run, which a process of another one, `own`, has made."""

    def __init__(self, folder: pathlib.Path, own: pathlib.Path) -> None:
        self.folder = folder
        self._own = own
        self._is_used = False
        self._is_left = False

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Surrounds the start of a process, which is so born in the cgroup; this process leaves it afterwards."""
        is_inside = _is_written(self.folder / _PROCESSES, "0")
        try:
            yield
        finally:
            # If there is no way back, what this process takes from now on counts, too, which is little.
            self._is_left = is_inside and _is_written(self._own / _PROCESSES, "0")
            self._is_used = is_inside

    def memory(self) -> int | None:
        """Returns the memory of all in it that is not a file's, in bytes; None if the kernel does not say."""
        if not self._is_used:
            return None
        return memory_in(_text(self.folder / "memory.stat"))

    def kill(self) -> None:
        """Ends all in it at once, where the kernel can do that, so that none can get away by starting another."""
        if self._is_left:
            _is_written(self.folder / "cgroup.kill", "1")

    def remove(self) -> None:
        """Removes it if nothing is in it any more; if something is, whoever makes the next one does it later."""
        self._is_used = False
        _remove_tree(self.folder)
        _remove(self.folder.parent)


def cgroup_for_run() -> Cgroup | None:
    """Returns a new cgroup, for a process that this one is about to start; None where we may not make one."""
    folders = folders_for_texts(_text(pathlib.Path("/proc/self/cgroup")), _text(pathlib.Path("/proc/self/mountinfo")))
    return made_below(*folders) if folders else None


def made_below(mount: pathlib.Path, own: pathlib.Path) -> Cgroup | None:
    """Returns a new cgroup for a run that is started from a given one, which is below a mount or is that."""
    above = place_beside(mount, own)
    if above is None:
        return None
    sweep(above)
    with contextlib.suppress(OSError):
        group = above / f"{_PREFIX}{own.stat().st_ino}"
        leaf = group / f"run-{os.getpid()}-{time.monotonic_ns()}"
        if _are_made(group, leaf) and _is_prepared(group, own) and _text(leaf / "memory.stat"):
            return Cgroup(leaf, own)
        _remove(leaf)
        _remove(group)
    return None


def _are_made(group: pathlib.Path, leaf: pathlib.Path) -> bool:
    for _ in range(_TRIES):
        with contextlib.suppress(OSError):
            group.mkdir(exist_ok=True)
            leaf.mkdir()
            return True
    return False


def _is_prepared(group: pathlib.Path, own: pathlib.Path) -> bool:
    """Tells whether memory is counted below a group that may have no more processes than the given cgroup."""
    processes = _text(own / "pids.max")
    is_bound = processes in ("", "max") or _is_written(group / "pids.max", processes)
    return is_bound and _is_written(group / _HANDED_ON, "+memory")


def place_beside(mount: pathlib.Path, own: pathlib.Path) -> pathlib.Path | None:
    """Returns where a cgroup for runs can be made, None where there is no such place or we may not leave our own."""
    inside = own.relative_to(mount).parts if own.is_relative_to(mount) else ()
    if own.name.endswith(".service") or any(part.startswith(_PREFIX) for part in inside):
        return None
    for folder in (own, own.parent):
        if folder.is_relative_to(mount) and "memory" in _text(folder / _HANDED_ON).split():
            may_move = _may_write(folder) and _may_write(folder / _PROCESSES)
            return folder if may_move and not _is_limited(own) else None
    return None


def _is_limited(own: pathlib.Path) -> bool:
    for name, usual in _UNLIMITED.items():
        found = _text(own / name)
        if found and found != usual and not (name == "cpu.max" and found.startswith("max ")):
            return True
    return False


def sweep(above: pathlib.Path) -> None:
    """Removes what processes have left that were killed. What has a process in it cannot be removed."""
    for group in _folders(above):
        if not group.name.startswith(_PREFIX):
            continue
        for leaf in _folders(group):
            maker = _LEAF.fullmatch(leaf.name)
            if maker and not _is_alive(int(maker[1])):
                _remove_tree(leaf)
        _remove(group)


def folders_for_texts(cgroup: str, mountinfo: str) -> tuple[pathlib.Path, pathlib.Path] | None:
    """Returns where cgroups are mounted, and this process's own, from its `/proc` files; None if that is not there."""
    paths = [line[3:] for line in cgroup.splitlines() if line.startswith("0::/")]
    if not paths or ".." in paths[0].split("/"):
        return None  # it is outside of what this container sees
    for line in mountinfo.splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.split()[:1] == ["cgroup2"] and len(fields.split()) > 4:
            root, mount = (_unescaped(field) for field in fields.split()[3:5])
            if pathlib.PurePath(paths[0]).is_relative_to(root):
                return pathlib.Path(mount), pathlib.Path(mount, os.path.relpath(paths[0], root))
    return None


def memory_in(stat: str) -> int | None:
    """Returns what `memory.stat` says of memory that is no file's, or is one's that exists in memory only."""
    try:
        found = dict(line.split() for line in stat.splitlines() if line.startswith(("anon ", "shmem ")))
        return int(found["anon"]) + int(found["shmem"])
    except (LookupError, ValueError):
        return None


def _unescaped(field: str) -> str:
    """Returns a path of mountinfo, where a space is `\\040`."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):  # ValueError: a path that is none
        return ""


def _is_written(path: pathlib.Path, text: str) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            return os.write(descriptor, text.encode()) > 0
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return False


def _may_write(path: pathlib.Path) -> bool:
    try:
        return os.access(path, os.W_OK)
    except ValueError:
        return False


def _folders(above: pathlib.Path) -> list[pathlib.Path]:
    try:
        with os.scandir(above) as entries:
            return [pathlib.Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (OSError, ValueError):
        return []


def _remove_tree(folder: pathlib.Path) -> None:
    """Removes a cgroup with those that the run has made in it."""
    for below in _folders(folder):
        _remove_tree(below)
    _remove(folder)


def _remove(folder: pathlib.Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        folder.rmdir()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
