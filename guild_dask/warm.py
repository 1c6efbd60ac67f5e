"""Starters from a template process that has Guild loaded; one template for each worker process.

Where there is none (macOS, where a fork of a loaded process is not safe) or it died, start() returns None, and the
caller starts a starter of its own.
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from guild_dask import template
from guild_dask.terms import Terms

# Guild loads NumPy, which starts a thread for each CPU unless told otherwise, and a process that forks should have one.
# These are the template's own: a starter has the environment of its run and nothing else.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


# Seconds for the template to load Guild and answer, and to end when its socket is closed. After so many failures in a
# row, starters are started without it.
_PATIENCE = 60.0
_LAST_MOMENT = 2.0
_MOST_FAILURES = 3


@dataclass(frozen=True)
class Request:
    """What a starter needs to know."""

    run_dir: str
    claim: pathlib.Path
    directory: str
    environ: Mapping[str, str]
    terms: Terms

    def encoded(self) -> bytes:
        data = {
            "run_dir": self.run_dir,
            "claim": str(self.claim),
            "directory": self.directory,
            "environ": dict(self.environ),
            "terms": self.terms.as_text(),
        }
        return json.dumps(data).encode()


class WarmStarter:
    """A starter that was forked from a template. It is not our child: its exit code comes through a pipe."""

    def __init__(self, pid: int, result: BinaryIO) -> None:
        self.pid = pid
        self._result = result

    def wait(self) -> int:
        """Returns the exit code, or minus nine if it was killed before it could tell one."""
        with self._result:
            text = self._result.read()
        return int(text) if text else -signal.SIGKILL


class Template:
    """The template process of this process, started when it is first needed."""

    def __init__(self, most_failures: int = _MOST_FAILURES) -> None:
        self._most_failures = most_failures
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._environ: Mapping[str, str] = {}
        self._failures = 0

    @property
    def pid(self) -> int:
        """Returns its process id, or 0 if there is none."""
        return self._process.pid if self._process else 0

    def prepare(self, environ: Mapping[str, str]) -> None:
        """Has the template load Guild now, so that the first run need not wait for it."""
        if sys.platform == "linux":
            with self._lock, contextlib.suppress(OSError):
                self._connection(environ)

    def start(self, request: Request, gate: int, output: int) -> WarmStarter | None:
        """Forks a starter, or returns None if there is no template to fork it from."""
        if sys.platform != "linux" or self._failures >= self._most_failures:
            return None
        result, told = os.pipe()
        try:
            with self._lock:
                pid = self._ask(request, [gate, output, told])
        except OSError:
            self._failures += 1
            self.close()
            pid = 0
        else:
            self._failures = 0
        finally:
            os.close(told)
        if not pid:
            os.close(result)
            return None
        return WarmStarter(pid, os.fdopen(result, "rb"))

    def _ask(self, request: Request, descriptors: list[int]) -> int:
        connection = self._connection(request.environ)
        body = request.encoded()
        socket.send_fds(connection, [len(body).to_bytes(8, "big")], descriptors)
        connection.sendall(body)
        answer = connection.recv(8)
        if len(answer) < 8:
            raise ConnectionResetError("the template died")
        return int.from_bytes(answer, "big")

    def _connection(self, environ: Mapping[str, str]) -> socket.socket:
        if self._socket is None or self._environ != environ:
            self._open(environ)
        assert self._socket is not None
        return self._socket

    def _open(self, environ: Mapping[str, str]) -> None:
        """Starts a template with the environment of the runs, since Guild reads some of it when it is loaded."""
        self._close()
        ours, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-u", template.__file__, str(its.fileno())],
                env={**environ, **_ONE_THREAD},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(its.fileno(),),
                start_new_session=True,
            )
        ours.settimeout(_PATIENCE)
        self._socket, self._environ = ours, environ

    def close(self) -> None:
        """Ends the template; starters that it forked go on."""
        process = self._process
        if not self._lock.acquire(timeout=_LAST_MOMENT):
            # Somebody waits for an answer that does not come.
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
            try:
                self._process.wait(_LAST_MOMENT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._socket = self._process = None
