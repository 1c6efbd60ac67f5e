"""Runs as tasks of a Dask scheduler, each pinned to one worker: submitted, signalled and settled."""

import asyncio
import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Container, Mapping

from distributed import Client, Future

from guild_dask.cluster.background import in_loop_of, try_to_call
from guild_dask.cluster.events import ClusterEvent, JobEnded, JobLost, JobUnseen, job_ended
from guild_dask.worker import runner
from guild_dask.worker.job import Ended, Job

log = logging.getLogger("guild")

# Seconds for a call to a worker.
_CALL = 30.0

# Dask adds and subtracts a worker's resources as floats for as long as the worker exists. A task requests a little less
# than the plan has found free, so that a rounding error of Dask's cannot delay it.
_LESS = 1 - 1e-6


def known_to_dask(requests: Mapping[str, float], defined: Container[str]) -> dict[str, float]:
    """Returns the requests that Dask can meet: it waits for ever for a resource that the worker does not define."""
    return {name: float(amount) * _LESS for name, amount in requests.items() if amount > 0 and name in defined}


class Tasks:
    """The tasks that are neither settled nor given up."""

    def __init__(self, report: Callable[[ClusterEvent], object], result_timeout: float) -> None:
        self._report = report
        self._result_timeout = result_timeout  # seconds to fetch how a run ended
        self._futures: dict[str, tuple[str, Future]] = {}  # run id -> worker and future
        self._count = itertools.count()  # no two submissions have the same key
        self._lock = threading.Lock()

    def submit(self, client: Client, work: Job, worker: str, resources: Mapping[str, float]) -> bool:
        """Submits a job to a worker; an event reports its end. Returns False if it is not accepted."""
        run_id = work.run_id
        try:
            future = client.submit(
                runner.run,
                work,
                key=f"guild-run-{run_id}-{work.claim.attempt}-{next(self._count)}",
                workers=[worker],
                allow_other_workers=False,
                resources=dict(resources),
                pure=False,
                retries=0,
            )
        except Exception as e:  # noqa: BLE001  # whatever Dask raises, nothing was submitted
            self._report(JobLost(run_id, f"the Dask cluster does not accept it: {e}"))
            return False
        with self._lock:
            self._futures[run_id] = (worker, future)
        # Not in the one thread that Dask has for callbacks: waiting there would delay the ends of all runs.
        future.add_done_callback(lambda done: in_loop_of(client, self._settle(client, run_id, done)))
        return True

    async def _settle(self, client: Client, run_id: str, future: Future) -> None:
        """Reports how a task ended, unless it was given up meanwhile."""
        event = await _end_of(client, run_id, future, self._result_timeout)
        with self._lock:
            if self._futures.get(run_id, ("", None))[1] is not future:
                return
            del self._futures[run_id]
        self._report(event)
        _release(future)

    def give_up(self, worker: str) -> list[str]:
        """Forgets the tasks of a lost worker, and returns their run ids. The runs may still be running."""
        with self._lock:
            lost = [run_id for run_id, (where, _) in self._futures.items() if where == worker]
            futures = [self._futures.pop(run_id)[1] for run_id in lost]
        for future in futures:
            _release(future)
        return lost

    def call(self, client: Client, function: Callable[[str], None], run_id: str) -> None:
        """Calls a function with the run's id on the run's worker."""
        with self._lock:
            worker = self._futures.get(run_id, ("", None))[0]
        if worker:
            in_loop_of(client, try_to_call(client, _CALL, [worker], function, run_id))


async def _end_of(client: Client, run_id: str, future: Future, timeout: float) -> JobEnded | JobLost | JobUnseen:
    error = await future._exception() if future.status == "error" else None
    if isinstance(error, (OSError, ValueError, ImportError)):
        # The job itself raised these, on a working worker.
        return JobLost(run_id, f"its worker reports: {error}")
    ended = await _fetched(client, run_id, future, timeout) if future.status == "finished" else None
    if ended is None:
        return JobUnseen(run_id, f"its Dask task is {future.status}, and its worker does not report how the run ended")
    return job_ended(run_id, ended)


async def _fetched(client: Client, run_id: str, future: Future, timeout: float) -> Ended | None:
    """Returns the result of a task, which is still on its worker; None if it cannot be fetched."""
    try:
        # Not Dask's own future.result(): all results share one call, which hangs for all of them if one worker has just
        # died, and which cannot be cancelled without breaking later calls.
        answer = await asyncio.wait_for(client.scheduler.gather(keys=[future.key]), timeout)
        ended: Ended = answer["data"][future.key]
    except Exception as e:  # noqa: BLE001  # Dask has many, for a worker or a scheduler that is gone
        log.debug("Cannot fetch how the task of run %s ended: %r", run_id, e)
        return None
    return ended


def _release(future: Future) -> None:
    with contextlib.suppress(Exception):  # Dask has several for a scheduler that is gone
        future.release()
