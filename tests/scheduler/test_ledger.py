"""What the runs of a scheduler leave free on workers."""

import os

from guild_dask.home.claim_record import Claim
from guild_dask.home.run_directory import Staged
from guild_dask.host import processes
from guild_dask.scheduler.ledger import ActiveRun, Ledger


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
    worker = ledger.free("w", me.host, 4, {"gpu": 4.0}, ("0", "1", "2", "3"))
    assert worker.devices == {"0": 0.5, "1": 1.0, "2": 0.0, "3": 0.0}
    assert (worker.free_slots, worker.free) == (2, {"gpu": 2.5})


def test_runs_that_go_on_count_by_host_where_a_worker_is_its_whole_host() -> None:
    # The next scheduler's worker on the host has another address than that which the runs were started by.
    me = processes.identity(os.getpid())
    assert me
    ledger = Ledger()
    ledger.orphans = (Claim("bbb", "dead", me, me, requests={"mem": 60.0}, worker="tls://10.0.0.2:40001"),)
    name, total = "tls://10.0.0.2:45555", {"mem": 64.0}
    whole = ledger.free(name, me.host, 2, total, is_whole_host=True)
    assert (whole.free_slots, whole.free) == (1, {"mem": 4.0})
    part = ledger.free(name, me.host, 2, total)
    assert (part.free_slots, part.free) == (2, {"mem": 64.0})
    assert ledger.free(name, "another", 2, total, is_whole_host=True).free == {"mem": 64.0}
