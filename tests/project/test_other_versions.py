"""Records of other versions of guild-dask are shown as far as they are known, and never raise."""

import json
import pathlib
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from guild_dask.home import attempts, end_note
from guild_dask.home.attempts import Attempt
from guild_dask.home.outcome import Cause, Ending, Excess, Note, cause_for_name
from guild_dask.host.processes import ProcessIdentity
from guild_dask.monitor.explanation import with_scheduler
from guild_dask.monitor.publisher import scheduler_state
from guild_dask.monitor.report import summary
from guild_dask.monitor.report.history import history_for
from guild_dask.monitor.state import WaitingRun, as_data, ended_for_data, state_for_data
from guild_dask.plan import records
from guild_dask.plan.reasons import AfterFailed, TooLarge, Unknown, reason_for_data
from guild_dask.plan.troubles import Paused, UnknownTrouble, WorkerWithoutRuns, text_for
from guild_dask.plan.units import Amount

SCHEDULER = scheduler_state("sss", ProcessIdentity(1, 1.0, "boot", "here"))


@dataclass(frozen=True)
class Point:
    x: float
    y: float = 0.0


@dataclass(frozen=True)
class Other:
    name: str


@dataclass(frozen=True)
class Record:
    number: int
    cause: Cause | None = None
    points: tuple[Point, ...] = ()
    named: dict[str, Point] = field(default_factory=dict)
    either: Point | Other | None = None


@pytest.mark.parametrize(
    "record",
    [
        Record(1),
        Record(2, Cause.TIME_LIMIT, (Point(1.0, 2.0), Point(3.0)), {"a": Point(0.5)}, Other("o")),
        Record(3, either=Point(1.0)),
        Point(Amount(8e9, "8GB"), float("inf")),
    ],
)
def test_record_comes_back_from_data(record: Any) -> None:
    data = json.loads(json.dumps(records.data_for(record)))
    assert records.value_for(type(record), data) == record
    assert records.value_for(type(record), {**data, "of a later version": 1}) == record


@pytest.mark.parametrize(
    "data",
    [
        None,
        3,
        [],
        {},
        {"number": "x"},
        {"number": True},
        {"number": float("inf")},
        {"number": 1, "points": [{}]},
        {"number": 1, "cause": "x"},
        {"number": 1, "either": {"kind": "New"}},
    ],
)
def test_other_data_is_no_record(data: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        records.value_for(Record, data)


def test_cause_has_one_name_which_is_no_sentence() -> None:
    assert [cause_for_name(cause.value) for cause in Cause] == list(Cause)
    assert not any(" " in cause.value for cause in Cause)
    assert cause_for_name("TIME_LIMIT") is Cause.TIME_LIMIT, "as notes of starters had it before"
    assert cause_for_name("it was stopped") is cause_for_name(None) is cause_for_name([]) is None


@pytest.mark.parametrize(("cause", "is_loss"), [("its worker died", True), ("eaten", True), ("eaten", False)])
def test_attempt_with_a_cause_that_is_not_known_still_counts(tmp_path: pathlib.Path, cause: str, is_loss: bool) -> None:
    attempts.add(str(tmp_path), Attempt(1, Cause.NODE_LOST, -9, "here"))
    record = tmp_path / ".guild" / "dask-attempts" / "record.json"
    (data,) = json.loads(record.read_text())
    record.write_text(json.dumps([{**data, "cause": cause, "is_loss": is_loss, "of a later version": 1}]))
    (past,) = attempts.past(str(tmp_path))
    assert (past.number, past.cause, past.is_loss, past.exit_status) == (1, None, is_loss, -9)


def test_note_that_cannot_be_read_is_empty(tmp_path: pathlib.Path) -> None:
    claim = tmp_path / "aaa.claimed"
    for text in ("[]", "{", '{"cause": ["x"], "excess": 3}', '{"cause": "eaten", "detail": "by a cow"}'):
        claim.with_suffix(end_note.ENDED).write_text(text)
        assert end_note.read(claim) == Note(None)


def test_reason_that_is_not_known_is_shown() -> None:
    data = {"kind": "TooTall", "is_final": True, "metres": 3}
    state = replace(SCHEDULER, first=(WaitingRun("aaa", "op", 1.0, {}, reason_for_data(data)),), waiting=1)
    again = state_for_data(json.loads(json.dumps(as_data(state))))
    assert again == state
    assert as_data(state, for_people=True)["first"][0]["why"] == {**data, "text": "TooTall (metres=3)"}
    assert again.positions == [None]
    assert "TooTall (metres=3)" in with_scheduler("aaa", {}, again, None, 0.0).why


def test_reason_of_an_older_version_has_its_text() -> None:
    why = reason_for_data({"kind": "TooLarge", "text": "requests gpu=4, largest worker has gpu=2", "is_final": True})
    assert isinstance(why, Unknown)
    assert (why.kind, str(why), why.is_final) == ("TooLarge", "requests gpu=4, largest worker has gpu=2", True)
    others: tuple[object, ...] = ("text", 3, None, [])
    assert [str(reason_for_data(each)) for each in others] == ["text", "3", "None", "[]"]
    assert str(AfterFailed("aaa", "eaten")) == "run aaa, which it comes after, eaten"


def test_reason_for_people_has_numbers() -> None:
    state = replace(SCHEDULER, first_held={"aaa": TooLarge("mem", Amount(8e9, "8GB"), 4e9)})
    (why,) = as_data(state, for_people=True)["first_held"].values()
    assert (why["kind"], why["requested"], why["largest"], why["is_final"]) == ("TooLarge", 8e9, 4e9, True)
    assert "mem=8GB" in why["text"]


def test_troubles_come_back_and_those_that_are_not_known_are_shown() -> None:
    state = replace(SCHEDULER, troubles=(WorkerWithoutRuns("w", Paused()),))
    data = as_data(state)
    again = state_for_data({**data, "troubles": [*data["troubles"], "an older text", {"kind": "New", "a": 1}]})
    assert again
    assert again.troubles == (*state.troubles, UnknownTrouble("an older text"), UnknownTrouble("New (a=1)"))
    assert as_data(again, for_people=True)["troubles"] == [text_for(each) for each in again.troubles]


def test_journal_of_an_older_version_is_told() -> None:
    run = {"run": "aaa", "operation": "op", "worker": "w", "host": "h", "attempt": 1, "requests": {}, "used": {}}
    facts = {"exit_code": -15, "waited": 1.0, "ran": 3.0, "at": 3.0, "why": "it ran for 3s, its time limit"}
    ended = {"event": "ended", "end": "terminated", **run, **facts}
    assert ended_for_data(ended).is_failure
    story = history_for([ended, {"event": "stopped", "at": 4.0, "left": {"bbb": "waits for a worker", "ccc": ""}}], 5.0)
    assert story
    assert story.spans[0].run.ending.text == "terminated: it ran for 3s, its time limit"
    assert [(run, summary.why_left(why)) for run, why in story.left.items()] == [
        ("bbb", "waits for a worker"),
        ("ccc", "was waiting"),
    ]


@pytest.mark.parametrize(
    ("ending", "is_failure", "why"),
    [
        (Ending("completed", 0), False, ""),
        (Ending("failed", 3), True, ""),
        (Ending("failed", -11), True, "it was killed by signal 11, SIGSEGV"),
        (Ending("gone", -11), False, ""),
        (Ending("terminated", -15), False, ""),
        (Ending("terminated", -9, "stopped"), False, ""),
        (Ending("terminated", -9, "starter-killed"), False, ""),
        (Ending("terminated", -15, "time-limit", Excess(5400.0)), True, "it ran for 1h30m, its time limit"),
        (Ending("terminated", -15, "time-limit"), True, "it reached its time limit"),
        (
            Ending("terminated", -15, "out-of-memory", Excess(1e9, 2e9)),
            True,
            "out of memory: it used 2GB and requested 1GB",
        ),
        (Ending("retried", -9, "worker-died"), False, "its worker died"),
        (Ending("terminated", -9, "eaten"), True, "eaten"),
    ],
)
def test_end_is_judged_by_names(ending: Ending, is_failure: bool, why: str) -> None:
    assert (ending.is_failure, ending.why) == (is_failure, why)
