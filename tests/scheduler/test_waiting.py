"""What is said of waiting runs, and when."""

import logging

import pytest

from guild_dask.home.listing import Listing
from guild_dask.home.run_directory import Staged
from guild_dask.plan.placement import Worker
from guild_dask.scheduler import waiting
from guild_dask.scheduler.ledger import Ledger
from guild_dask.scheduler.waiting import WaitingRuns

WORKERS = [Worker("local", 2, {"gpu": 1.0}, 2, {"gpu": 1.0})]


def a_run(number: int, *tags: str) -> Staged:
    return Staged(f"run{number:02}", "/nowhere", number, tags)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> WaitingRuns:
    """Waiting runs of which three are spoken of at a time."""
    monkeypatch.setattr(waiting, "_AT_ONCE", 3)
    caplog.set_level(logging.INFO, "guild")
    return WaitingRuns(Ledger(), lambda _references: {})


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return texts


def test_all_is_said_in_order_though_not_at_once(runs: WaitingRuns, caplog: pytest.LogCaptureFixture) -> None:
    runs.update(Listing(tuple(a_run(number) for number in range(7)), {}))
    told = []
    for more in (True, True, False):
        runs.tell_places(WORKERS)
        assert runs.has_more_to_say == more
        told += said(caplog)
    assert told == [f"Starting staged run run{number:02}" for number in range(7)]
    runs.tell_places(WORKERS)
    assert said(caplog) == []


def test_run_that_starts_has_been_spoken_of(runs: WaitingRuns, caplog: pytest.LogCaptureFixture) -> None:
    runs.update(Listing(tuple(a_run(number) for number in range(7)), {}))
    runs.tell_places(WORKERS)
    said(caplog)
    runs.start("run01")
    runs.start("run05")
    assert said(caplog) == ["Starting staged run run05"]
    runs.tell_places(WORKERS)
    assert said(caplog) == [f"Starting staged run run{number:02}" for number in (3, 4, 6)]
    assert not runs.has_more_to_say


def test_run_that_is_gone_is_not_spoken_of(runs: WaitingRuns, caplog: pytest.LogCaptureFixture) -> None:
    runs.update(Listing(tuple(a_run(number) for number in range(5)), {}))
    runs.tell_places(WORKERS)
    said(caplog)
    runs.update(Listing((), {}, frozenset(("run03", "run04"))))
    assert not runs.has_more_to_say
    runs.tell_places(WORKERS)
    assert said(caplog) == []


def test_reason_is_said_again_when_it_is_another_one(runs: WaitingRuns, caplog: pytest.LogCaptureFixture) -> None:
    runs.update(Listing((a_run(1, "dask:gpu=2"), a_run(2)), {}))
    runs.tell_places(WORKERS)
    assert said(caplog) == [
        "Leaving run run01 staged (asks gpu=2, largest worker has gpu=1)",
        "Starting staged run run02",
    ]
    runs.tell_places([Worker("large", 2, {"gpu": 2.0}, 2, {"gpu": 2.0})])
    assert said(caplog) == ["Starting staged run run01 (requires gpu=2)"]


def test_memory_without_a_unit_is_said_once(runs: WaitingRuns, caplog: pytest.LogCaptureFixture) -> None:
    runs.update(Listing((a_run(1, "dask:mem=8"), a_run(2, "dask:mem=8")), {}))
    runs.tell_places([Worker("local", 2, {"mem": 64e9}, 2, {"mem": 64e9})])
    assert said(caplog) == [
        "Tag 'dask:mem=8' asks for 8 bytes of memory: amounts of mem are bytes; write mem=8GB",
        "Starting staged run run01 (requires mem=8)",
        "Starting staged run run02 (requires mem=8)",
    ]


def test_while_none_may_start_only_what_never_could_is_said(
    runs: WaitingRuns, caplog: pytest.LogCaptureFixture
) -> None:
    runs.update(Listing((a_run(1), *(a_run(number, "dask:gpu=2") for number in range(2, 6))), {}))
    never = [f"Leaving run run{n:02} staged (asks gpu=2, largest worker has gpu=1)" for n in range(2, 6)]
    runs.tell_places(WORKERS, may_start=False)
    assert said(caplog) == never[:3]
    assert runs.has_more_to_say
    runs.tell_places(WORKERS, may_start=False)
    assert said(caplog) == never[3:]
    assert not runs.has_more_to_say
    runs.tell_places(WORKERS)
    assert said(caplog) == ["Starting staged run run01"]


def test_what_blocks_runs_is_said_once_and_what_follows_too(
    runs: WaitingRuns, caplog: pytest.LogCaptureFixture
) -> None:
    runs.update(Listing((a_run(1), a_run(2)), {}))
    for _ in range(2):
        runs.tell_blocked(["other"])
    assert said(caplog) == [f"Found staged run run{n:02} (waiting for runs to finish: other)" for n in (1, 2)]
    runs.tell_places(WORKERS)
    assert said(caplog) == ["Starting staged run run01", "Starting staged run run02"]
