"""How many workers are requested, and which are given back."""

import math
from dataclasses import replace

from guild_dask.cluster.base import WorkerCapacity
from guild_dask.cluster.scaling import IDLE, Requested, need, to_give_back
from guild_dask.plan.capacity import TIME
from guild_dask.plan.placement import StagedRun, plan
from guild_dask.plan.reasons import TooLong
from guild_dask.scheduler.answers import ClusterView
from guild_dask.scheduler.ledger import Ledger
from guild_dask.scheduler.workers import workers_for

TWO_GPUS = WorkerCapacity("to come", 2, {"gpu": 2.0}, "")


def _runs(count: int, gpu: float = 1.0) -> list[StagedRun]:
    return [StagedRun(f"run-{n}", {"gpu": gpu}) for n in range(count)]


def test_as_many_workers_are_requested_as_waiting_runs_fill() -> None:
    assert [need(_runs(n), TWO_GPUS, expected=0, may_request=10).jobs for n in (0, 1, 2, 3, 5)] == [0, 1, 1, 2, 3]


def test_no_more_jobs_are_requested_than_are_allowed() -> None:
    assert need(_runs(100), TWO_GPUS, expected=0, may_request=3).jobs == 3
    assert need(_runs(100), TWO_GPUS, expected=0, may_request=0).jobs == 0


def test_requested_workers_that_have_not_joined_count() -> None:
    assert need(_runs(4), TWO_GPUS, expected=1, may_request=10).jobs == 1
    assert need(_runs(4), TWO_GPUS, expected=2, may_request=10).jobs == 0


def test_no_worker_is_requested_for_a_run_that_none_could_hold() -> None:
    assert need(_runs(3, gpu=3.0), TWO_GPUS, expected=0, may_request=10).jobs == 0


def test_several_workers_of_one_job_count_together() -> None:
    assert need(_runs(5), TWO_GPUS, expected=0, may_request=10, of_each_job=2).jobs == 2


def test_only_long_idle_jobs_are_given_back_and_never_below_the_least() -> None:
    jobs = {
        "busy": Requested("busy", True, None),
        "new": Requested("new", False, None),
        "idle": Requested("idle", True, 100.0),
        "idler": Requested("idler", True, 50.0),
        "just idle": Requested("just idle", True, 100.0 + IDLE - 1),
    }
    assert to_give_back(jobs, least=0, now=100.0 + IDLE) == ["idler", "idle"]
    assert to_give_back(jobs, least=4, now=100.0 + IDLE) == ["idler"]
    assert to_give_back(jobs, least=5, now=100.0 + IDLE) == []


def test_no_worker_is_requested_for_a_run_that_it_could_not_end_in_time() -> None:
    # The same margins apply when the worker has joined. Otherwise it would join, start nothing, leave, and be requested
    # again.
    worker = WorkerCapacity("to come", 1, {}, "", lifetime=3600.0)
    asked = {limit: need([StagedRun("run", {TIME: limit})], worker, 0, 5).jobs for limit in (3600.0, 3541.0, 3300.0)}
    assert asked == {3600.0: 0, 3541.0: 0, 3300.0: 1}
    ledger, now = Ledger(), 1000.0
    for limit, jobs in asked.items():
        at_its_start = replace(worker, ends=now + 3600.0 - 20.0)  # it took 20 seconds to come
        run = StagedRun("run", {TIME: limit})
        starts = plan([run], workers_for(ClusterView((at_its_start,), (worker,)), ledger, now)).starts
        assert bool(starts) >= bool(jobs)
    held = plan([StagedRun("run", {TIME: 3600.0})], workers_for(ClusterView((), (worker,)), ledger, now)).held
    assert held == {"run": TooLong(3600.0, worker.lasts)}


def test_worker_without_an_end_lasts_for_ever() -> None:
    assert TWO_GPUS.lasts == math.inf


def test_runs_that_would_still_wait_are_returned() -> None:
    runs = [*_runs(5), StagedRun("large", {"gpu": 3.0})]
    assert [run.id for run in need(runs, TWO_GPUS, expected=1, may_request=1).left] == ["run-4", "large"]
