"""Warm servers, as the forkserver starts them, and the processes of operations, as a starter gets them from one.

The forkserver starts a warm server for a kind of operation when a starter requests one. The starter waits for it: it is
ready as soon as a fresh process would be, and other starters need not load anything. The starters that the forkserver
forks later have the servers that are ready. If there is no server, the starter starts a fresh process. kind_for()
decides which operations may share a server.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from guild_dask.home.process_start import NOT_RECORDED, WARM, ProcessStart
from guild_dask.host.private_folders import private_folder
from guild_dask.worker.warm_server import RELEASE, REPORT, USAGE, USED

# The most kinds of operations for which a forkserver has warm servers.
MOST_SERVERS = 4

# Seconds for a warm server and a supervisor to reply. A starter that has given up does not let the operation begin.
_REPLY_TIMEOUT = 10.0

# Bytes of a message: a request has a whole environment.
_LONGEST = 1 << 20

# Seconds for which a run waits for a warm server, without and with modules of the user's choice to load. Runs that ask
# for it later than that after its start do not wait: they are fresh processes until it is ready.
_PATIENCE = 30.0
_PRELOAD_PATIENCE = 600.0

# How often servers of one kind may die before no other is started.
_MOST_FAILURES = 3

# The modules of a server that there is not.
_NONE: frozenset[str] = frozenset()

_SITE = os.path.join(os.path.dirname(__file__), "warm_site")

# How Guild starts an operation that is a Python module or script.
_COMMAND = ("-um", "guild.op_main")

# Variables that Python, the linker, the C library, or the modules that a warm server loads, read at their start.
_READ_EARLY = ("PYTHON", "LD_", "LC_", "MALLOC_", "GUILD_", "LOG_", "NO_")
_READ_EARLY_BY_NAME = frozenset(("GLIBC_TUNABLES", "HOME", "LANG", "LANGUAGE", "PATH", "SHELL", "VIRTUAL_ENV"))

# Variables that differ between runs of one operation.
_OF_RUNS = frozenset((
    "CMD_DIR", "FLAGS_DEST", "GUILD_DASK_ATTEMPT", "GUILD_OP", "GUILD_SOURCECODE", "PROJECT_DIR", "PWD", "RUN_DIR",
    "RUN_ID", "SCRIPT_DIR",
))  # fmt: skip
_FLAG = "FLAG_"

# The devices of a run. Modules read them when they first use a device; one that uses a device when it is imported is
# not preloaded.
_DEVICES = frozenset(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"))

# Variables that ask for a profiler, a debugger, or another measurement from the first instruction on.
_OBSERVED_BY = (
    "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG", "COV_CORE_SOURCE", "PDB_BREAKS", "PROFILE", "PYTHONDEVMODE",
    "PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME", "PYTHONTRACEMALLOC", "PYTHONVERBOSE",
)  # fmt: skip

# Modules that Python imports at its start, if they are there.
_CUSTOM = frozenset(("sitecustomize", "usercustomize"))


@dataclass(frozen=True)
class Kind:
    """All that the process of an operation depends on before the user's code begins, beside its run."""

    python: str  # as the command names it, which is what `sys.executable` says
    environ: tuple[tuple[str, str], ...]
    preload: tuple[str, ...] = ()  # modules of the user's choice that its server has loaded, too


def kind_for(
    arguments: Sequence[str], environ: Mapping[str, str], python: str, preload: Sequence[str] = ()
) -> Kind | None:
    """Returns the kind of an operation's process, or None if it must be started as a fresh one."""
    if tuple(arguments[1:3]) != _COMMAND or any(environ.get(name) for name in _OBSERVED_BY):
        return None
    if not _is_same_python(arguments[0], python):
        return None
    if any(os.path.normpath(each).startswith(os.pardir) for each in _entries(environ)):
        return None  # a folder beside the run's directory, which a server has in another place
    if environ.get("PYTHONHASHSEED") == "random":
        return None  # the user wants another seed for each process
    # A preloaded module may have read any variable when it was imported.
    given = {name: value for name, value in variables_for_server(environ).items() if preload or _is_read_early(name)}
    return Kind(arguments[0], tuple(sorted(given.items())), tuple(preload))


def _is_same_python(path: str, other: str) -> bool:
    """Returns whether two paths lead to one interpreter of one environment.

    An environment has its interpreter under several names: where it is activated, Guild starts operations with
    `python`, while the scheduler itself may have been started with `python3`. Environments that share an interpreter
    have a folder each, with links to it.
    """
    if path == other:
        return True
    folders = {os.path.realpath(os.path.dirname(each)) for each in (path, other)}
    return len(folders) == 1 and os.path.realpath(path) == os.path.realpath(other)


def _is_read_early(name: str) -> bool:
    return name.startswith(_READ_EARLY) or name in _READ_EARLY_BY_NAME


def variables_for_server(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a warm server, given that of an operation: without what belongs to one run."""
    left_out = _OF_RUNS | _DEVICES
    return {name: value for name, value in environ.items() if name not in left_out and not name.startswith(_FLAG)}


def folders_of_run(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Returns the folders from which a run imports modules, and its server does not; they may be relative to the run's.

    Guild puts the folder of a main module such as `src/train`, and SCRIPT_DIR, before those of installed packages.
    """
    entries = ["", *_entries(environ)]
    package = arguments[3].rpartition("/")[0] if len(arguments) > 3 else ""
    of_main = [os.path.join(each, package) for each in entries] if package else []
    of_script = [environ["SCRIPT_DIR"]] if environ.get("SCRIPT_DIR") else []
    return [*(each for each in entries if not os.path.isabs(each)), *of_main, *of_script]


def _entries(environ: Mapping[str, str]) -> list[str]:
    return [each for each in environ.get("PYTHONPATH", "").split(os.pathsep) if each]


def shadows(names: Collection[str], loaded: Collection[str]) -> list[str]:
    """Returns the files and folders that would be imported instead of a module that the server has loaded.

    A folder counts only if it is a package; the caller checks that.
    """
    taken = {*loaded, *_CUSTOM}
    return [name for name in names if _is_module(name) and _module(name) in taken]


def _is_module(name: str) -> bool:
    return "." not in name or name.endswith((".py", ".pyc", ".so"))


def _module(name: str) -> str:
    return name.partition(".")[0]


@dataclass
class _Server:
    """A warm server. Starters have those that were ready when they were forked, and those that they have requested."""

    connection: socket.socket
    modules: frozenset[str] | None = None  # the top-level modules that it has loaded; None: it is not ready yet
    start: ProcessStart = NOT_RECORDED  # of its operations, without the seconds that each takes
    # The modules that it was to load beside Guild's, and has not, each with the reason.
    refused: dict[str, str] = field(default_factory=dict)
    is_reported: bool = False  # a starter has been told what was refused, to report it
    pid: int = 0

    def as_text(self) -> str:
        data = {"modules": sorted(self.modules or ()), "start": asdict(self.start), "refused": self.refused}
        return json.dumps(data)


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """Opens a pipe, and closes both of its ends."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for each in ends:
            os.close(each)


def _server_for_text(text: bytes, connection: socket.socket) -> _Server:
    data = json.loads(text)
    return _Server(connection, frozenset(data["modules"]), ProcessStart(**data["start"]), data["refused"])


def _remove(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)


@dataclass
class _Starting:
    """A warm server that the forkserver has started, and the starters that wait for it."""

    begun: float  # by the monotonic clock
    folder: str  # an empty one that no other user can write to, in place of a run's directory
    waiting: list[socket.socket] = field(default_factory=list)


class WarmServers:
    """The warm servers of one forkserver. Its starters inherit it."""

    def __init__(self, patience: float = _PATIENCE, preload_patience: float = _PRELOAD_PATIENCE) -> None:
        self._servers: dict[Kind, _Server] = {}
        self._starting: dict[Kind, _Starting] = {}  # those in _servers that are not ready yet
        self._failures: dict[Kind, int] = {}
        self._patience = patience
        self._preload_patience = preload_patience
        self._requests, self._request_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._request_socket.setblocking(False)

    # In the forkserver

    @property
    def watched(self) -> list[socket.socket]:
        """Returns the sockets to wait for."""
        return [self._requests, *(each.connection for each in self._servers.values() if each.modules != _NONE)]

    def handle(self, ready: socket.socket) -> None:
        """Takes in what one of the watched sockets has."""
        if ready is self._requests:
            with contextlib.suppress(OSError, ValueError):
                self._take_request()
            return
        for kind, server in list(self._servers.items()):
            if server.connection is ready:
                self._take_in(kind, server)

    def _take_request(self) -> None:
        text, descriptors, _, _ = socket.recv_fds(self._requests, _LONGEST, 1)
        if not descriptors:
            return
        starter = socket.socket(fileno=descriptors[0])
        request = json.loads(text)
        kind = kind_for(request["arguments"], request["environ"], sys.executable, request["preload"])
        if kind and kind not in self._servers and len(self._servers) < MOST_SERVERS:
            self._start(kind, request)
        starting = self._starting.get(kind) if kind else None
        if kind and starting and time.monotonic() < starting.begun + self._patience_for(kind.preload):
            starting.waiting.append(starter)
        else:
            self._reply(self._servers.get(kind) if kind else None, starter)

    def _start(self, kind: Kind, request: dict[str, Any]) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        folder = tempfile.mkdtemp(prefix="warm-", dir=private_folder())
        given = variables_for_server(request["environ"])
        path = os.pathsep.join(each for each in (_SITE, given.get("PYTHONPATH", "")) if each)
        own = {"GUILD_DASK_WARM_SERVER": str(its.fileno()), "GUILD_DASK_PRELOAD": ",".join(kind.preload)}
        begun = time.monotonic()
        # Pipes, as operations have: Python looks at its start whether it can seek in its standard output.
        with its, _pipe() as (reading, writing):
            try:
                subprocess.Popen(
                    request["arguments"][:3],
                    env={**given, "PYTHONPATH": path, "GUILD_DASK_WARM_OUTPUT": str(reading), **own},
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=writing,
                    stderr=writing,
                    pass_fds=(its.fileno(), reading),
                )
            except OSError:
                _remove(folder)
                raise
        self._servers[kind] = _Server(ours)
        self._starting[kind] = _Starting(begun, folder)

    def _patience_for(self, preload: Sequence[str]) -> float:
        return self._preload_patience if preload else self._patience

    def _take_in(self, kind: Kind, server: _Server) -> None:
        """Takes in that a server is ready, or has died."""
        starting = self._starting.pop(kind, None)
        if starting:
            _remove(starting.folder)  # it has loaded all that it loads
        try:
            report = json.loads(server.connection.recv(_LONGEST))
        except (OSError, ValueError):
            report = {}
        if starting and report:
            server.modules, server.refused = frozenset(report["modules"]), report["refused"]
            server.pid = report["pid"]
            guild, everything = report["times"]
            preload = everything - guild if kind.preload else 0.0
            server.start = ProcessStart(WARM, fresh=guild - starting.begun, preload=preload)
        else:
            self._discard(kind, server, was_ready=starting is None)
        for starter in starting.waiting if starting else ():
            self._reply(server, starter)

    def _discard(self, kind: Kind, server: _Server, was_ready: bool) -> None:
        server.connection.close()
        self._failures[kind] = self._failures.get(kind, 0) + 1
        if was_ready and self._failures[kind] < _MOST_FAILURES:
            del self._servers[kind]  # something has killed it; the next starter asks for another
        else:
            server.modules = _NONE  # operations of this kind start as fresh processes from now on

    @staticmethod
    def _reply(server: _Server | None, starter: socket.socket) -> None:
        """Hands a server on. The first starter that gets it reports what the server was to preload and has not."""
        with starter, contextlib.suppress(OSError):
            if server and server.modules:
                text = b"" if server.is_reported else b"!"
                socket.send_fds(starter, [text + server.as_text().encode()], [server.connection.fileno()])
                server.is_reported = True

    def close(self) -> None:
        """Ends the servers; operations that they have forked go on."""
        for server in self._servers.values():
            with contextlib.suppress(OSError):
                server.connection.shutdown(socket.SHUT_WR)  # starters have copies of the descriptor
            if server.pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(server.pid, 0)  # so that its CPU time counts as ours
            server.connection.close()
        for starting in self._starting.values():
            _remove(starting.folder)
        self._requests.close()
        self._request_socket.close()

    # In a starter

    def inherit(self) -> None:
        """Closes what other starters and servers wait for: they must see it if the forkserver dies."""
        self._requests.close()
        for kind, starting in self._starting.items():
            self._servers.pop(kind).connection.close()
            for each in starting.waiting:
                each.close()

    def await_server(self, arguments: Sequence[str], environ: Mapping[str, str], preload: Sequence[str]) -> list[str]:
        """Waits until there is a warm server for an operation, or is known to be none.

        Returns what is to be reported: the modules that were to be preloaded and are not, to the first that asks.
        """
        kind = kind_for(arguments, environ, sys.executable, preload)
        if kind is None or (kind in self._servers and self._servers[kind].modules is not None):
            return []
        request = {"arguments": list(arguments[:3]), "environ": dict(environ), "preload": list(preload)}
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with ours:
                with its:
                    socket.send_fds(self._request_socket, [json.dumps(request).encode()], [its.fileno()])
                ours.settimeout(self._patience_for(preload))
                text, descriptors, _, _ = socket.recv_fds(ours, _LONGEST, 1)
                if descriptors:
                    server = _server_for_text(text.lstrip(b"!"), socket.socket(fileno=descriptors[0]))
                    self._servers[kind] = server
                    return [f"{name}: {why}" for name, why in server.refused.items()] if text.startswith(b"!") else []
        except TimeoutError:
            return [f"{', '.join(preload or ['guild'])}: not loaded within {self._patience_for(preload):g} s"]
        except (OSError, ValueError):
            pass
        return []

    def forked(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        directory: str,
        descriptors: Sequence[int],
        preload: Sequence[str] = (),
    ) -> "WarmProcess | None":
        """Returns the process of an operation, which waits to begin; None if a fresh process must be started."""
        kind = kind_for(arguments, environ, sys.executable, preload)
        server = self._servers.get(kind) if kind else None
        if server is None or not server.modules:
            return None
        try:
            folders = (os.path.join(directory, each) for each in folders_of_run(arguments, environ))
            if _have_shadows(folders, server.modules):
                return None
            return _request_process(server, arguments, environ, directory, descriptors)
        except (OSError, ValueError):
            return None


def _have_shadows(folders: Iterable[str], loaded: frozenset[str]) -> bool:
    """Returns whether the run's folders have a module of its own in place of one that the server has loaded.

    Raises OSError if that cannot be seen: one may be an archive.
    """
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):
            found = shadows(os.listdir(folder), loaded)
            if any("." in name or _is_package(os.path.join(folder, name)) for name in found):
                return True
    return False


def _is_package(path: str) -> bool:
    return os.path.isdir(path) and any(name.startswith("__init__.") for name in os.listdir(path))


def _request_process(
    server: _Server,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    directory: str,
    descriptors: Sequence[int],
) -> "WarmProcess":
    begun = time.monotonic()
    ours, its = socket.socketpair()
    ours.settimeout(_REPLY_TIMEOUT)
    try:
        with its:
            socket.send_fds(server.connection, [b"!"], [its.fileno(), *descriptors])
        umask = os.umask(0o22)
        os.umask(umask)
        order = {"arguments": list(arguments), "environ": dict(environ), "directory": directory, "umask": umask}
        text = json.dumps(order).encode()
        ours.sendall(REPORT.pack(len(text)) + text)
        supervisor, pid = _read(ours, REPORT.size), _read(ours, REPORT.size)
        start = replace(server.start, seconds=time.monotonic() - begun)
        pids = REPORT.unpack(supervisor)[0], REPORT.unpack(pid)[0]
        return WarmProcess(*pids, ours, start, tuple(server.refused))
    except (OSError, ValueError):
        ours.close()
        raise


def _read(connection: socket.socket, length: int) -> bytes:
    text = b""
    while len(text) < length:
        part = connection.recv(length - len(text))
        if not part:
            raise ConnectionResetError("the supervisor is gone")
        text += part
    return text


class WarmProcess:
    """The process of an operation, whose parent is its supervisor. Every method may be called from any thread."""

    def __init__(
        self,
        supervisor: int,
        pid: int,
        connection: socket.socket,
        start: ProcessStart = NOT_RECORDED,
        not_preloaded: tuple[str, ...] = (),
    ) -> None:
        self.supervisor = supervisor
        self.pid = pid
        self.start = start
        self.not_preloaded = not_preloaded
        self._connection = connection
        self._lock = threading.Lock()
        self._status: int | None = None
        self._is_released = False
        self.is_lost = False  # its supervisor was killed

    def begin(self) -> None:
        """Lets the operation begin; raises OSError if its supervisor is gone."""
        self._connection.settimeout(None)
        self._connection.sendall(b"!")

    def wait(self, timeout: float | None = None) -> int | None:
        """Returns the exit status; None if the time is over before the operation."""
        with self._lock:
            if self._status is None:
                self._connection.settimeout(timeout)
                try:
                    self._status = REPORT.unpack(_read(self._connection, REPORT.size))[0]
                except (BlockingIOError, TimeoutError):
                    return None
                except OSError:
                    # The supervisor was killed. Kill the operation, too: its end could not be recorded.
                    self.is_lost = True
                    with contextlib.suppress(OSError):
                        os.kill(self.pid, signal.SIGKILL)
                    self._status = -signal.SIGKILL
            return self._status

    def release(self) -> None:
        """Lets the supervisor reap the ended operation; `guild stop` waits for that."""
        with self._lock, contextlib.suppress(OSError):
            if not self._is_released:
                self._is_released = True
                self._connection.sendall(RELEASE)

    def await_reaping(self) -> None:
        """Waits until the operation, which has been released, is reaped: its supervisor does that before it replies."""
        self.usage()

    @property
    def has_exited(self) -> bool:
        """Returns whether the operation has ended. Takes no lock, so that a signal handler may ask."""
        if self._status is not None:
            return True
        with contextlib.suppress(OSError, ValueError):
            return bool(select.select([self._connection], [], [], 0)[0])
        return False

    def usage(self) -> tuple[float, int]:
        """Returns the CPU seconds of the run's processes that have ended, and the largest memory of one, in bytes.

        Zeros before the exit status has been read, which could come in place of the reply.
        """
        if self._status is None:
            return 0.0, 0
        with self._lock, contextlib.suppress(OSError):
            self._connection.settimeout(_REPLY_TIMEOUT)
            self._connection.sendall(USED)
            seconds, memory = USAGE.unpack(_read(self._connection, USAGE.size))
            return seconds, int(memory)
        return 0.0, 0

    def close(self) -> None:
        """Ends the supervisor, and what is left of the run."""
        self._connection.close()
