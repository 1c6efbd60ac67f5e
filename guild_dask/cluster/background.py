"""Work that may take long, kept off the caller's thread: daemon threads, and calls to workers in Dask's event loop."""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from distributed import Client

from guild_dask.cluster.base import OpeningStopped

T = TypeVar("T")

# Seconds between two checks for a stop request.
_CHECK = 0.1


class Background:
    """Threads that call functions in the order given. A thread that hangs does not keep the process from ending."""

    def __init__(self, name: str, threads: int = 1) -> None:
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._is_closed = False
        # Not a pool of concurrent.futures: Python waits for those at exit, however long they take.
        self._threads = [
            threading.Thread(target=self._do_all, name=f"{name}-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, function: Callable[..., object], *args: object) -> bool:
        """Queues a function call for the threads; returns False if they are closed."""
        if not self._is_closed:
            self._work.put(lambda: function(*args))
        return not self._is_closed

    def _do_all(self) -> None:
        while (work := self._work.get()) is not None:
            with contextlib.suppress(Exception):  # functions report their own errors; the thread must survive
                if not self._is_closed:
                    work()

    def close(self, seconds: float = 0.0) -> None:
        """Drops the calls that have not begun, and waits at most that many seconds for the others."""
        self._is_closed = True
        until = time.monotonic() + seconds
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


def opened(
    open_it: Callable[[], T], close: Callable[[T], object], is_stopping: Callable[[], bool], patience: float = 0.0
) -> T:
    """Opens something, which may take long, and returns it; raises its error, or OpeningStopped at a stop request.

    Dask cannot cancel an opening, so it continues in a thread of its own, which ends with the process. What is opened
    within `patience` seconds after the stop request is closed.
    """
    found: Future[T] = Future()

    def attempt() -> None:
        try:
            found.set_result(open_it())
        except BaseException as e:  # noqa: BLE001  # every error is raised again below
            found.set_exception(e)

    thread = threading.Thread(target=attempt, name="opening", daemon=True)
    thread.start()
    while thread.is_alive() and not is_stopping():
        thread.join(_CHECK)
    if not is_stopping():
        return found.result()
    thread.join(patience)
    if found.done() and not found.exception():
        close(found.result())
    raise OpeningStopped


def is_connected(client: Client) -> bool:
    """Returns whether the scheduler is connected. Dask itself does not reconnect to one that was shut down."""
    stream = client.scheduler_comm
    return bool(client.status == "running" and stream is not None and not stream.closed())


def in_loop_of(client: Client, work: Coroutine[Any, Any, None]) -> "Future[None] | None":
    """Runs a coroutine in the client's event loop; returns its future, or None if the client is closed."""
    try:
        return asyncio.run_coroutine_threadsafe(work, client.loop.asyncio_loop)
    except (RuntimeError, AttributeError):
        work.close()
        return None


async def call_workers(
    client: Client, seconds: float, workers: Sequence[str], function: Callable[..., object], *args: object
) -> dict[str, Any]:
    """Calls a function on workers and returns its results by address; raises what it raised there, or a timeout.

    A worker whose node thrashes, or that was stopped by a signal, never answers.
    """
    return dict(await asyncio.wait_for(client._run(function, *args, workers=list(workers)), seconds))


async def try_to_call(
    client: Client, seconds: float, workers: Sequence[str], function: Callable[..., object], *args: object
) -> None:
    """Calls a function on workers, and ignores all errors: a worker that cannot be reached is gone, or will be."""
    with contextlib.suppress(Exception):
        await call_workers(client, seconds, workers, function, *args)
