"""The place for searches beside the workers: it takes none of their slots, and reports how its jobs end."""

import os
import pathlib
import queue
from collections.abc import Iterator

import pytest

from guild_dask.cluster.events import ClusterEvent, JobEnded
from guild_dask.cluster.local import LocalCluster
from guild_dask.cluster.search_worker import NAME, WithSearchWorker
from guild_dask.home import claims
from guild_dask.host import processes
from guild_dask.plan.capacity import SEARCH
from guild_dask.worker.job import NOT_STARTED, Job
from tests.support.sandbox import DEADLINE, Sandbox


@pytest.fixture
def events() -> "queue.SimpleQueue[ClusterEvent]":
    return queue.SimpleQueue()


@pytest.fixture
def cluster(events: "queue.SimpleQueue[ClusterEvent]", user: Sandbox) -> Iterator[WithSearchWorker]:
    opened = WithSearchWorker(LocalCluster(1, {}, None, events.put), events.put)
    yield opened
    opened.close()


def _job(folder: pathlib.Path, run_id: str) -> Job:
    """Returns a job without a claim, whose starter therefore starts nothing."""
    me = processes.identity(os.getpid())
    assert me
    run_dir = folder / "runs" / run_id
    run_dir.mkdir(parents=True)
    claim = claims.Claim(run_id, "sss", me, me)
    output = str(folder / "output")
    return Job(str(run_dir), claim, str(folder / "claims"), str(folder), dict(os.environ), output)


def test_search_worker_is_one_more_worker_for_searches_only(cluster: WithSearchWorker) -> None:
    workers = {worker.name: worker for worker in cluster.workers()}
    assert [name for name, worker in workers.items() if SEARCH in worker.resources] == [NAME]
    assert sum(worker.slots for name, worker in workers.items() if name != NAME) == 1
    assert cluster.most_waiting == 0, "it is no worker to come"


def test_end_of_a_job_on_the_head_is_reported_and_leaves_nothing(
    cluster: WithSearchWorker, events: "queue.SimpleQueue[ClusterEvent]", user: Sandbox
) -> None:
    for name in ("one", "two"):
        cluster.submit(_job(user.folder, name), NAME, {SEARCH: 1.0})
        assert events.get(timeout=DEADLINE) == JobEnded(name, NOT_STARTED, had_claim=False)
    cluster.submit(_job(user.folder, "three"), LocalCluster.WORKER, {})
    assert events.get(timeout=DEADLINE) == JobEnded("three", NOT_STARTED, had_claim=False)
    cluster.stop("one")  # a job that has ended is nobody's
    cluster.tidy()
