"""What may take time, so that nobody waits for it: threads, and calls to workers that need none."""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from distributed import Client

from guild_dask.cluster.kinds import OpeningStopped

T = TypeVar("T")

# Seconds between two looks whether the user has asked the scheduler to stop.
_LOOK = 0.1


class Background:
    """Threads that do what they are given, in that order. One that hangs keeps nobody from the process's end."""

    def __init__(self, name: str, threads: int = 1) -> None:
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._is_closed = False
        # Python waits at its exit for the threads of its own pools, whatever these wait for.
        self._threads = [
            threading.Thread(target=self._do_all, name=f"{name}-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, function: Callable[..., object], *args: object) -> bool:
        """Has a function called in one of the threads, as soon as one is free; tells whether it will be."""
        if not self._is_closed:
            self._work.put(lambda: function(*args))
        return not self._is_closed

    def _do_all(self) -> None:
        while (work := self._work.get()) is not None:
            with contextlib.suppress(Exception):  # what matters is told by the function; the thread is there for others
                if not self._is_closed:
                    work()

    def close(self, seconds: float = 0.0) -> None:
        """Leaves undone what was not begun, and waits for the rest, no longer than so many seconds."""
        self._is_closed = True
        until = time.monotonic() + seconds
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


def opened(
    open_it: Callable[[], T], close: Callable[[T], object], is_stopping: Callable[[], bool], patience: float = 0.0
) -> T:
    """Returns what is opened, which may take long; raises what that raised, or OpeningStopped when asked to stop.

    What comes after that, within so many seconds, is closed. Dask cannot be told to give up, so it goes on in a thread
    of its own, which ends with the process.
    """
    found: Future[T] = Future()

    def attempt() -> None:
        try:
            found.set_result(open_it())
        except BaseException as e:  # noqa: BLE001  # whatever it is, it is raised below
            found.set_exception(e)

    thread = threading.Thread(target=attempt, name="opening", daemon=True)
    thread.start()
    while thread.is_alive() and not is_stopping():
        thread.join(_LOOK)
    if not is_stopping():
        return found.result()
    thread.join(patience)
    if found.done() and not found.exception():
        close(found.result())
    raise OpeningStopped


def is_connected(client: Client) -> bool:
    """Tells whether the scheduler is there. Dask itself does not try to find one again that was shut down."""
    stream = client.scheduler_comm
    return bool(client.status == "running" and stream is not None and not stream.closed())


def in_loop_of(client: Client, work: Coroutine[Any, Any, None]) -> "Future[None] | None":
    """Has Dask's own thread do the work beside all else that it does; returns None if the client is closed."""
    try:
        return asyncio.run_coroutine_threadsafe(work, client.loop.asyncio_loop)
    except (RuntimeError, AttributeError):
        work.close()
        return None


async def answers(
    client: Client, seconds: float, workers: Sequence[str], function: Callable[..., object], *args: object
) -> dict[str, Any]:
    """Returns what workers say to a function, by address; raises what it raised there, or an error if one is silent.

    A worker whose node thrashes, or that was stopped by a signal, is silent for ever.
    """
    return dict(await asyncio.wait_for(client._run(function, *args, workers=list(workers)), seconds))


async def told(
    client: Client, seconds: float, workers: Sequence[str], function: Callable[..., object], *args: object
) -> None:
    """Tells workers something, and takes no notice of those that cannot be told: they are gone, or will be."""
    with contextlib.suppress(Exception):
        await answers(client, seconds, workers, function, *args)
