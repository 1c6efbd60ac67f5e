"""A Dask scheduler and workers in processes of their own, as another user might have started them."""

import contextlib
import json
import pathlib
import shlex
from collections.abc import Iterator, Sequence

from tests.support.sandbox import Guild, Sandbox, Started, wait_until
from tests.systems.hosts import Host

# Without a nanny, a worker is one process, which a test can kill.
_WORKER = "--nthreads 1 --no-nanny --no-dashboard"


class DaskProcesses:
    """A Dask scheduler, and its workers."""

    def __init__(self, user: Sandbox, stack: contextlib.ExitStack, address: str) -> None:
        self._user = user
        self._stack = stack
        self._host = address
        self.file = user.root / "scheduler.json"
        self.start_scheduler()

    def start_scheduler(self) -> None:
        """Starts the Dask scheduler, or another one with the same file."""
        self.file.unlink(missing_ok=True)
        options = f"--host {self._host} --port 0 --dashboard-address 127.0.0.1:0 --scheduler-file {self.file}"
        self.scheduler = self._stack.enter_context(_dask(self._user).started(f"scheduler {options}"))
        wait_until(self._has_address, describe=self.scheduler.so_far)

    def _has_address(self) -> bool:
        return self.file.exists() and self.file.read_text().endswith("}")

    @property
    def address(self) -> str:
        """Returns the scheduler's address."""
        return str(json.loads(self.file.read_text())["address"])

    def start_worker(self, name: str, options: str = "", host: Host | None = None) -> Started:
        """Starts a worker, on this machine or another host, and waits until the Dask scheduler knows it."""
        place = self._user.root / f"scratch-{name}"
        command = f"worker {self.address} --name {name} {_WORKER} --local-directory {shlex.quote(str(place))} {options}"
        worker = self._stack.enter_context(_dask(self._user, host).started(command))
        worker.wait_for_output("Registered to")
        return worker


@contextlib.contextmanager
def dask_processes(user: Sandbox, address: str = "127.0.0.1") -> Iterator[DaskProcesses]:
    """Yields a Dask scheduler that listens there, without workers."""
    with contextlib.ExitStack() as stack:
        yield DaskProcesses(user, stack, address)


def _dask(user: Sandbox, host: Host | None = None) -> Guild:
    prefix: Sequence[str] = host.command("dask") if host else ("dask",)
    return Guild(pathlib.Path(user.root), prefix)
