"""What a run's starter is told."""

import dataclasses
from typing import Any

import pytest

from guild_dask.home.claim_record import Claim
from guild_dask.scheduler.dispatch import options_for
from guild_dask.worker.options import StarterOptions
from tests.scheduler.world import ME, staged_run


def options(*tags: str, limit: float | None = None, devices: Any = None, worker: Any = None) -> StarterOptions:
    run = staged_run("aaa", 1, *tags)
    claim = Claim("aaa", "me", ME, ME, 2, run.requirements.amounts, devices=devices or {})
    return options_for(run, claim, worker or StarterOptions(), limit)


def test_attempt_of_the_claim_is_passed_on() -> None:
    assert options().attempt == 2


@pytest.mark.parametrize(
    ("tags", "limit", "expected"),
    [((), None, 0.0), ((), 60.0, 60.0), (("dask-time:30s",), 60.0, 30.0), (("dask-time:30s",), None, 30.0)],
)
def test_time_limit_of_the_run_wins_over_that_of_the_scheduler(
    tags: tuple[str, ...], limit: float | None, expected: float
) -> None:
    assert options(*tags, limit=limit).time_limit == expected


def test_time_limit_of_the_scheduler_is_for_trials_and_not_for_their_search() -> None:
    run = dataclasses.replace(staged_run("aaa", 1), is_search=True)
    claim = Claim("aaa", "me", ME, ME, 1, {})
    assert options_for(run, claim, StarterOptions(), 60.0).time_limit == 0.0


@pytest.mark.parametrize(("tag", "threads"), [("dask:gpu=1", 0), ("dask:cpu=4", 4), ("dask:cpu=0.5", 1)])
def test_cpus_become_threads(tag: str, threads: int) -> None:
    assert options(tag).threads == threads


def test_memory_in_a_unit_of_the_users_own_is_not_enforced() -> None:
    assert options("dask:mem=8GB").memory == 8e9
    assert options("dask:mem=8").memory == 0.0


def test_devices_of_the_claim_are_seen_and_else_what_the_worker_decides() -> None:
    assert options(devices={"0": 1.0, "3": 0.5}).devices == "0,3"
    assert options(worker=StarterOptions(devices="")).devices == ""
    assert options().devices is None
