"""The client of the forkserver, the process that forks starters. A worker process has one forkserver.

start() returns None if the forkserver died, or if there is none: on macOS, it is not safe to fork a process that has
imported so much. The caller then spawns the starter itself. If the host is short of what another process needs, start()
raises OSError: the caller would fail as well.
"""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from guild_dask.host.shortage import shortage_in
from guild_dask.worker import forkserver
from guild_dask.worker.job import KILLED, Report, report_for_text
from guild_dask.worker.options import StarterOptions

# Guild imports NumPy, which starts a thread for each CPU by default; a process that forks should have one thread only.
# These variables are the forkserver's own: a starter gets the environment of its run.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

# Seconds for the forkserver to import Guild and reply.
_REPLY_TIMEOUT = 60.0

# Seconds for the forkserver to exit when its socket is closed.
_EXIT_TIMEOUT = 2.0

# After this many failures in a row, the forkserver is not used any more.
_MOST_FAILURES = 3


@dataclass(frozen=True)
class Request:
    """What the forkserver passes on to a starter."""

    run_dir: str
    claim: pathlib.Path
    directory: str
    environ: Mapping[str, str]
    options: StarterOptions

    def encoded(self) -> bytes:
        data = {
            "run_dir": self.run_dir,
            "claim": str(self.claim),
            "directory": self.directory,
            "environ": dict(self.environ),
            "options": self.options.as_text(),
        }
        return json.dumps(data).encode()


class WarmStarter:
    """A starter that was forked by the forkserver. It is not our child: all that is known is its report."""

    def __init__(self, pid: int, reports: BinaryIO) -> None:
        self.pid = pid
        self._reports = reports

    def wait(self) -> Report:
        """Returns its report; that it was killed, if it could not send one."""
        with self._reports:
            text = self._reports.read()
        return report_for_text(text.decode("utf-8", "replace")) or Report(KILLED)


class ForkServer:
    """The forkserver of this process, started when it is first needed, or needed with another environment."""

    def __init__(self, most_failures: int = _MOST_FAILURES) -> None:
        self._most_failures = most_failures
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._environ: Mapping[str, str] = {}
        self._failures = 0
        self._is_used = False  # whether it has got a request

    @property
    def pid(self) -> int:
        """Returns its process id, or 0 if it is not running."""
        return self._process.pid if self._process else 0

    def prepare(self, environ: Mapping[str, str]) -> None:
        """Starts the forkserver now, so that the first run need not wait until it has imported Guild."""
        if sys.platform == "linux":
            with self._lock, contextlib.suppress(OSError):
                self._connection(environ)

    def start(self, request: Request, gate: int, output: int) -> WarmStarter | None:
        """Forks a starter and returns it; None if there is no forkserver to fork it from. See above for OSError."""
        if sys.platform != "linux" or self._failures >= self._most_failures:
            return None
        result, reported = os.pipe()
        try:
            with self._lock:
                pid = self._send(request, [gate, output, reported])
        except OSError as e:
            if shortage_in(e):
                os.close(result)
                raise
            self._failures += 1
            self.close()
            pid = 0
        else:
            self._failures = 0
        finally:
            os.close(reported)
        if not pid:
            os.close(result)
            return None
        return WarmStarter(pid, os.fdopen(result, "rb"))

    def _send(self, request: Request, descriptors: list[int]) -> int:
        connection = self._connection(request.environ)
        self._is_used = True
        body = request.encoded()
        socket.send_fds(connection, [len(body).to_bytes(8, "big")], descriptors)
        connection.sendall(body)
        reply = connection.recv(8)
        if len(reply) < 8:
            raise ConnectionResetError("the forkserver died")
        pid = int.from_bytes(reply, "big", signed=True)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid

    def _connection(self, environ: Mapping[str, str]) -> socket.socket:
        if self._socket is None or self._environ != environ:
            self._open(environ)
        assert self._socket is not None
        return self._socket

    def _open(self, environ: Mapping[str, str]) -> None:
        """Starts a forkserver with the environment of the runs, since Guild reads some of it on import."""
        self._close()
        ours, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-u", forkserver.__file__, str(its.fileno())],
                env={**environ, **_ONE_THREAD},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(its.fileno(),),
                start_new_session=True,
            )
        ours.settimeout(_REPLY_TIMEOUT)
        self._socket, self._environ, self._is_used = ours, environ, False

    def close(self) -> None:
        """Ends the forkserver; starters that it forked go on."""
        process = self._process
        if not self._lock.acquire(timeout=_EXIT_TIMEOUT):
            # Another thread waits for a reply that does not come.
            if process:
                process.kill()
            self._lock.acquire()
        try:
            self._close()
        finally:
            self._lock.release()

    def _close(self) -> None:
        if self._socket:
            self._socket.close()
        if self._process:
            if not self._is_used:
                self._process.kill()  # it may still import Guild, and has no starters to look after
            try:
                self._process.wait(_EXIT_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._socket = self._process = None
