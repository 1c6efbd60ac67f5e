"""A process that has loaded what an operation's process loads before the user's code, and forks one for each run.

It is a real `python -um guild.op_main`, started as Guild starts operations. `warm_site/sitecustomize.py` stops it where
Python asks for the code of `guild.op_main`, imports there what that code imports, and calls serve(). For each request,
the server forks a supervisor, which forks the operation; there serve() returns, and Python runs `guild.op_main` as it
does in a fresh process.

The supervisor is the operation's parent. It leads the operation's session, adopts its orphans, and reports its exit
status to the run's starter. When the starter is gone, it kills what is left of the run.

This file is executed under a name that is not in sys.modules, and imports nothing of guild-dask: an operation finds no
module that a fresh process would not have.
"""

import atexit
import builtins
import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

# A request comes with the connection to the starter, and standard input, output and error of the operation.
DESCRIPTORS = 4

# How the supervisor reports the operation's process id, and its exit status.
REPORT = struct.Struct("=q")

# How it reports what the run's processes have used: seconds of CPU, and bytes of memory.
USAGE = struct.Struct("=dq")

# Requests of a starter after the start: reap the operation, report usage.
RELEASE = b"r"
USED = b"u"

_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_PR_SET_CHILD_SUBREAPER = 36

# Signals that a job queue or a terminal sends to all processes of a run. The supervisor has to report what they did.
_OUTLIVED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

# Seconds between two looks at processes that have been killed, at most.
_LONGEST_PAUSE = 1.0

# Variables with which the forkserver starts this process, and operations do not have.
_VARIABLES = ("GUILD_DASK_WARM_SERVER", "GUILD_DASK_PRELOAD", "GUILD_DASK_WARM_OUTPUT")

_libc = ctypes.CDLL(None, use_errno=True)


def serve(descriptor: int, loaded: Collection[str], report: dict[str, Any]) -> None:
    """Forks an operation for each request. Returns in the operations' processes only.

    `loaded` are the modules that operations are to find. The report is sent to the forkserver.
    """
    requests = socket.socket(fileno=descriptor)
    home = os.getcwd()
    for name in _OWN.difference(loaded):
        del sys.modules[name]  # only this file needs them
    added = _added_variables()
    # A fresh process would change variables of its run, or other programs would not recognize the operations.
    if added is None or not _show_as(sys.orig_argv, dict(os.environ)):
        os._exit(1)
    _kept.extend((_kept, globals(), _modules))
    _modules.update(sys.modules)
    atexit.register(_spare_modules)
    gc.collect()
    gc.freeze()  # the garbage collector would touch every page, and undo copy-on-write; so it stays for operations
    names = sorted({name.partition(".")[0] for name in sys.modules})
    libraries = _of_libraries()
    if _descriptors() - {0, 1, 2, descriptor, *libraries}:
        os._exit(1)  # a file that a sitecustomize keeps open would be closed in operations
    requests.send(json.dumps({"modules": names, "pid": os.getpid(), **report}).encode())
    # Not SIG_IGN: what the kernel reaps itself is missing in the CPU time of the processes above.
    signal.signal(signal.SIGCHLD, lambda _number, _frame: _reap_supervisors())
    while True:
        try:
            request, descriptors, _, _ = socket.recv_fds(requests, 1, DESCRIPTORS)
        except OSError:
            os._exit(1)
        if not request:
            os._exit(0)  # the other end is closed
        # The kernel leaves descriptors out if this process may open no more.
        if len(descriptors) == DESCRIPTORS and _is_forked():
            try:
                requests.close()
                _begin(descriptors, home, libraries, added)
            except BaseException:  # noqa: BLE001  # nothing has begun: the starter starts a fresh process
                os._exit(1)
            return
        for each in descriptors:
            os.close(each)


def _reap_supervisors() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _begin(descriptors: Sequence[int], home: str, kept: Collection[int], added: Mapping[str, str]) -> None:
    """Returns in the operation's process, when its starter lets it begin; exits if the starter is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    order, supervisor = _supervise(descriptors)
    for target, each in enumerate(descriptors[1:]):
        os.dup2(each, target)
    _close_all_but({supervisor, *kept})
    for name in [name for name in sys.modules if name not in _modules]:
        del sys.modules[name]  # what socket has loaded to receive descriptors
    _become(order, home, added)
    os.write(supervisor, b"!")  # ready
    if not os.read(supervisor, 1):
        os._exit(1)
    os.close(supervisor)


def _is_forked() -> bool:
    try:
        return os.fork() == 0
    except OSError:
        return False  # the starter sees its connection closed, and starts a fresh process


# What the server has loaded. The list refers to itself, and the garbage collector does not look at it.
_kept: list[Any] = []
_modules: dict[str, Any] = {}


class _Spared:
    """Takes what the server has loaded out of sys.modules when Python begins to tear down all modules at its exit.

    A process that does that writes to almost every page that it shares with the server, so that the kernel has to copy
    them: that takes longer than all else in the process of an operation that does nothing. Other modules, those of the
    user, are torn down.
    """

    def __del__(self) -> None:
        if sys.is_finalizing():
            now = sys.modules
            for name, module in _modules.items():
                if name not in _TORN_DOWN and now.get(name) is module:
                    del now[name]


_TORN_DOWN = frozenset(("__main__", "builtins", "sys"))


def _spare_modules() -> None:
    """Makes Python delete an object of the class above when it begins to tear down modules: this is what it does first.

    It is called at exit, when there is no use for the name any more.
    """
    if not hasattr(builtins, "_"):
        vars(builtins)["_"] = _Spared()


# The supervisor


def _supervise(descriptors: Sequence[int]) -> tuple[dict[str, Any], int]:
    """Forks the operation and looks after it until its starter is gone. Returns in the operation's process only."""
    starter = socket.socket(fileno=descriptors[0])
    os.setsid()
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    order = _received(starter)
    operation, its = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        starter.detach()
        operation.close()
        return order, its.detach()
    its.close()
    for each in descriptors[1:]:
        os.close(each)
    for number in _OUTLIVED:
        signal.signal(number, signal.SIG_IGN)
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    _show_as(["guild-dask: supervisor", "of", "run", str(order["environ"].get("RUN_ID", ""))], {})
    with contextlib.suppress(OSError):  # the starter is gone
        if operation.recv(1):  # else it could not get ready
            starter.sendall(REPORT.pack(os.getpid()) + REPORT.pack(pid))
            _look_after(pid, starter, operation, wake)
    _kill_all()
    os._exit(0)


def _received(starter: socket.socket) -> dict[str, Any]:
    """Returns the starter's order; exits if the starter is gone."""
    text = b""
    length = REPORT.size
    while len(text) < length:
        part = starter.recv(length - len(text))
        if not part:
            os._exit(1)
        text += part
        if len(text) == REPORT.size and length == REPORT.size:
            length += REPORT.unpack(text)[0]
    order: dict[str, Any] = json.loads(text[REPORT.size :])
    return order


def _look_after(pid: int, starter: socket.socket, operation: socket.socket, wake: int) -> None:
    """Reaps the run's processes, and reports the operation's exit status, until the starter is gone.

    The operation is reaped when its starter has taken in its end. `guild stop` waits until then, and the starter can
    see that the user stopped the operation.
    """
    is_reported = is_released = False
    while True:
        exited = _reap(0 if is_released else pid)
        if exited is not None and not is_reported:
            is_reported = True
            starter.sendall(REPORT.pack(exited))
        ready, _, _ = select.select([starter.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
        if starter.fileno() in ready:
            request = starter.recv(1)
            if not request:
                return
            if request == RELEASE:
                is_released = True
            elif request == USED:
                used = resource.getrusage(resource.RUSAGE_CHILDREN)
                starter.sendall(USAGE.pack(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024))
            else:
                operation.sendall(b"!")


def _reap(spared: int) -> int | None:
    """Reaps ended processes up to the spared one, and returns its exit status once it has ended."""
    with contextlib.suppress(ChildProcessError):
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid == spared:
                return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            os.waitpid(found.si_pid, 0)
    return None


def _kill_all() -> None:
    """Kills all descendants; orphans among them become children of this process, so that none is missed."""
    pause = 0.02
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in _descendants():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        select.select([], [], [], pause)  # until the kernel has ended them: a process that waits for a disk may last
        pause = min(2 * pause, _LONGEST_PAUSE)


def _descendants() -> list[int]:
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as f:
                parents.setdefault(int(f.read().rpartition(b")")[2].split()[1]), []).append(int(name))
    found: list[int] = []
    ahead = [os.getpid()]
    while ahead:
        below = parents.get(ahead.pop(), [])
        found += below
        ahead += below
    return found


# The operation


def _become(order: dict[str, Any], home: str, added: Mapping[str, str]) -> None:
    """Gives this process all that a fresh one would have been started with, but for its descriptors."""
    os.umask(order["umask"])
    os.chdir(order["directory"])
    if any(order["environ"].get(name, value) != value for name, value in added.items()):
        raise ValueError("only a fresh process can tell which value prevails")
    os.environ.clear()
    os.environ.update(order["environ"] | added)
    time.tzset()
    arguments: list[str] = order["arguments"]
    _show_as(arguments, order["environ"])
    sys.orig_argv[:] = arguments
    sys.argv[:] = ["-m", *arguments[3:]]
    here = os.getcwd()
    sys.path[:] = [_moved(each, home, here) for each in sys.path]
    for path in [path for path in sys.path_importer_cache if _moved(path, home, here) != path]:
        del sys.path_importer_cache[path]
    logging: Any = sys.modules["logging"]
    logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()
    thread: Any = sys.modules["threading"].main_thread()
    if hasattr(thread, "_set_native_id"):
        thread._set_native_id()  # older Pythons leave the one of the process before the fork
    process: Any = sys.modules.get("multiprocessing.process")
    if process:
        process.ORIGINAL_DIR = here  # where processes that it spawns look for modules
    _draw_random_numbers()


def _added_variables() -> dict[str, str] | None:
    """Returns the variables that Python's start, a sitecustomize, or a module added.

    None if others were changed, or if one has the folder of this process, where a fresh one has its run's directory.
    """
    with open("/proc/self/environ", "rb") as f:
        pairs = [each.partition(b"=") for each in f.read().split(b"\0") if each]
    given = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    given["PYTHONPATH"] = given["PYTHONPATH"].partition(os.pathsep)[2]  # without the folder of sitecustomize.py
    for name in (*_VARIABLES, *([] if given["PYTHONPATH"] else ["PYTHONPATH"])):
        del given[name]
    if any(os.environ.get(name) != value for name, value in given.items()):
        return None
    added = {name: value for name, value in os.environ.items() if name not in given}
    return None if any(os.getcwd() in value for value in added.values()) else added


def _close_all_but(kept: Collection[int]) -> None:
    """Closes all descriptors but the standard ones and these."""
    for each in _descriptors().difference({0, 1, 2}, kept):
        os.close(each)


def _of_libraries() -> list[int]:
    """Returns the descriptors of libraries that this process runs code of.

    Where libffi is built so, it keeps its own file open, by number, to map it again for the callbacks of ctypes.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as f:
        run = {line[line.index("/") :].rstrip("\n") for line in f if "/" in line and "x" in line.split(None, 2)[1]}
    return [number for number in _descriptors() if os.readlink(f"/proc/self/fd/{number}") in run]


def _descriptors() -> set[int]:
    """Returns the descriptors that this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of this list
            os.stat(int(name))
            found.add(int(name))
    return found


def _draw_random_numbers() -> None:
    """Draws anew what modules draw when they are imported; Python itself does so for the module random."""
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random:
        numpy_random.seed()
    process: Any = sys.modules.get("multiprocessing.process")
    if process:
        process.current_process().authkey = os.urandom(32)


def _moved(path: str, home: str, here: str) -> str:
    """Returns an entry of sys.path, with the server's own folder replaced by the run's directory."""
    return here + path[len(home) :] if path == home or path.startswith(home + os.sep) else path


class _Map(ctypes.Structure):
    """The kernel's struct prctl_mm_map."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in (
            "start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack",
            "arg_start", "arg_end", "env_start", "env_end",
        )),
        ("auxv", ctypes.c_void_p),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )  # fmt: skip


def _show_as(arguments: Sequence[str], environ: dict[str, str]) -> bool:
    """Makes the kernel show this command line and environment for this process; False if it does not."""
    words = b"".join(os.fsencode(each) + b"\0" for each in arguments)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environ.items()) or b"\0"
    begin = _copied(words + variables)
    with open("/proc/self/stat", "rb") as f:
        fields = [0, 0, 0, *f.read().rpartition(b")")[2].split()]  # fields[3] is field 3 of proc(5), the state
    number = [int(each) if str(each, "ascii").lstrip("-").isdigit() else 0 for each in map(_text, fields)]
    wanted = _Map(
        number[26], number[27], number[45], number[46], number[47], _end_of_heap(), number[28],
        begin, begin + len(words), begin + len(words), begin + len(words) + len(variables),
        None, 0, 0xFFFFFFFF,
    )  # fmt: skip
    return bool(_libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(wanted), ctypes.sizeof(wanted), 0) == 0)


def _copied(data: bytes) -> int:
    """Returns the address of a copy that stays for the life of this process; Python must not free it."""
    _libc.malloc.restype = ctypes.c_void_p
    address = int(_libc.malloc(ctypes.c_size_t(len(data))) or 0)
    ctypes.memmove(address, data, len(data))
    return address


def _text(field: Any) -> bytes:
    return field if isinstance(field, bytes) else b"0"


def _end_of_heap() -> int:
    _libc.sbrk.restype = ctypes.c_void_p
    return int(_libc.sbrk(0) or 0)


_OWN = frozenset(sys.modules)
