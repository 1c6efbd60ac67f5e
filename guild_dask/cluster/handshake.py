"""The handshake with a Dask worker in another process, on this machine or another one.

Dask calls register() and unregister() in the worker's process. How a worker runs a job is in guild_dask.worker.runner.
"""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distributed import Worker, WorkerPlugin

from guild_dask import __version__
from guild_dask.cluster import gpus
from guild_dask.cluster.base import WorkerCapacity
from guild_dask.host import environment, files, processes
from guild_dask.plan.devices import GPU
from guild_dask.plan.resources import AUTO
from guild_dask.plan.troubles import CannotStartRuns, HomeNotSeen, NoAnswer, NotInstalled, OtherVersion, Refusal
from guild_dask.worker.runner import RUNNER

PLUGIN = "guild-dask"


@dataclass(frozen=True)
class WorkerInfo:
    """A worker's answer to whether it can start runs."""

    version: str
    host: str  # as in the identities of its processes
    node: str  # as users and the job queue know it
    sees_home: bool
    age: float  # seconds since its process was started
    gpus: tuple[str, ...] = ()  # the names of its GPUs, if they are to be assigned to runs
    are_gpus_of_host: bool = False  # they are not assigned to this worker: others on its host see them, too
    about_gpus: str = ""  # how they were found, if they were looked for


def problem_with(info: WorkerInfo, home: str) -> Refusal | None:
    """Returns why a worker cannot start runs of this Guild home; None if it can."""
    if info.version != __version__:
        return OtherVersion(info.version, __version__)
    return None if info.sees_home else HomeNotSeen(home)


def is_no_answer(error: Exception) -> bool:
    """Returns whether an error means that a worker has not answered, so that it must be asked again."""
    return isinstance(error, (OSError, TimeoutError, asyncio.TimeoutError)) and not _lacks_us(error)


def _lacks_us(error: Exception) -> bool:
    # Dask reports an error in unpickling our function, sometimes as text only.
    return "ModuleNotFoundError" in repr(error) and "'guild_dask" in str(error)


def problem_for_error(error: Exception) -> Refusal:
    """Returns why a worker has returned no information."""
    if _lacks_us(error):
        return NotInstalled(__version__)
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return NoAnswer()
    return CannotStartRuns(f"{type(error).__name__}: {error}")


async def register(home: str, token: str, given: Sequence[str] | None, dask_worker: Worker) -> WorkerInfo:
    """Prepares a worker that sees the Guild home to start runs, and returns what it is.

    `given` are the GPUs to be assigned, or AUTO for those that are found; None if GPUs are not assigned.
    """
    sees_home = _sees(token)
    if sees_home:
        processes.adopt_orphans()
        environ = environment.job_environment(os.environ, has_nanny=bool(dask_worker.nanny))
        RUNNER.prepare({**environ, "GUILD_HOME": home})
        if PLUGIN not in dask_worker.plugins:
            await dask_worker.plugin_add(RunsPlugin(), name=PLUGIN)
        dask_worker.plugins[PLUGIN].schedulers.add(token)
    host = socket.gethostname()
    node = os.environ.get("SLURMD_NODENAME") or host
    own = environment.job_environment(os.environ, has_nanny=bool(dask_worker.nanny))
    found = gpus.found(own) if given == (AUTO,) else None
    names = found.names if found else tuple(given or ())
    about = str(found) if found else ""
    info = WorkerInfo(__version__, host, node, sees_home, processes.age(os.getpid()), names)
    return replace(info, are_gpus_of_host=not gpus.are_assigned(own), about_gpus=about)


def capacity_for(
    address: str, about: Mapping[str, Any], info: WorkerInfo, others: Iterable[WorkerCapacity]
) -> WorkerCapacity:
    """Returns a worker's capacity: what Dask knows, and its GPUs, unless another worker has them."""
    has_other = any(other.host == info.host and other.devices for other in others)
    devices = () if info.are_gpus_of_host and has_other else info.gpus
    resources = {str(key): float(value) for key, value in about["resources"].items()}
    return WorkerCapacity(
        name=address,
        slots=int(about["nthreads"]),
        resources={**resources, GPU: float(len(devices))} if info.gpus else resources,
        host=info.host,
        devices=devices,
        label=str(about.get("name", address)),
        about_devices=info.about_gpus,
    )


def unregister(token: str, dask_worker: Worker) -> None:
    """Removes our plugin from a worker, unless it has runs or another of our schedulers uses it."""
    plugin = dask_worker.plugins.get(PLUGIN)
    if plugin:
        # A killed scheduler has not unregistered, but its token is removed sooner or later.
        plugin.schedulers = {each for each in plugin.schedulers if each != token and _sees(each)}
    if not RUNNER.running() and not (plugin and plugin.schedulers):
        dask_worker.plugins.pop(PLUGIN, None)
        RUNNER.close()


def _sees(token: str) -> bool:
    """Returns whether a scheduler's token is there. Its folder, and the home itself, may have been made just now."""
    return files.exists(token, levels=3)


class RunsPlugin(WorkerPlugin):  # type: ignore[misc]  # Dask is not typed
    """Keeps a worker that has lost its scheduler alive until its runs end; ends its runs if it is closed on request."""

    def __init__(self) -> None:
        self.schedulers: set[str] = set()  # tokens of our schedulers that may have runs for this worker

    def setup(self, worker: Worker) -> None:
        """Makes the signal that ends the worker end its runs, too: a job queue may send it to the worker only."""
        before = signal.getsignal(signal.SIGTERM)
        is_for_us = threading.current_thread() is threading.main_thread() and callable(before)
        if is_for_us and not isinstance(before, _EndRuns):
            signal.signal(signal.SIGTERM, _EndRuns(before))

    async def teardown(self, worker: Any) -> None:
        """Returns when no run is left. Dask waits for this before the process ends."""
        if not _has_lost_scheduler(worker):
            RUNNER.lose_all()
        await asyncio.get_running_loop().run_in_executor(None, RUNNER.wait_until_idle)
        RUNNER.close()


class _EndRuns:
    """A signal handler that ends the worker's runs, and then calls the previous handler."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, number: int, frame: Any) -> None:
        # In a thread, because the interrupted code may hold a lock. Python waits for the thread before the process
        # ends, and the job queue kills the remaining processes of the job only after that.
        threading.Thread(target=_end_runs, daemon=False).start()
        self._before(number, frame)


def _end_runs() -> None:
    RUNNER.lose_all()
    RUNNER.wait_until_idle()


def _has_lost_scheduler(worker: Any) -> bool:
    stream = worker.batched_stream
    return stream is None or bool(stream.closed())
