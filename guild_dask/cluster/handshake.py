"""What we do in the process of a Dask worker that is not the scheduler's own, here or on another machine.

The scheduler has these functions run there, by Dask. All else that a worker does for a run is in guild_dask.runner.
"""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Container, Iterable, Mapping, Sequence
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

# Dask counts resources as floats for as long as a worker lives. It is asked for this much less than the plan has found
# to be free, so that a rounding error of its own does not hold back a run.
_LESS = 1 - 1e-6


@dataclass(frozen=True)
class Card:
    """What a worker says of itself when it is asked whether it can start runs."""

    version: str
    host: str  # as processes of it say it
    node: str  # as its users know it
    sees_home: bool
    age: float  # seconds since its process was started
    gpus: tuple[str, ...] = ()  # that it has, by name, if they are to be given out
    are_gpus_of_host: bool = False  # nobody has said that they are this worker's; others on its host see them, too


def problem_with(card: Card, home: str) -> Refusal | None:
    """Returns why a worker cannot start runs of this Guild home; None if it can."""
    if card.version != __version__:
        return OtherVersion(card.version, __version__)
    return None if card.sees_home else HomeNotSeen(home)


def is_silence(error: Exception) -> bool:
    """Tells whether a worker has given no answer, so that it is to be asked again."""
    return isinstance(error, (OSError, TimeoutError, asyncio.TimeoutError)) and not _lacks_us(error)


def _lacks_us(error: Exception) -> bool:
    # Dask passes on what went wrong while it unpacked what we sent, some of it as text.
    return "ModuleNotFoundError" in repr(error) and "'guild_dask" in str(error)


def problem_of_stranger(error: Exception) -> Refusal:
    """Returns why a worker has no card."""
    if _lacks_us(error):
        return NotInstalled(__version__)
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return NoAnswer()
    return CannotStartRuns(f"{type(error).__name__}: {error}")


async def welcome(home: str, token: str, given: Sequence[str] | None, dask_worker: Worker) -> Card:
    """Returns the worker's card; if it sees the Guild home, it is ready to start runs afterwards.

    `given` are the GPUs to be given out, or AUTO for those that are found; None for none.
    """
    sees_home = _sees(token)
    if sees_home:
        processes.adopt_orphans()
        environ = environment.job_environment(os.environ, has_nanny=bool(dask_worker.nanny))
        RUNNER.prepare({**environ, "GUILD_HOME": home})
        if PLUGIN not in dask_worker.plugins:
            await dask_worker.plugin_add(RunsKeeper(), name=PLUGIN)
        dask_worker.plugins[PLUGIN].schedulers.add(token)
    host = socket.gethostname()
    node = os.environ.get("SLURMD_NODENAME") or host
    own = environment.job_environment(os.environ, has_nanny=bool(dask_worker.nanny))
    names = gpus.found(own) if given == (AUTO,) else given or ()
    card = Card(__version__, host, node, sees_home, processes.age(os.getpid()), tuple(names))
    return replace(card, are_gpus_of_host=not gpus.are_assigned(own))


def capacity_for(
    address: str, about: Mapping[str, Any], card: Card, others: Iterable[WorkerCapacity]
) -> WorkerCapacity:
    """Returns what a worker has: what Dask knows, and the GPUs on its card, unless another on its host has them."""
    has_other = any(other.host == card.host and other.devices for other in others)
    devices = () if card.are_gpus_of_host and has_other else card.gpus
    resources = {str(key): float(value) for key, value in about["resources"].items()}
    return WorkerCapacity(
        name=address,
        slots=int(about["nthreads"]),
        resources={**resources, GPU: float(len(devices))} if card.gpus else resources,
        host=card.host,
        devices=devices,
        label=str(about.get("name", address)),
    )


def farewell(token: str, dask_worker: Worker) -> None:
    """Lets a worker that is left to others forget about us, unless another scheduler of ours may have runs for it."""
    keeper = dask_worker.plugins.get(PLUGIN)
    if keeper:
        # Those that were killed have said nothing; their tokens are gone, or will be soon.
        keeper.schedulers = {each for each in keeper.schedulers if each != token and _sees(each)}
    if not RUNNER.running() and not (keeper and keeper.schedulers):
        dask_worker.plugins.pop(PLUGIN, None)
        RUNNER.close()


def _sees(token: str) -> bool:
    """Tells whether a scheduler's token is there. Its folder, and the home itself, may have been made just now."""
    return files.exists(token, levels=3)


def known_to_dask(asks: Mapping[str, float], defined: Container[str]) -> dict[str, float]:
    """Returns what Dask is to set aside: it waits for ever for what it does not know that its worker has."""
    return {name: float(amount) * _LESS for name, amount in asks.items() if amount > 0 and name in defined}


class RunsKeeper(WorkerPlugin):  # type: ignore[misc]  # Dask is not typed
    """Keeps a worker that has lost its scheduler alive for its runs, and ends its runs when it is told to close."""

    def __init__(self) -> None:
        self.schedulers: set[str] = set()  # of ours, that may have runs for this worker: their tokens

    def setup(self, worker: Worker) -> None:
        """Has the signal that ends the worker end its runs, too: a job queue may send it to the worker alone."""
        before = signal.getsignal(signal.SIGTERM)
        is_for_us = threading.current_thread() is threading.main_thread() and callable(before)
        if is_for_us and not isinstance(before, _EndRuns):
            signal.signal(signal.SIGTERM, _EndRuns(before))

    async def teardown(self, worker: Any) -> None:
        """Returns when no run is left. Dask waits for that, and the process ends after it."""
        if not _has_lost_scheduler(worker):
            RUNNER.lose_all()
        await asyncio.get_running_loop().run_in_executor(None, RUNNER.wait_until_idle)
        RUNNER.close()


class _EndRuns:
    """A signal handler that ends the worker's runs, and does what the one before it did."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, number: int, frame: Any) -> None:
        # In a thread, because what was interrupted may hold a lock. Python waits for it before the process ends, and
        # the job queue kills what is left of the job only after that.
        threading.Thread(target=_end_runs, daemon=False).start()
        self._before(number, frame)


def _end_runs() -> None:
    RUNNER.lose_all()
    RUNNER.wait_until_idle()


def _has_lost_scheduler(worker: Any) -> bool:
    stream = worker.batched_stream
    return stream is None or bool(stream.closed())
