"""Estimates of starts and of the time left, and their explanations."""

from dataclasses import replace

import pytest

from guild_dask.monitor import formatting
from guild_dask.monitor.durations import Completed, expected_seconds
from guild_dask.monitor.estimate import is_least, remaining, seconds_left, seconds_until_starts
from guild_dask.monitor.explanation import after_impossible, with_scheduler, without_scheduler
from guild_dask.monitor.progress import text_for
from guild_dask.monitor.state import Phase, RunningRun, State, WaitingKind, WaitingRun, WorkerState
from guild_dask.plan.reasons import (
    AfterCycle,
    AfterFailed,
    AfterRuns,
    AfterUnknown,
    AnyReason,
    InUse,
    NoFreeSlot,
    NotDefined,
    NotWhole,
    StartsFailed,
    TooLarge,
    TooLong,
)
from guild_dask.plan.units import amount_for_text
from tests.support.deadline import soon

NEVER = TooLarge("gpu", 4.0, 2.0)
SLOTS = NoFreeSlot(2)
IN_USE = InUse("gpu", 1.0, 0.0)


def running(run: str, since: float, **requests: float) -> RunningRun:
    return RunningRun(run, "train", "local", "here", since, 0.0, 1, requests)


def waiting(run: str, why: AnyReason | None = SLOTS, **requests: float) -> WaitingRun:
    return WaitingRun(run, "train", 0.0, requests, why)


def state(runs: list[RunningRun], first: list[WaitingRun], durations: dict[str, float] | None = None) -> State:
    return State(
        "s" * 32,
        "here",
        1,
        0.0,
        workers=(WorkerState("local", "here", 2, len(runs), {"gpu": 1.0}),),
        running=tuple(runs),
        waiting=len(first),
        first=tuple(first),
        kinds=tuple(WaitingKind(1, run.requests, run.why) for run in first),
        durations={"train": 100.0} if durations is None else durations,
    )


def test_runs_start_as_those_before_them_end() -> None:
    now = state([running("a", 0.0), running("b", 0.0)], [waiting("c"), waiting("d"), waiting("e")])
    assert seconds_until_starts(now, 40.0) == [60.0, 110.0, 160.0]
    assert seconds_left(now, 40.0) == 210.0


def test_what_is_scarce_decides() -> None:
    # Two slots, but one GPU: the second run waits for all of the first, the third for nothing but the slot.
    now = state([running("a", 0.0, gpu=1)], [waiting("b", IN_USE, gpu=1), waiting("c", None)])
    assert seconds_until_starts(now, 0.0) == [100.0, 100.0]
    assert seconds_left(now, 0.0) == 200.0


def test_impossible_run_takes_no_time() -> None:
    now = state([running("a", 0.0)], [waiting("b", NEVER, gpu=4), waiting("c")])
    assert seconds_until_starts(now, 0.0) == [None, 50.0]
    assert seconds_left(now, 0.0) == 100.0


def test_run_that_takes_longer_than_usual_is_not_done_yet() -> None:
    now = state([running("a", 0.0)], [])
    assert seconds_left(now, 120.0) == 10.0
    assert not is_least(now, 120.0)


def test_estimate_that_was_wrong_for_long_says_less() -> None:
    # Nobody knows when the first run ends. The waiting one takes as long as that one has taken so far, or longer.
    now = state([running("a", 0.0)], [waiting("b")])
    assert is_least(now, 1000.0)
    assert seconds_left(now, 1000.0) == 1000.0
    assert [each.seconds for each in remaining(now, 1000.0)] == [None]
    assert seconds_until_starts(now, 1000.0) == [None]
    assert seconds_left(state([running("a", 0.0)], []), 1000.0) is None
    assert formatting.about(130.0, "in ", is_least=True) == "in at least 2 min"
    assert "at least 17 min left" in text_for(now, 1000.0)


def test_expected_duration_of_a_run_comes_before_that_of_its_operation() -> None:
    now = replace(state([running("a", 0.0), running("b", 0.0)], [waiting("c")]), expected={"a": 50.0, "c": 300.0})
    assert [(each.run, each.seconds) for each in remaining(now, 10.0)] == [("a", 40.0), ("b", 90.0)]
    assert seconds_left(now, 10.0) == 300.0
    assert remaining(replace(now, durations={}), 10.0) == []


def test_recent_runs_with_the_same_flags_count_more_than_old_short_ones() -> None:
    short_ones = [Completed({"epochs": "1", "lr": "0.1", "seed": str(seed)}, 2.0) for seed in range(20)]
    flags = {"epochs": "100", "lr": "0.1", "seed": "9"}
    assert expected_seconds(short_ones, flags) == 2.0
    assert expected_seconds([*short_ones, Completed(flags, 300.0)], flags) == 300.0, "the same flags"
    others = [Completed({**flags, "seed": seed}, 300.0) for seed in "12"]
    assert expected_seconds([*short_ones, *others], flags) == 300.0, "recent, and similar"
    assert expected_seconds([*others, *short_ones], {**flags, "epochs": "1"}) == 2.0
    assert expected_seconds([], flags) is None
    assert expected_seconds([Completed({}, 1.0), Completed({}, 2.0), Completed({}, 9.0)], {}) == 2.0


def test_operation_that_is_new_takes_no_less_than_its_runs_have_taken_so_far() -> None:
    now = state([running("a", 0.0)], [waiting("b")], durations={"quick": 3.0})
    assert seconds_left(now, 50.0) == 100.0, "the running one is half done, and the waiting one has a free slot"


def test_there_is_no_estimate_before_the_first_run_has_completed() -> None:
    now = state([running("a", 0.0)], [waiting("b")], durations={})
    assert seconds_until_starts(now, 5.0) == [None]
    assert seconds_left(now, 5.0) is None


def test_what_does_not_start_takes_no_time() -> None:
    runs = [running("a", 0.0), running("b", 0.0)]
    now = state(runs, [waiting("c"), waiting("d")])
    assert seconds_left(replace(now, phase=Phase.DRAINING), 10.0) == seconds_left(state(runs, []), 10.0) == 90.0
    assert seconds_left(replace(now, phase=Phase.PAUSED), 10.0) is None
    assert (seconds_left(now, 10.0) or 0) > 90.0


def test_explanation_has_numbers_and_names() -> None:
    now = state([running("aaaaaaaaaa", 0.0, gpu=1)], [waiting("b", NEVER, gpu=4), waiting("c", IN_USE, gpu=1)])
    assert now.positions == [None, 1]
    found = with_scheduler("c", {"gpu": 1.0}, now, 1, 40.0)
    assert str(found) == (
        "It waits for gpu=1, 0 free. It is next. In use by aaaaaaaa (for 40 s); the run starts when enough is free. "
        "Estimated start: in ~60 s."
    )
    assert found.can_start


@pytest.mark.parametrize(
    ("used", "why", "named"),
    [
        ({"gpu": 1.0, "cpu": 3.0}, IN_USE, ["g"]),  # there is a CPU left
        ({"gpu": 1.0, "cpu": 4.0}, IN_USE, ["g", "c"]),
        ({"gpu": 0.0, "cpu": 4.0}, InUse("cpu", 1.0, 0.0), ["c"]),
        ({"gpu": 0.0, "cpu": 0.0}, IN_USE, ["g"]),  # no single device is free
    ],
)
def test_only_runs_that_use_what_is_short_are_named(used: dict[str, float], why: AnyReason, named: list[str]) -> None:
    runs = [running("g", 0.0, gpu=1), running("c", 0.0, cpu=3), running("m", 0.0, mem=1)]
    runs.append(replace(running("x", 0.0, gpu=1, cpu=1), worker="without mem"))
    local = WorkerState("local", "here", 9, 3, {"gpu": 1.0, "cpu": 4.0, "mem": 8.0}, used)
    without = WorkerState("without mem", "here", 9, 3, {"gpu": 1.0, "cpu": 1.0}, {"gpu": 1.0, "cpu": 1.0})
    now = replace(state(runs, []), workers=(local, without))
    requests = {"gpu": 1.0, "cpu": 1.0, "mem": 1.0, "undefined": 0.0}
    now = replace(now, first=(waiting("w", why, **requests),))
    found = with_scheduler("w", requests, now, 1, 40.0)
    names = ", ".join(f"{run} (for 40 s)" for run in named)
    assert f"In use by {names}; the run starts" in found.remedy


def test_run_beyond_the_first_ones_is_explained_by_its_kind() -> None:
    now = state([running("a", 0.0, gpu=1)], [waiting("b", IN_USE, gpu=1)])
    found = with_scheduler("zzz", {"gpu": 1.0}, now, 5000, 0.0)
    assert found.why == "It waits for gpu=1, 0 free. 4999 run(s) are ahead of it."


def test_impossible_run_is_explained_with_a_remedy() -> None:
    found = with_scheduler("b", {"gpu": 4.0}, state([], [waiting("b", NEVER, gpu=4)]), 1, 0.0)
    assert str(found) == (
        f"It can never start with scheduler ssssssss: {NEVER}. Change its tags ('guild tag --help'), "
        "or start a scheduler with these resources: guild run dask:scheduler resources=gpu=4"
    )
    assert not found.can_start


@pytest.mark.parametrize(
    ("asked", "hint"), [("GPU", "Did you mean gpu=1?"), ("gpus", "Did you mean gpu=1?"), ("foo", "")]
)
def test_undefined_name_that_resembles_a_defined_one_gets_a_suggestion(asked: str, hint: str) -> None:
    why = NotDefined((asked,))
    found = with_scheduler("b", {asked: 1.0}, state([], [waiting("b", why, **{asked: 1.0})]), 1, 0.0)
    assert found.why.endswith(f"{why}. {hint}".strip())


@pytest.mark.parametrize(
    ("why", "text"),
    [
        (AfterRuns(("aaa",)), "It joins the queue when they have completed."),
        (AfterFailed("aaa", "failed"), "guild run --restart"),
        (AfterCycle(("a", "b")), "Remove the tag from one of them"),
        (StartsFailed(3), "checks the run again when it changes"),
    ],
)
def test_held_run_has_a_remedy(why: AnyReason, text: str) -> None:
    found = with_scheduler("c", {}, replace(state([], []), first_held={"c": why}), None, 0.0)
    assert str(why) in found.why
    assert text in found.remedy
    assert found.can_start is isinstance(why, AfterRuns)


@pytest.mark.parametrize(
    ("held", "text"),
    [
        ({}, f"But run aaa can never start with scheduler ssssssss: {NEVER}."),
        (
            {"bbb": AfterUnknown("zzz")},
            f"But scheduler ssssssss holds run bbb: {AfterUnknown('zzz')}.",
        ),
    ],
)
def test_run_that_depends_on_an_impossible_one_is_explained(held: dict[str, AnyReason], text: str) -> None:
    after = {run: AfterRuns((other,)) for run, other in ("cb", "ba")}
    now = replace(state([], [waiting("aaa", NEVER, gpu=4)]), first_held={"c": after["c"], "bbb": after["b"], **held})
    found = after_impossible("c", {"bbb": {}, "aaa": {"gpu": 4.0}}, now)
    assert found
    assert found.why == f"It is held: {after['c']}. {text}"
    assert not found.can_start
    assert after_impossible("c", {"b": {}}, replace(now, first=(), kinds=(), first_held=after)) is None


@pytest.mark.parametrize(
    ("why", "text"),
    [
        (NotDefined(("gpu:5",)), "dask:scheduler gpus=5"),
        (NotDefined(("gpu",)), "dask:scheduler gpus=auto"),
        (TooLarge("gpu", 1.0, 0.5), "dask:scheduler resources=gpu=1"),
        (TooLong(9 * 3600.0, 3600.0), "a longer walltime"),
        (NotWhole("gpu", 1.5), "Change its tag"),
    ],
)
def test_impossible_run_has_the_remedy_for_its_reason(why: AnyReason, text: str) -> None:
    now = state([], [waiting("c", why, gpu=1.0)])
    assert text in str(with_scheduler("c", {"gpu": 1.0}, now, None, 0.0))


def test_wide_characters_take_two_columns() -> None:
    assert formatting.width("学習 a") == 6
    assert formatting.cut("学習する", 5) == "学習…"
    assert formatting.padded("学", 4) == "学  "
    assert formatting.cut("abc", 3) == "abc"


@pytest.mark.parametrize("letter", ["x", "é", "雪", "\u0301"])
def test_text_of_any_length_is_cut_in_little_time(letter: str) -> None:
    with soon():
        assert formatting.width(formatting.cut(letter * 500_000, 80)) <= 80


def test_without_scheduler_the_command_to_type_is_named() -> None:
    requests = {"gpu": 1.0, "mem": amount_for_text("8GB") or 0.0, "none": 0.0}
    assert without_scheduler(requests).command == "guild run dask:scheduler gpus=auto resources=mem=8GB"
    assert str(without_scheduler({})).endswith("Start one: guild run dask:scheduler")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "60 s"), (150, "2 min"), (3599, "1 h 00 min"), (3700, "1 h 02 min"), (200_000, "2 d 8 h")],
)
def test_time_spans_are_short(seconds: float, text: str) -> None:
    assert formatting.duration(seconds) == text


def test_use_is_shown_in_the_unit_of_the_whole() -> None:
    total = {"gpu": 2.0, "mem": amount_for_text("64GB") or 0.0, "disk": amount_for_text("2TiB") or 0.0}
    used = {"gpu": 1.0, "mem": 16e9, "disk": 2.0**39}
    assert formatting.amount_shares(used, total) == "disk 0.5/2TiB  gpu 1/2  mem 16/64GB"


def test_control_characters_of_a_run_are_removed() -> None:
    assert formatting.one_line("a\x1b[31mb\nc") == "a [31mb c"
