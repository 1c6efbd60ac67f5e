"""What we do in the process of a Dask worker that is not the scheduler's own, here or on another machine.

The scheduler has these functions run there, by Dask. All else that a worker does for a run is in guild_dask.job.
"""

import asyncio
import os
import socket
from dataclasses import dataclass
from typing import Any

from distributed import Worker, WorkerPlugin

from guild_dask import __version__, environment, job, processes

PLUGIN = "guild-dask"


@dataclass(frozen=True)
class Card:
    """What a worker says of itself when it is asked whether it can start runs."""

    version: str
    host: str  # as processes of it say it
    node: str  # as its users know it
    sees_home: bool
    age: float  # seconds since its process was started


def problem_with(card: Card, home: str) -> str | None:
    """Returns why a worker cannot start runs of this Guild home, and what to do; None if it can."""
    if card.version != __version__:
        return (
            f"has guild-dask {card.version}, and this is {__version__}: "
            f"install guild-dask {__version__} in the environment of the worker"
        )
    if not card.sees_home:
        return f"does not see the Guild home {home}: set GUILD_HOME to a folder that all hosts share"
    return None


def problem_of_stranger(error: Exception) -> str:
    """Returns why a worker has no card, and what to do."""
    # Dask passes on what went wrong while it unpacked what we sent, some of it as text.
    if "ModuleNotFoundError" in repr(error) and "'guild_dask" in str(error):
        return f"does not have guild-dask: install guild-dask {__version__} in the environment of the worker"
    return f"cannot start runs ({type(error).__name__}: {error}): see the log of the worker"


async def welcome(home: str, token: str, dask_worker: Worker) -> Card:
    """Returns the worker's card; if it sees the Guild home, it is ready to start runs afterwards."""
    sees_home = os.path.exists(token)
    if sees_home:
        processes.adopt_orphans()
        environ = environment.job_environment(os.environ, has_nanny=bool(dask_worker.nanny))
        job.prepare({**environ, "GUILD_HOME": home})
        if PLUGIN not in dask_worker.plugins:
            await dask_worker.plugin_add(RunsKeeper(), name=PLUGIN)
    host = socket.gethostname()
    return Card(__version__, host, os.environ.get("SLURMD_NODENAME") or host, sees_home, processes.age(os.getpid()))


def farewell(dask_worker: Worker) -> None:
    """Lets a worker that is left to others forget about us, unless it has runs of another scheduler of ours."""
    if not job.running():
        dask_worker.plugins.pop(PLUGIN, None)
        job.close()


class RunsKeeper(WorkerPlugin):  # type: ignore[misc]  # Dask is not typed
    """Keeps a worker that has lost its scheduler alive for its runs, and ends its runs when it is told to close."""

    def setup(self, worker: Worker) -> None:
        """Has nothing to do."""

    async def teardown(self, worker: Any) -> None:
        """Returns when no run is left. Dask waits for that, and the process ends after it."""
        if not _has_lost_scheduler(worker):
            job.lose_all()
        await asyncio.get_running_loop().run_in_executor(None, job.wait_until_idle)
        job.close()


def _has_lost_scheduler(worker: Any) -> bool:
    stream = worker.batched_stream
    return stream is None or bool(stream.closed())
