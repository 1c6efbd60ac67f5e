"""What the log says about waiting runs, and when."""

import pytest

from guild_dask.home.listing import Listing
from guild_dask.home.run_directory import Staged
from guild_dask.plan.placement import Worker
from guild_dask.scheduler.announcer import Announcer
from guild_dask.scheduler.instructions import Log
from guild_dask.scheduler.waiting import WaitingRuns

WORKERS = [Worker("local", 2, {"gpu": 1.0}, 2, {"gpu": 1.0})]


def a_run(number: int, *tags: str) -> Staged:
    return Staged(f"run{number:02}", "/nowhere", number, tags)


@pytest.fixture
def runs() -> WaitingRuns:
    return WaitingRuns()


@pytest.fixture
def announcer(runs: WaitingRuns) -> Announcer:
    """An announcer that logs three runs at a time."""
    return Announcer(runs, at_a_time=3)


def texts(logs: list[Log]) -> list[str]:
    return [log.text for log in logs]


def test_all_runs_are_logged_in_order_though_not_at_once(runs: WaitingRuns, announcer: Announcer) -> None:
    runs.update(Listing(tuple(a_run(number) for number in range(7)), {}))
    logged = []
    for more in (True, True, False):
        logged += texts(announcer.queued(WORKERS))
        assert announcer.has_more == more
    assert logged == [f"Starting staged run run{number:02}" for number in range(7)]
    assert announcer.queued(WORKERS) == []


def test_run_that_starts_has_been_logged(runs: WaitingRuns, announcer: Announcer) -> None:
    runs.update(Listing(tuple(a_run(number) for number in range(7)), {}))
    announcer.queued(WORKERS)
    assert announcer.starting("run01") == []
    runs.take("run01")
    assert texts(announcer.starting("run05")) == ["Starting staged run run05"]
    runs.take("run05")
    assert texts(announcer.queued(WORKERS)) == [f"Starting staged run run{number:02}" for number in (3, 4, 6)]
    assert not announcer.has_more


def test_run_that_is_gone_is_not_logged(runs: WaitingRuns, announcer: Announcer) -> None:
    runs.update(Listing(tuple(a_run(number) for number in range(5)), {}))
    announcer.queued(WORKERS)
    runs.update(Listing((), {}, frozenset(("run03", "run04"))))
    assert announcer.queued(WORKERS) == []
    assert not announcer.has_more


def test_reason_is_logged_again_when_it_changes(runs: WaitingRuns, announcer: Announcer) -> None:
    runs.update(Listing((a_run(1, "dask:gpu=2"), a_run(2)), {}))
    assert texts(announcer.queued(WORKERS)) == [
        "Leaving run run01 staged (requests gpu=2, largest worker has gpu=1)",
        "Starting staged run run02",
    ]
    large = [Worker("large", 2, {"gpu": 2.0}, 2, {"gpu": 2.0})]
    assert texts(announcer.queued(large)) == ["Starting staged run run01 (requires gpu=2)"]


def test_memory_without_a_unit_is_logged_once(runs: WaitingRuns, announcer: Announcer) -> None:
    runs.update(Listing((a_run(1, "dask:mem=8"), a_run(2, "dask:mem=8")), {}))
    assert texts(announcer.queued([Worker("local", 2, {"mem": 64e9}, 2, {"mem": 64e9})])) == [
        "Run run01: tag 'dask:mem=8' requests 8 bytes of memory: amounts of mem are bytes; write mem=8GB",
        "Starting staged run run01 (requires mem=8)",
        "Starting staged run run02 (requires mem=8)",
    ]


def test_while_nothing_may_start_only_impossible_runs_are_logged(runs: WaitingRuns, announcer: Announcer) -> None:
    runs.update(Listing((a_run(1), *(a_run(number, "dask:gpu=2") for number in range(2, 6))), {}))
    impossible = [f"Leaving run run{n:02} staged (requests gpu=2, largest worker has gpu=1)" for n in range(2, 6)]
    assert texts(announcer.queued(WORKERS, may_start=False)) == impossible[:3]
    assert announcer.has_more
    assert texts(announcer.queued(WORKERS, may_start=False)) == impossible[3:]
    assert not announcer.has_more
    assert texts(announcer.queued(WORKERS)) == ["Starting staged run run01"]


def test_what_blocks_runs_is_logged_once_and_their_start_after_it(runs: WaitingRuns, announcer: Announcer) -> None:
    runs.update(Listing((a_run(1), a_run(2)), {}))
    blocked = [f"Found staged run run{n:02} (waiting for runs to finish: other)" for n in (1, 2)]
    assert texts(announcer.blocked(["other"])) == blocked
    assert announcer.blocked(["other"]) == []
    assert texts(announcer.queued(WORKERS)) == ["Starting staged run run01", "Starting staged run run02"]
