"""What the runs of a scheduler leave free on workers."""

import os
from dataclasses import replace

from guild_dask.cluster.base import WorkerCapacity
from guild_dask.home.claim_record import Claim
from guild_dask.home.run_directory import Staged
from guild_dask.host import processes
from guild_dask.plan.placement import Worker
from guild_dask.scheduler.answers import ClusterView
from guild_dask.scheduler.ledger import ActiveRun, Ledger
from guild_dask.scheduler.workers import workers_for


def seen(worker: WorkerCapacity, ledger: Ledger) -> Worker:
    """Returns a worker as the plan sees it."""
    (found,) = workers_for(ClusterView((worker,)), ledger, 0.0)
    return found


def test_devices_of_runs_that_go_on_are_not_free() -> None:
    me = processes.identity(os.getpid())
    assert me
    ledger = Ledger()
    claim = Claim("aaa", "me", me, me, requests={"gpu": 0.5}, worker="w", devices={"0": 0.5})
    ledger.active["aaa"] = ActiveRun(Staged("aaa", "", 0, ()), claim, me.host)
    ledger.orphans = (
        Claim("bbb", "dead", me, me, requests={"gpu": 1.0}, worker="w", devices={"2": 1.0}),
        # Of a worker that has gone, and may be this one.
        Claim("ccc", "dead", me, me, requests={"gpu": 1.0}, worker="before", devices={"3": 1.0}),
    )
    worker = seen(WorkerCapacity("w", 4, {"gpu": 4.0}, me.host, ("0", "1", "2", "3")), ledger)
    assert worker.devices == {"0": 0.5, "1": 1.0, "2": 0.0, "3": 0.0}
    assert (worker.free_slots, worker.free) == (2, {"gpu": 2.5})


def test_runs_that_go_on_count_by_host_where_a_worker_is_its_whole_host() -> None:
    # The next scheduler's worker on the host has another address than that which the runs were started by.
    me = processes.identity(os.getpid())
    assert me
    ledger = Ledger()
    ledger.orphans = (Claim("bbb", "dead", me, me, requests={"mem": 60.0}, worker="tls://10.0.0.2:40001"),)
    worker = WorkerCapacity("tls://10.0.0.2:45555", 2, {"mem": 64.0}, me.host, is_whole_host=True)
    whole = seen(worker, ledger)
    assert (whole.free_slots, whole.free) == (1, {"mem": 4.0})
    part = seen(replace(worker, is_whole_host=False), ledger)
    assert (part.free_slots, part.free) == (2, {"mem": 64.0})
    assert seen(replace(worker, host="another"), ledger).free == {"mem": 64.0}
