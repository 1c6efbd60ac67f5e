"""Several pools as one cluster."""

import os
import pathlib
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client, LocalCluster

from guild_dask.cluster import existing, opening
from guild_dask.cluster.base import Common, Timeouts, WorkerCapacity
from guild_dask.cluster.composite import CompositeCluster, RunsOfPools
from guild_dask.cluster.events import ClusterEvent, JobEnded, JobLost, JobUnseen, WorkersChanged
from guild_dask.home import claims
from guild_dask.host import processes
from guild_dask.settings.cluster_spec import cluster_for_text
from guild_dask.settings.settings import Settings
from guild_dask.worker.job import Job
from tests.support.sandbox import wait_until


class _Pool:
    """A cluster to which nothing is sent."""

    def __init__(self) -> None:
        self.calls: list[str] = []

        self.here: list[WorkerCapacity] = []

    def workers(self) -> list[WorkerCapacity]:
        return self.here

    def submit(self, work: Job, *_args: object) -> None:
        self.calls.append(work.run_id)

    def stop(self, run_id: str) -> None:
        self.calls.append(run_id)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


@pytest.mark.parametrize("last", [JobEnded("aaa", 0), JobLost("aaa", "gone"), JobUnseen("aaa", "gone")])
def test_ended_run_is_forgotten(last: ClusterEvent) -> None:
    events: list[ClusterEvent] = []
    runs = RunsOfPools(events.append)
    pool, other = _Pool(), _Pool()
    composite = CompositeCluster({"a": other, "b": pool}, runs)
    runs.note("aaa", pool)
    runs.report(WorkersChanged())
    composite.stop("aaa")
    runs.report(last)
    composite.stop("aaa")
    assert (pool.calls, other.calls) == (["aaa"], [])
    assert events == [WorkersChanged(), last]


def test_run_goes_to_the_pool_of_its_worker_even_if_that_has_left() -> None:
    # The worker has left since the plan was made. Its pool reports what happens to the run.
    me = processes.identity(os.getpid())
    assert me
    local, queue = _Pool(), _Pool()
    composite = CompositeCluster({"local": local, "queue": queue}, RunsOfPools(lambda _: None))
    queue.here = [WorkerCapacity("tcp://node:1", 1, {}, "node")]
    composite.workers()
    queue.here = []
    for _ in range(3):
        composite.workers()
    claim = claims.Claim("aaa", "sss", me, me)
    composite.submit(Job("run", claim, "claims", "folder", None, "output"), "tcp://node:1", {})
    assert (local.calls, queue.calls) == ([], ["aaa"])


@pytest.fixture
def scheduler_file(tmp_path: pathlib.Path) -> Iterator[str]:
    """The file of a Dask scheduler without workers."""
    with (
        LocalCluster(n_workers=0, processes=False, protocol="tcp", dashboard_address=":0") as found,
        Client(found, set_as_default=False) as client,
    ):
        client.write_scheduler_file(str(tmp_path / "scheduler.json"))
        yield str(tmp_path / "scheduler.json")


def test_scheduler_that_others_can_connect_to_is_a_warning(
    scheduler_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Loopback is no exception: other users of the host can connect, too.
    settings = Settings(cluster=cluster_for_text(f"scheduler-file:{scheduler_file}"))
    opened = opening.open_cluster(settings, Common("home", "token", 60, lambda _: None), "run", {})
    opened.close()
    warning = next(each.getMessage() for each in caplog.records if each.levelname == "WARNING")
    assert re.match(r"Connections to tcp://[0-9.]+:\d+ are not encrypted: whoever can reach it can run code", warning)


def test_unencrypted_addresses_are_recognized() -> None:
    addresses = ("tcp://head:1", "ucx://head:1", "ws://head:1", "tcp://127.0.0.1:1", "tls://head:1", "inproc://1/2")
    assert [existing.is_open_to_others(each) for each in addresses] == [True] * 4 + [False] * 2


def test_cluster_of_another_package_that_does_not_close_is_abandoned(scheduler_file: str) -> None:
    hanging = threading.Event()

    class Hanging:
        def close(self) -> None:
            hanging.wait()

    client = Client(scheduler_file=scheduler_file, set_as_default=False)
    common = Common("home", "token", 60, lambda _: None, timeouts=Timeouts(close=0.1))
    own = existing.own_cluster(Hanging(), client, common)
    closing = threading.Thread(target=own.close, daemon=True)
    closing.start()
    wait_until(lambda: not closing.is_alive(), describe="the end of close()")
    hanging.set()
