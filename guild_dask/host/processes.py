"""Processes of this host: identities, whether they are alive, their descendants, sessions and environments."""

import contextlib
import ctypes
import functools
import os
import pathlib
import signal
import socket
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from guild_dask.host import shortage

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class ProcessIdentity:
    """Identifies a process uniquely: pids are reused, but not with the same start time, boot and host."""

    pid: int
    started: float
    boot: str
    host: str

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def identity(pid: int) -> ProcessIdentity | None:
    """Returns the identity of a process of this host, or None if it does not exist."""
    started = _start_time(pid)
    return None if started is None else ProcessIdentity(pid, started, boot_id(), socket.gethostname())


def is_alive(process: ProcessIdentity) -> bool | None:
    """Returns whether the process is alive; None if it is on another host, or in another container's pid namespace."""
    if process.host != socket.gethostname():
        return None
    if process.boot != boot_id():
        # The same boot with another pid namespace, such as that of a container.
        is_hidden = process.boot.partition("/")[0] == boot_id().partition("/")[0]
        return None if is_hidden else False
    return _start_time(process.pid) == process.started


def is_still_there(process: ProcessIdentity) -> bool:
    """Returns whether a process of this host is alive, even if the host has been renamed."""
    return _start_time(process.pid) == process.started


def is_of_this_boot(process: ProcessIdentity) -> bool:
    """Returns whether the process, dead or alive, was started on this host since its last boot."""
    return process.host == socket.gethostname() and process.boot == boot_id()


@functools.cache
def boot_id() -> str:
    """Returns an id of this boot of the machine and of this process's pid namespace."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return str(int(psutil.boot_time()))


def _start_time(pid: int) -> float | None:
    """Returns when the process started, by a clock that never jumps; None for a dead process.

    Raises OSError if that cannot be seen, as with too many open files: such a process is not dead.
    """
    try:
        if sys.platform == "linux":
            # The process's name, in parentheses, may contain spaces. After it come the state and other fields; field 22
            # is the start time in ticks since boot.
            fields = pathlib.Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            return None if fields[0] in (b"Z", b"X") else float(fields[19])
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except (FileNotFoundError, ProcessLookupError, IndexError, ValueError, psutil.Error):
        return None


def age(pid: int) -> float:
    """Returns the seconds since a process was started; 0 if it does not exist."""
    try:
        return float(max(0.0, time.time() - psutil.Process(pid).create_time()))
    except psutil.Error:
        return 0.0


def adopt_orphans() -> None:
    """Makes orphaned descendants children of this process instead of init's, if the kernel can do that.

    descendants() then finds all of them, whatever session or process group they are in.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_adopted(own: Container[int]) -> None:
    """Reaps dead adopted processes, which stay zombies until then.

    `own` are the children that other code in this process waits for, and whose exit codes it needs.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(ChildProcessError):
        while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if dead.si_pid in own:
                return
            os.waitpid(dead.si_pid, os.WNOHANG)


class Reaper:
    """Reaps dead adopted processes in a process whose other parts start children, too, and wait for them.

    Such a part reads the exit code of its child as soon as the child has died. So only a process that has been dead
    for some seconds is reaped. May be called from one thread at a time.
    """

    def __init__(self, patience: float = 5.0) -> None:
        self._patience = patience
        self._dead: dict[int, float] = {}  # since when a child was seen to be dead

    def reap(self, own: Container[int]) -> None:
        """Reaps what is left of adopted processes, but for those of `own`, whose exit codes are needed."""
        if sys.platform != "linux":
            return
        now = time.monotonic()
        self._dead = {pid: self._dead.get(pid, now) for pid in _dead_children() if pid not in own}
        for pid in [pid for pid, since in self._dead.items() if now - since >= self._patience]:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _dead_children() -> list[int]:
    """Returns the children of this process that are dead and not reaped. Without any, this is a single system call."""
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return []
        return [each.pid for each in psutil.Process().children() if not _is_running(each)]
    except (ChildProcessError, psutil.Error):
        return []


def has_children() -> bool:
    """Returns whether this process has a child, alive or not yet reaped. This is a single system call."""
    if sys.platform != "linux":
        return bool(descendants(os.getpid()))
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def descendants(pid: int) -> list[psutil.Process]:
    """Returns all living descendants of a process, parents before their children."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except (psutil.Error, ValueError):  # ValueError: not a valid pid
        return []
    return [process for process in found if _is_running(process)]


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def is_below(pid: int, ancestor: int) -> bool:
    """Returns whether a process descends from another one."""
    return ancestor in ancestors(pid)


def ancestors(pid: int) -> list[int]:
    """Returns the pids of the processes that a process descends from, its parent first."""
    try:
        return [parent.pid for parent in psutil.Process(pid).parents()]
    except (psutil.Error, ValueError):
        return []


def leaves(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Returns the processes that have no child among the given ones."""
    processes = list(processes)
    parents = {_parent(process) for process in processes}
    return [process for process in processes if process.pid not in parents]


def children(processes: Iterable[psutil.Process], pid: int) -> list[psutil.Process]:
    """Returns the processes whose parent is the given one."""
    return [process for process in processes if _parent(process) == pid]


def _parent(process: psutil.Process) -> int | None:
    try:
        return int(process.ppid())
    except psutil.Error:
        return None


def name(process: psutil.Process) -> str:
    """Returns the name of a process, or "?" if it does not exist any more."""
    try:
        return str(process.name())
    except psutil.Error:
        return "?"


@dataclass(frozen=True)
class Command:
    """What a process was started as."""

    words: Sequence[str]
    environ: Mapping[str, str]
    directory: str  # in which it is now


def commands_of_user() -> Iterator[Command]:
    """Yields the command of each process of this process's user."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.uids().real == os.getuid():
                yield Command(process.cmdline(), process.environ(), process.cwd())


def session(pid: int) -> int | None:
    """Returns the session of a process, or None if it does not exist."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def variable_of(pid: int, name: str) -> str | None:
    """Returns a variable of the environment that a process was started with; None if it is not set or not visible.

    Raises OSError if this host is short of what is needed to read it.
    """
    try:
        value: str | None = psutil.Process(pid).environ().get(name)
    except (psutil.Error, ValueError):
        return None
    except OSError as e:
        if e.errno in shortage.ERRORS:
            raise
        return None
    return value


def all_where(fits: Callable[[int], bool]) -> Iterator[psutil.Process]:
    """Yields the living processes whose pid fits."""
    for each in psutil.process_iter():
        if fits(each.pid) and _is_running(each):
            yield each


def in_session(number: int) -> list[psutil.Process]:
    """Returns the processes of a session, including orphans."""
    found = []
    for pid in psutil.pids():
        if session(pid) == number:
            with contextlib.suppress(psutil.Error):
                found.append(psutil.Process(pid))
    return found


def exists_in_session(number: int) -> bool:
    """Returns whether a session has a living process."""
    return any(_start_time(process.pid) is not None for process in in_session(number))


def send(process: psutil.Process, number: signal.Signals) -> None:
    """Sends a signal to a process, unless its pid has been reused."""
    with contextlib.suppress(psutil.Error, OSError):
        process.send_signal(number)
