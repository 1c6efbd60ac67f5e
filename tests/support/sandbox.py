"""A new user for each test, commands run as that user, and waiting for conditions."""

import contextlib
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import psutil

from tests.support import account

T = TypeVar("T")

PROJECT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = PROJECT / "examples"

# Much longer than anything takes on an idle machine: only a bug, not load, may miss a deadline.
DEADLINE = 60.0
LONGEST_COMMAND = 120.0

# Seconds between checks of a condition.
_LOOK = 0.1

# Variables that are passed on from the developer's environment. Others (DASK_*, GUILD_*, PYTHON*, ...) would make tests
# differ between machines.
_HANDED_ON = ("LD_LIBRARY_PATH", "LOGNAME", "SHELL", "TMPDIR", "TZ", "USER")


# With this variable, schedulers start no run warm; `pytest --cold` sets it for all users.
COLD: Mapping[str, str] = {"DASK_GUILD_DASK__WARM": "no"}


def is_cold(user: "Sandbox") -> bool:
    """Returns whether no run of a user starts warm."""
    return COLD.items() <= user.environ.items()


class Finished(NamedTuple):
    """An ended command, with its standard output and error in the order in which they were written."""

    command: str
    exit_code: int | None  # None: it timed out and was killed
    output: str

    def __str__(self) -> str:
        return f"$ {self.command}\n{self.output}<exit {self.exit_code}>"


@dataclass(frozen=True)
class Sandbox:
    """A user of the project with an empty home, an empty Guild home and an empty folder to work in."""

    root: pathlib.Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def home(self) -> pathlib.Path:
        return self.root / "home"

    @property
    def guild_home(self) -> pathlib.Path:
        return self.root / "guild-home"

    @property
    def folder(self) -> pathlib.Path:
        return self.root / "folder"

    @property
    def environ(self) -> dict[str, str]:
        """Returns the user's environment, in which `guild` and `python` are those of the running interpreter."""
        handed_on = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
        path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))
        own = {"PATH": path, "HOME": str(self.home), "GUILD_HOME": str(self.guild_home)}
        return {**handed_on, **own, **self.variables}

    def processes(self) -> list[psutil.Process]:
        """Returns the live processes with this Guild home in their environment."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.pid != os.getpid() and bool(process.environ().get("GUILD_HOME") == str(self.guild_home))
        except (psutil.Error, OSError):
            return False  # it has ended, or is another user's

    def end_processes(self) -> None:
        """Kills the remaining processes, until there are none: a process may start others before it is killed."""

        def none_is_left() -> bool:
            left = self.processes()
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            return not left

        wait_until(none_is_left, describe=lambda: described(self.processes()))


@contextlib.contextmanager
def sandbox(root: pathlib.Path, variables: Mapping[str, str] | None = None, patience: float = 10) -> Iterator[Sandbox]:
    """Yields a sandbox. Processes that outlive it are killed, and are an error unless the test failed before.

    They have a few seconds to end by themselves.
    """
    box = Sandbox(root, variables or {})
    for folder in (box.home, box.guild_home, box.folder):
        folder.mkdir()
    account.give(root, box.home, box.guild_home, box.folder)
    try:
        yield box
        wait_until(lambda: not box.processes(), patience, lambda: f"the end of\n{described(box.processes())}\n")
    finally:
        box.end_processes()


def described(processes: Sequence[psutil.Process]) -> str:
    """Returns one line for each process, to find out where it came from."""
    lines = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            lines.append(f"  pid {process.pid}: {shlex.join(process.cmdline())}")
    return "\n".join(lines) or "  none"


def run_command(
    command: str | Sequence[str],
    environ: Mapping[str, str],
    folder: pathlib.Path | str,
    timeout: float = LONGEST_COMMAND,
) -> Finished:
    """Runs a command (a text through the shell), and returns its result. Does not end processes that it leaves."""
    text = command if isinstance(command, str) else shlex.join(command)
    # Into a file: with a pipe, this would wait for background processes that inherit it.
    with tempfile.TemporaryFile() as output:
        process = _start(command, environ, folder, output.fileno())
        try:
            exit_code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            exit_code = None
        output.seek(0)
        return Finished(text, exit_code, output.read().decode(errors="backslashreplace"))


def _start(
    command: str | Sequence[str], environ: Mapping[str, str], folder: pathlib.Path | str, output: int
) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command,
        shell=isinstance(command, str),
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def free_port() -> int:
    """Returns a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(
    predicate: Callable[[], T], timeout: float = DEADLINE, describe: str | Callable[[], object] = "the condition"
) -> T:
    """Returns the first true value of the predicate; after the timeout, fails with a description of the state."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            seen = describe() if callable(describe) else describe
            raise AssertionError(f"after {timeout:g} seconds, not yet: {seen} (last value: {value!r})")
        time.sleep(_LOOK)


class Started:
    """A Guild command that runs beside the test."""

    def __init__(
        self,
        command: str,
        environ: Mapping[str, str],
        folder: str,
        output: pathlib.Path,
        prefix: Sequence[str] = ("guild",),
    ) -> None:
        self.command = command
        self._output = output
        with output.open("wb") as f:
            self._process = _start([*prefix, *shlex.split(command)], environ, folder, f.fileno())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        """Returns its output so far."""
        return self._output.read_text(errors="backslashreplace")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to its processes, as a terminal does for Ctrl-C."""
        os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kills it if it has not ended."""
        if self.is_running:
            self.signal(signal.SIGKILL)
        self._process.wait()

    def wait_for_output(self, text: str, timeout: float = DEADLINE) -> None:
        """Waits until it has printed that text."""
        wait_until(lambda: text in self.output, timeout, lambda: f"{text!r} in the output of {self.so_far()}")

    def wait(self, timeout: float = DEADLINE) -> Finished:
        """Waits for its end."""
        wait_until(lambda: not self.is_running, timeout, lambda: f"the end of {self.so_far()}")
        return self.so_far()

    def so_far(self) -> Finished:
        """Returns its result as if it had ended now."""
        return Finished(f"guild {self.command}", self._process.poll(), self.output)


class Guild:
    """Runs Guild commands in the environment and folder of this process, which a fixture has set up.

    With another prefix, it runs other commands, or runs them on another host.
    """

    def __init__(self, outputs: pathlib.Path, prefix: Sequence[str] = ()) -> None:
        self._outputs = outputs
        self._prefix = prefix or account.as_user("guild")
        self._count = 0

    def __call__(self, command: str, *, exit_code: int | None = 0, timeout: float = LONGEST_COMMAND) -> Finished:
        """Runs `guild COMMAND` to its end; fails if its exit code differs from the expected one (None: any)."""
        finished = run_command([*self._prefix, *shlex.split(command)], os.environ, os.getcwd(), timeout)
        if finished.exit_code is None:
            raise AssertionError(f"did not end within {timeout:g} seconds: {finished}")
        if exit_code is not None and finished.exit_code != exit_code:
            raise AssertionError(f"expected exit code {exit_code}:\n{finished}")
        return finished

    @contextlib.contextmanager
    def started(self, command: str) -> Iterator[Started]:
        """Runs `guild COMMAND` while the block runs; then sends a signal to stop it, and waits for its end."""
        process = Started(command, os.environ, os.getcwd(), self._next_output(), self._prefix)
        try:
            yield process
            if process.is_running:
                process.signal(signal.SIGTERM)
                process.wait()
        finally:
            process.kill()

    def _next_output(self) -> pathlib.Path:
        self._count += 1
        return self._outputs / f"output-{id(self):x}-{self._count}"
