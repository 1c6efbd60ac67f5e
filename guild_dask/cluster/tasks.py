"""Runs as tasks of a Dask scheduler, each on one worker and no other: sent there, told things, and settled."""

import asyncio
import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Mapping

from distributed import Client, Future

from guild_dask import job
from guild_dask.cluster.background import in_loop_of, told
from guild_dask.cluster.events import ClusterEvent, JobAdrift, JobEnded, JobLost

log = logging.getLogger("guild")

# Seconds for a worker to be told something, and to say how a run ended.
_WORD = 30.0
_RESULT = 20.0


class Tasks:
    """The tasks that have not been settled or given up."""

    def __init__(self, report: Callable[[ClusterEvent], object]) -> None:
        self._report = report
        self._futures: dict[str, tuple[str, Future]] = {}  # run id -> worker and future
        self._count = itertools.count()  # no two submissions have the same key
        self._lock = threading.Lock()

    def submit(self, client: Client, work: job.Job, worker: str, resources: Mapping[str, float]) -> bool:
        """Sends a job to a worker; an event tells its end. False, with an event, if it cannot be sent."""
        run_id = work.run_id
        try:
            future = client.submit(
                job.run,
                work,
                key=f"guild-run-{run_id}-{work.claim.attempt}-{next(self._count)}",
                workers=[worker],
                allow_other_workers=False,
                resources=dict(resources),
                pure=False,
                retries=0,
            )
        except Exception as e:  # noqa: BLE001  # nothing was sent, whatever Dask says
            self._report(JobLost(run_id, f"the Dask cluster does not take it: {e}"))
            return False
        with self._lock:
            self._futures[run_id] = (worker, future)
        # Not in the one thread that Dask has for such calls: what waits there holds up the ends of all runs.
        future.add_done_callback(lambda done: in_loop_of(client, self._settle(client, run_id, done)))
        return True

    async def _settle(self, client: Client, run_id: str, future: Future) -> None:
        """Reports how a task ended, unless it was given up meanwhile."""
        event = await _end_of(client, run_id, future)
        with self._lock:
            if self._futures.get(run_id, ("", None))[1] is not future:
                return
            del self._futures[run_id]
        self._report(event)
        _release(future)

    def give_up(self, worker: str) -> list[str]:
        """Forgets the tasks of a worker that is gone, and returns their runs, which may go on."""
        with self._lock:
            lost = [run_id for run_id, (where, _) in self._futures.items() if where == worker]
            futures = [self._futures.pop(run_id)[1] for run_id in lost]
        for future in futures:
            _release(future)
        return lost

    def tell(self, client: Client, function: Callable[[str], None], run_id: str) -> None:
        """Has a function called for a run by its worker."""
        with self._lock:
            worker = self._futures.get(run_id, ("", None))[0]
        if worker:
            in_loop_of(client, told(client, _WORD, [worker], function, run_id))


async def _end_of(client: Client, run_id: str, future: Future) -> JobEnded | JobLost | JobAdrift:
    error = await future._exception() if future.status == "error" else None
    if isinstance(error, (OSError, ValueError, ImportError)):
        # These come from the job itself, on a worker that is well.
        return JobLost(run_id, f"its worker says: {error}")
    ended = await _fetched(client, run_id, future) if future.status == "finished" else None
    if ended is None:
        return JobAdrift(run_id, f"its Dask task is {future.status}, and its worker does not say how the run ended")
    return JobEnded(run_id, ended.exit_code, ended.had_claim)


async def _fetched(client: Client, run_id: str, future: Future) -> job.Ended | None:
    """Returns what a task has returned, which is still with its worker; None if that does not hand it out."""
    try:
        # Not Dask's own future.result(): all of these share one call, which hangs for all of them if a worker has just
        # died, and cannot be given up without harm to those to come.
        answer = await asyncio.wait_for(client.scheduler.gather(keys=[future.key]), _RESULT)
        ended: job.Ended = answer["data"][future.key]
    except Exception as e:  # noqa: BLE001  # Dask has many, for a worker or a scheduler that is gone
        log.debug("Cannot fetch how the task of run %s ended: %r", run_id, e)
        return None
    return ended


def _release(future: Future) -> None:
    with contextlib.suppress(Exception):  # Dask has several for a scheduler that is gone
        future.release()
