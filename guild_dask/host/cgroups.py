"""A cgroup for each run, where this process may create one: the kernel then counts the memory of all its processes.

Only cgroup version 2 is supported. Except for the root, a cgroup that has processes cannot enable controllers for
cgroups below it. So the run's cgroup is created beside our own, in a group for all runs that are started from there.
Only the memory controller is enabled in that group: the run's share of CPUs and disks stays as it is.

A run must not escape from the limits of this process. If our own cgroup has a limit, or belongs to a service, which
must be able to end all of its processes, the run stays in it. Failures are not reported: `memory.py` then measures the
run's processes one by one. No function here raises an exception.
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
_CONTROLLERS = "cgroup.subtree_control"

# The kernel's default settings of a cgroup, which limit nothing. In `cpu.max` a period follows.
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

# The group for all runs is removed with the last run, perhaps at the moment at which the next cgroup is created in it.
_TRIES = 3


class Cgroup:
    """The cgroup of one run, created by a process in the cgroup `own`."""

    def __init__(self, folder: pathlib.Path, own: pathlib.Path) -> None:
        self.folder = folder
        self._own = own
        self._is_used = False
        self._is_left = False

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Moves this process into the cgroup for the time of the block; processes started in the block stay there."""
        self._is_used = is_inside = _is_written(self.folder / _PROCESSES, "0")
        try:
            yield
        finally:
            # If this process cannot move back, its own memory is counted, too, which is little.
            self._is_left = is_inside and _is_written(self._own / _PROCESSES, "0")

    def take(self, pid: int) -> None:
        """Moves another process into the cgroup."""
        self._is_used = _is_written(self.folder / _PROCESSES, str(pid))

    def memory(self) -> int | None:
        """Returns the bytes of memory of all processes in it, without file pages; None if the kernel does not count."""
        if not self._is_used:
            return None
        return memory_in(_text(self.folder / "memory.stat"))

    def kill(self) -> None:
        """Kills all processes in it at once, if the kernel can do that, so that none can escape by forking."""
        if self._is_left:
            _is_written(self.folder / "cgroup.kill", "1")

    def remove(self) -> None:
        """Removes it if it has no processes; otherwise remove_stale() removes it when the next one is created."""
        self._is_used = False
        _remove_tree(self.folder)
        _remove(self.folder.parent)


def cgroup_for_run() -> Cgroup | None:
    """Returns a new cgroup for a process that this one is about to start; None if we may not create one."""
    folders = folders_for_texts(_text(pathlib.Path("/proc/self/cgroup")), _text(pathlib.Path("/proc/self/mountinfo")))
    return cgroup_below(*folders) if folders else None


def cgroup_below(mount: pathlib.Path, own: pathlib.Path) -> Cgroup | None:
    """Returns a new cgroup for a run that is started from the cgroup `own`, which is the mount or below it; or None."""
    above = parent_for(mount, own)
    if above is None:
        return None
    remove_stale(above)
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
    """Enables the memory controller in a group, with the process limit of our own cgroup; False if that fails."""
    processes = _text(own / "pids.max")
    is_bound = processes in ("", "max") or _is_written(group / "pids.max", processes)
    return is_bound and _is_written(group / _CONTROLLERS, "+memory")


def parent_for(mount: pathlib.Path, own: pathlib.Path) -> pathlib.Path | None:
    """Returns the cgroup in which a group for runs can be created, or None if runs must stay in ours."""
    inside = own.relative_to(mount).parts if own.is_relative_to(mount) else ()
    if own.name.endswith(".service") or any(part.startswith(_PREFIX) for part in inside):
        return None
    for folder in (own, own.parent):
        if folder.is_relative_to(mount) and "memory" in _text(folder / _CONTROLLERS).split():
            may_move = _may_write(folder) and _may_write(folder / _PROCESSES)
            return folder if may_move and not _is_limited(own) else None
    return None


def _is_limited(own: pathlib.Path) -> bool:
    for name, usual in _UNLIMITED.items():
        found = _text(own / name)
        if found and found != usual and not (name == "cpu.max" and found.startswith("max ")):
            return True
    return False


def remove_stale(above: pathlib.Path) -> None:
    """Removes cgroups that killed processes have left behind. The kernel refuses to remove one that has processes."""
    for group in _folders(above):
        if not group.name.startswith(_PREFIX):
            continue
        for leaf in _folders(group):
            maker = _LEAF.fullmatch(leaf.name)
            if maker and not _is_alive(int(maker[1])):
                _remove_tree(leaf)
        _remove(group)


def folders_for_texts(cgroup: str, mountinfo: str) -> tuple[pathlib.Path, pathlib.Path] | None:
    """Returns the mount of cgroups and this process's own cgroup, from its `/proc` files; None if it is not visible."""
    paths = [line[3:] for line in cgroup.splitlines() if line.startswith("0::/")]
    if not paths or ".." in paths[0].split("/"):
        return None  # the cgroup is outside of this container
    for line in mountinfo.splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.split()[:1] == ["cgroup2"] and len(fields.split()) > 4:
            root, mount = (_unescaped(field) for field in fields.split()[3:5])
            if pathlib.PurePath(paths[0]).is_relative_to(root):
                return pathlib.Path(mount), pathlib.Path(mount, os.path.relpath(paths[0], root))
    return None


def memory_in(stat: str) -> int | None:
    """Returns the bytes of anonymous and shared memory in a `memory.stat`; None if they cannot be read."""
    try:
        found = dict(line.split() for line in stat.splitlines() if line.startswith(("anon ", "shmem ")))
        return int(found["anon"]) + int(found["shmem"])
    except (LookupError, ValueError):
        return None


def _unescaped(field: str) -> str:
    """Returns a field of mountinfo with its escapes resolved: a space is `\\040`."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):  # ValueError: not a valid path
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
    """Removes a cgroup, and those that the run has created below it."""
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
