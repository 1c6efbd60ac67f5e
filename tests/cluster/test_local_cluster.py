"""The cluster in this process: what it reports of jobs, and that it keeps nothing of those that have ended."""

import asyncio
import os
import pathlib
import queue
import threading
import weakref
from collections.abc import Iterator

import distributed
import pytest

from guild_dask.cluster.events import ClusterEvent, JobEnded, JobLost
from guild_dask.cluster.local import LocalCluster
from guild_dask.home import claims
from guild_dask.host import processes
from guild_dask.worker.job import NOT_STARTED, Job
from tests.support.sandbox import DEADLINE, Sandbox, wait_until


@pytest.fixture
def events() -> "queue.SimpleQueue[ClusterEvent]":
    return queue.SimpleQueue()


@pytest.fixture
def cluster(events: "queue.SimpleQueue[ClusterEvent]", user: Sandbox) -> Iterator[LocalCluster]:
    opened = LocalCluster(1, {"gpu": 1.0}, None, events.put)
    yield opened
    opened.close()


def _job(folder: pathlib.Path, run_id: str, output: str) -> Job:
    """Returns a job without a claim, whose starter therefore starts nothing."""
    me = processes.identity(os.getpid())
    assert me
    run_dir = folder / "runs" / run_id
    run_dir.mkdir(parents=True)
    claim = claims.Claim(run_id, "sss", me, me)
    return Job(str(run_dir), claim, str(folder / "claims"), str(folder), dict(os.environ), output)


def test_end_of_each_job_is_reported_and_nothing_is_kept_of_it(
    cluster: LocalCluster, events: "queue.SimpleQueue[ClusterEvent]", user: Sandbox
) -> None:
    jobs = []
    for number in range(5):
        work = _job(user.folder, f"run{number}", str(user.folder / "output"))
        jobs.append(weakref.ref(work))
        cluster.submit(work, LocalCluster.WORKER, {"gpu": 1.0})
        del work
        assert events.get(timeout=DEADLINE) == JobEnded(f"run{number}", NOT_STARTED, had_claim=False)

    def is_tidy() -> bool:
        cluster.tidy()
        opened = cluster.client.cluster
        (worker,) = opened.workers.values()
        kept = [job for job in jobs if job() is not None]
        return not (kept or cluster.client.futures or opened.scheduler.tasks or worker.state.tasks)

    wait_until(is_tidy)


def test_job_that_fails_before_it_starts_is_reported_with_the_problem(
    cluster: LocalCluster, events: "queue.SimpleQueue[ClusterEvent]", user: Sandbox
) -> None:
    cluster.submit(_job(user.folder, "aaa", "/no/such/folder/output"), LocalCluster.WORKER, {})
    ended = JobEnded("aaa", NOT_STARTED, had_claim=False, problem="No such file or directory", may_be_of_run=True)
    assert events.get(timeout=DEADLINE) == ended


def test_job_that_dask_cancels_is_reported_as_lost_at_the_next_poll(
    cluster: LocalCluster, events: "queue.SimpleQueue[ClusterEvent]", user: Sandbox
) -> None:
    # The worker has only one GPU, so the task waits until it is cancelled.
    cluster.submit(_job(user.folder, "aaa", str(user.folder / "output")), LocalCluster.WORKER, {"gpu": 7.0})
    (key,) = cluster.client.futures
    future = distributed.Future(key, cluster.client)
    future.cancel()
    wait_until(future.done)
    assert events.empty()
    cluster.tidy()
    assert events.get(timeout=DEADLINE) == JobLost("aaa", "its worker reports: its Dask task is cancelled")


def test_worker_closes_after_its_heartbeat(
    events: "queue.SimpleQueue[ClusterEvent]", user: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Dask logs a traceback for a heartbeat that finds its worker closed.
    begun = threading.Event()
    seen = []

    async def heartbeat(worker: distributed.Worker) -> None:
        begun.set()
        for _ in range(20):  # closing takes Dask fewer turns of its loop than this
            await asyncio.sleep(0.01)
            seen.append(worker.status)

    opened = LocalCluster(1, {}, None, events.put)
    (worker,) = opened.client.cluster.workers.values()
    monkeypatch.setattr(distributed.Worker, "heartbeat", heartbeat)
    worker.loop.add_callback(worker.heartbeat)
    assert begun.wait(DEADLINE)
    opened.close()
    assert seen == [distributed.Status.running] * 20
