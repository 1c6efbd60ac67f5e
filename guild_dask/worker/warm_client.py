"""Warm servers, as the forkserver starts them, and the processes of operations, as a starter gets them from one.

The forkserver starts a warm server for a kind of operation when a starter asks for one, and hands all servers that are
ready on to the starters that it forks. A starter that finds none for its operation starts a fresh process.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from guild_dask.worker import warm_kind
from guild_dask.worker.warm_kind import Kind
from guild_dask.worker.warm_server import REPORT, USAGE

# The most kinds of operations for which a forkserver has warm servers.
MOST_SERVERS = 4

# Seconds for a warm server and a supervisor to reply. A starter that has given up does not let the operation begin.
_REPLY_TIMEOUT = 10.0

# Bytes of a message: a wish has a whole environment.
_LONGEST = 1 << 20

_SITE = os.path.join(os.path.dirname(__file__), "warm_site")


@dataclass
class _Server:
    process: "subprocess.Popen[bytes]"
    connection: socket.socket
    modules: frozenset[str] | None = None  # the top-level modules that it has loaded; None: it is not ready yet


class WarmServers:
    """The warm servers of one forkserver. Its starters inherit it."""

    def __init__(self, folder: str | None = None) -> None:
        self._servers: dict[Kind, _Server] = {}
        self._folder = folder  # an empty folder, in place of a run's directory; None: made with the first server
        self._wishes, self._wish = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._wish.setblocking(False)

    # In the forkserver

    @property
    def watched(self) -> list[socket.socket]:
        """Returns the sockets to wait for."""
        return [self._wishes, *(each.connection for each in self._servers.values() if each.modules is None)]

    def handle(self, ready: socket.socket) -> None:
        """Takes in what one of the watched sockets has."""
        if ready is self._wishes:
            with contextlib.suppress(OSError, ValueError):
                self._start(json.loads(self._wishes.recv(_LONGEST)))
            return
        for kind, server in list(self._servers.items()):
            if server.connection is ready:
                self._take_in(kind, server)

    def _start(self, wish: dict[str, Any]) -> None:
        environ = wish["environ"]
        kind = warm_kind.kind_for(wish["arguments"], environ, sys.executable)
        if kind is None or kind in self._servers or len(self._servers) >= MOST_SERVERS:
            return
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._folder = self._folder or tempfile.mkdtemp(prefix="guild-dask-")
        given = warm_kind.variables_for_server(environ)
        path = os.pathsep.join(each for each in (_SITE, given.get("PYTHONPATH", "")) if each)
        own = {"GUILD_DASK_WARM_SERVER": str(its.fileno())}
        with its:
            process = subprocess.Popen(
                wish["arguments"][:3],
                env={**given, "PYTHONPATH": path, **own},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(its.fileno(),),
            )
        self._servers[kind] = _Server(process, ours)

    def _take_in(self, kind: Kind, server: _Server) -> None:
        try:
            server.modules = frozenset(json.loads(server.connection.recv(_LONGEST)))
        except (OSError, ValueError):  # it died; operations of this kind start as fresh processes from now on
            server.modules = frozenset()
            server.connection.close()

    def close(self) -> None:
        """Ends the servers; operations that they have forked go on."""
        for server in self._servers.values():
            server.connection.close()
        if self._folder:
            with contextlib.suppress(OSError):
                os.rmdir(self._folder)

    # In a starter

    def forked(
        self, arguments: Sequence[str], environ: Mapping[str, str], directory: str, descriptors: Sequence[int]
    ) -> "WarmProcess | None":
        """Returns the process of an operation, which waits to begin; None if a fresh process must be started."""
        kind = warm_kind.kind_for(arguments, environ, sys.executable)
        if kind is None:
            return None
        server = self._servers.get(kind)
        if server is None:
            self._ask_for_server(arguments, environ)
            return None
        if not server.modules or _has_shadows(directory, environ, server.modules):
            return None
        try:
            return _request(server.connection, arguments, environ, directory, descriptors)
        except (OSError, ValueError):
            return None

    def _ask_for_server(self, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        wish = {"arguments": list(arguments[:3]), "environ": dict(environ)}
        with contextlib.suppress(OSError):
            self._wish.send(json.dumps(wish).encode())


def _has_shadows(directory: str, environ: Mapping[str, str], loaded: frozenset[str]) -> bool:
    """Tells whether the run has a module of its own in place of one that the server has loaded."""
    for folder in (os.path.join(directory, each) for each in warm_kind.relative_folders(environ)):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = warm_kind.shadows(os.listdir(folder), loaded)
            if any("." in name or _is_package(os.path.join(folder, name)) for name in found):
                return True
    return False


def _is_package(path: str) -> bool:
    return os.path.isdir(path) and any(name.startswith("__init__.") for name in os.listdir(path))


def _request(
    server: socket.socket,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    directory: str,
    descriptors: Sequence[int],
) -> "WarmProcess":
    ours, its = socket.socketpair()
    ours.settimeout(_REPLY_TIMEOUT)
    try:
        with its:
            socket.send_fds(server, [b"!"], [its.fileno(), *descriptors])
        umask = os.umask(0o22)
        os.umask(umask)
        order = {"arguments": list(arguments), "environ": dict(environ), "directory": directory, "umask": umask}
        text = json.dumps(order).encode()
        ours.sendall(REPORT.pack(len(text)) + text)
        supervisor, pid = _read(ours, REPORT.size), _read(ours, REPORT.size)
        return WarmProcess(REPORT.unpack(supervisor)[0], REPORT.unpack(pid)[0], ours)
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

    def __init__(self, supervisor: int, pid: int, connection: socket.socket) -> None:
        self.supervisor = supervisor
        self.pid = pid
        self._connection = connection
        self._lock = threading.Lock()
        self._status: int | None = None
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
                    # The supervisor was killed. The operation goes with it: nobody would see its end.
                    self.is_lost = True
                    with contextlib.suppress(OSError):
                        os.kill(self.pid, signal.SIGKILL)
                    self._status = -signal.SIGKILL
            return self._status

    @property
    def has_exited(self) -> bool:
        """Tells whether the operation has ended. Takes no lock, so that a signal handler may ask."""
        if self._status is not None:
            return True
        with contextlib.suppress(OSError, ValueError):
            return bool(select.select([self._connection], [], [], 0)[0])
        return False

    def usage(self) -> tuple[float, int]:
        """Returns the CPU seconds of the run's processes that have ended, and the largest memory of one, in bytes."""
        with self._lock, contextlib.suppress(OSError):
            self._connection.settimeout(_REPLY_TIMEOUT)
            self._connection.sendall(b"u")
            seconds, memory = USAGE.unpack(_read(self._connection, USAGE.size))
            return seconds, int(memory)
        return 0.0, 0

    def close(self) -> None:
        """Ends the supervisor, and what is left of the run."""
        self._connection.close()
