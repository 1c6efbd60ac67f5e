"""One worker on each of several hosts, started with the user's own `ssh`.

The user's configuration of ssh (names, keys, gateways) applies. Dask's scheduler is in this process.
"""

import asyncio
import contextlib
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dask.config
from distributed import SpecCluster, Status
from distributed.deploy.spec import ProcessInterface

from guild_dask.cluster.base import ClusterError, Common, WorkerCapacity
from guild_dask.cluster.dask_settings import settings_of_a_cluster
from guild_dask.cluster.local import QuietScheduler
from guild_dask.cluster.pool import WorkerPool
from guild_dask.cluster.private_worker import AS_PRIVATE, DASK_WORKER
from guild_dask.cluster.security import security_for, worker_options
from guild_dask.cluster.worker_jobs import PoolTerms
from guild_dask.settings.cluster_spec import WorkerCount
from guild_dask.settings.settings import DashboardAddress

# No prompts: keys and known hosts must be set up. A dead connection is noticed.
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15", "-T")

# Seconds that an `ssh` has to end.
_TO_END = 3

# Seconds in which a worker must have found its scheduler.
_DEATH_TIMEOUT = 60


@dataclass(frozen=True)
class Hosts:
    """The hosts to log in to, and the capacity of each."""

    names: tuple[str, ...]
    slots: int | None  # on each; None: as many as it has CPUs
    resources: Mapping[str, float]
    run_dir: str


class SSHWorker(ProcessInterface):  # type: ignore[misc]  # Dask is not typed
    """A Dask worker on another host, and the `ssh` that it was started with."""

    # host -> the ssh to it, and the last lines that it printed
    started: dict[str, tuple["asyncio.subprocess.Process", list[str]]] = {}  # noqa: RUF012  # one for the process

    def __init__(self, scheduler: str, name: str, command: list[str]) -> None:
        super().__init__(scheduler=scheduler, name=name)
        self.scheduler = scheduler
        self.name = name
        self.job_id = name
        self._command = command
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the worker. The scheduler sees whether it joins."""
        address = await asyncio.get_running_loop().run_in_executor(None, _seen_from, self.scheduler, self.name)
        remote = shlex.join([sys.executable, *AS_PRIVATE, "-m", DASK_WORKER, address, *self._command])
        process = await asyncio.create_subprocess_exec(
            *_SSH,
            self.name,
            f"exec {remote}",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        lines: list[str] = []
        self.started[self.name] = (process, lines)
        self._reading = asyncio.ensure_future(_keep_last(process, lines))
        await super().start()

    async def close(self) -> None:
        """Ends the ssh. The scheduler has already closed the worker."""
        process, _ = self.started.pop(self.name, (None, None))
        if process and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        if self._reading:
            # Python warns about pipes that are still open when this process ends.
            with contextlib.suppress(asyncio.TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(self._reading, _TO_END)
        self.status = Status.closed
        await super().close()


async def _keep_last(process: "asyncio.subprocess.Process", lines: list[str]) -> None:
    assert process.stderr
    while line := await process.stderr.readline():
        lines.append(line.decode(errors="replace").rstrip())
        del lines[:-20]
    await process.wait()


def _seen_from(address: str, host: str) -> str:
    """Returns the address of our scheduler as a host sees it: with our own address on the route to that host."""
    protocol, _, rest = address.partition("://")
    port = rest.rpartition(":")[2]
    try:
        asked = subprocess.run([*_SSH, "-G", host], capture_output=True, text=True, check=True, timeout=30).stdout
        name = next(line.split()[1] for line in asked.splitlines() if line.startswith("hostname "))
        family, kind, _, _, target = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # of a datagram socket: nothing is sent
            ours = probe.getsockname()[0]
    except (OSError, subprocess.SubprocessError, StopIteration, IndexError):
        return address
    return f"{protocol}://{f'[{ours}]' if ':' in ours else ours}:{port}"


def open_hosts(hosts: Hosts, dashboard: DashboardAddress | None, common: Common) -> WorkerPool:
    """Opens a Dask scheduler in this process for workers on other hosts; raises ClusterError if it cannot be done."""
    if not shutil.which("ssh"):
        raise ClusterError("cluster=ssh:... needs the program ssh; install OpenSSH's client")
    dask.config.set(settings_of_a_cluster())
    security, folder = security_for(hosts.run_dir)
    address = f"{dashboard.host}:{dashboard.port}" if dashboard else None
    scheduler = {
        "cls": QuietScheduler,
        "options": {
            "protocol": "tls://",
            "security": security,
            "dashboard": dashboard is not None,
            "dashboard_address": address,
            "access": common.access,
        },
    }
    options = _worker_command(hosts) + worker_options(security, folder)
    specs = {
        name: {"cls": SSHWorker, "options": {"command": [*options, "--name", name]}}
        for name in dict.fromkeys(hosts.names)
    }
    try:
        cluster = SpecCluster(scheduler=scheduler, workers={}, security=security, silence_logs=False)
    except (OSError, RuntimeError, ValueError) as e:
        raise ClusterError(f"cannot open a Dask scheduler for {len(specs)} hosts: {e}") from e
    worker = WorkerCapacity("to come", hosts.slots, hosts.resources, "") if hosts.slots else None
    count = WorkerCount(len(specs), len(specs))
    return WorkerPool(cluster, PoolTerms(worker, 1, count, _failures_of, specs, of_host=True, folder=folder), common)


def _worker_command(hosts: Hosts) -> list[str]:
    command = ["--no-nanny", "--memory-limit", "0", "--death-timeout", str(_DEATH_TIMEOUT)]
    if hosts.slots:
        command += ["--nthreads", str(hosts.slots)]
    if hosts.resources:
        amounts = ",".join(f"{name}={float(amount)!r}" for name, amount in hosts.resources.items())
        command += ["--resources", amounts]
    return command


def _failures_of(hosts: Sequence[str]) -> Mapping[str, str]:
    """Returns why workers of hosts have failed, by host."""
    found = {host: SSHWorker.started[host] for host in hosts if host in SSHWorker.started}
    return {
        host: f"ssh {host} ended with exit code {process.returncode}: {lines[-1] if lines else 'it printed nothing'}"
        for host, (process, lines) in found.items()
        if process.returncode is not None
    }
