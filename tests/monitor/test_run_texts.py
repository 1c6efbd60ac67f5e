"""What all views share: the states of runs, the flags that tell runs apart, and which results are the best."""

import itertools
import math
from typing import Any

import pytest

from guild_dask.home.outcome import End
from guild_dask.monitor import results
from guild_dask.monitor.flag_columns import columns_for, own_label, text_for_value
from guild_dask.monitor.results import best_first, by_importance, is_high_good
from guild_dask.monitor.run_states import STATES, state_for
from tests.support.deadline import soon


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_every_state_has_its_own_colour_and_text() -> None:
    assert {end.value for end in End} < STATES.keys()
    colours = [state.colour for state in STATES.values()]
    assert len(set(colours)) == len({state.text for state in STATES.values()}) == len(STATES)
    assert state_for("from-the-future").text == "from-the-future"
    assert state_for("from-the-future").colour not in colours
    for one, other in itertools.combinations(colours, 2):
        distance = sum((int(one[p : p + 2], 16) - int(other[p : p + 2], 16)) ** 2 for p in (1, 3, 5)) ** 0.5
        assert distance > 40, f"{one} and {other} look the same"


@pytest.mark.parametrize("background", ["#ffffff", "#16181d"])
def test_colours_of_states_can_be_seen_on_light_and_dark_pages(background: str) -> None:
    for state in (*STATES.values(), state_for("other")):
        assert contrast(state.colour, background) >= 3, state.name


def flags(**values: Any) -> tuple[str, dict[str, Any]]:
    return "train", values


def test_flags_that_differ_come_first_and_constant_ones_are_folded() -> None:
    found = columns_for(
        [flags(lr=0.1, epochs=20, seed=1), flags(lr=0.1, epochs=20, seed=2), flags(lr=0.2, epochs=20, seed=3)]
    )
    assert found.names == ("lr", "seed")
    assert [found.text(number) for number in range(3)] == ["lr=0.1 seed=1", "lr=0.1 seed=2", "lr=0.2 seed=3"]
    assert found.common_text == "epochs=20 for all"


def test_flags_are_compared_within_an_operation() -> None:
    found = columns_for([flags(lr=0.1, epochs=20), flags(lr=0.2, epochs=20), ("test", {"data": "dev", "epochs": 3})])
    assert [found.text(number) for number in range(3)] == [
        "lr=0.1",
        "lr=0.2",
        "data=dev epochs=3",
    ]
    assert found.common_text == "epochs=20 for all of train"


def test_flag_that_is_the_same_in_all_operations_is_folded_once() -> None:
    # `guild run train.py` beside the operation `train` has the same flags.
    script = ("train.py", {"lr": 0.3, "epochs": 20, "seed": 1})
    found = columns_for(
        [flags(lr=0.1, epochs=20, seed=1), flags(lr=0.2, epochs=20, seed=1), script, ("load", {"n": 9})]
    )
    assert [found.text(number) for number in range(4)] == ["lr=0.1", "lr=0.2", "lr=0.3", "n=9"]
    assert found.common_text == "epochs=20 seed=1 for all"


def test_flag_of_a_single_run_is_no_column() -> None:
    found = columns_for([flags(lr=0.1), flags(lr=0.2), ("load", {"n": 9})])
    assert found.shared_names == ("lr",)
    assert [found.rest(number) for number in range(3)] == ["", "", "n=9"]
    assert columns_for([flags(lr=0.1)]).shared_names == ("lr",)


def test_flags_of_the_operation_with_the_most_runs_come_first() -> None:
    trials = [flags(lr=rate, seed=seed) for seed, rate in enumerate((0.1, 0.2, 0.2))]
    found = columns_for([("test", {"data": "dev"}), ("test", {"data": "all"}), *trials])
    assert found.names == ("lr", "seed", "data")


def test_flag_that_one_run_lacks_differs() -> None:
    found = columns_for([flags(a=1), flags(a=1, b=2)])
    assert [found.text(number) for number in range(2)] == ["", "b=2"]
    assert found.common_text == "a=1 for all"


def test_flag_that_is_not_set_is_left_out() -> None:
    # A search has some twenty flags, most of which are null.
    found = columns_for([flags(a=1, b=None), flags(a=2, b=None, c=None), ("load", {"n": None})])
    assert [found.text(number) for number in range(3)] == ["a=1", "a=2", ""]
    assert found.common_text == ""


def test_one_run_or_none_has_nothing_in_common() -> None:
    assert columns_for([flags(a=1)]).text(0) == "a=1"
    assert columns_for([flags(a=1)]).common_text == columns_for([]).common_text == ""
    assert columns_for([flags(), flags()]).common_text == ""


@pytest.mark.parametrize(
    ("label", "own"),
    [
        ("dask:gpu=1 lr=0.1 name='a b' sizes=[1, 2]", ""),
        ("baseline lr=0.1", "baseline"),
        ("dask:gpu=10 slr=1", "dask:gpu=10 slr=1"),
        ("pruned lr=0.1", "pruned"),  # a search has written that, and a tag of that name
        ("", ""),
    ],
)
def test_label_has_only_what_the_user_wrote(label: str, own: str) -> None:
    assert own_label(label, ["dask:gpu=1", "pruned"], ["lr", "name", "sizes"]) == own


# The record of a label and that of tags have 80 kB each, at most.
@pytest.mark.parametrize(
    "label", ["t1 " * 20_000, "'" * 80_000, "f1=' " * 16_000, f"{' '.join(map(str, range(9999)))} "]
)
def test_label_and_tags_of_any_size_take_little_time(label: str) -> None:
    names = [f"t{number}" for number in range(10_000)]
    with soon():
        own_label(label, names, [f"f{number}" for number in range(10_000)])
        own_label(label, label.split(), label.split())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "yes"),
        (None, "null"),
        (0.1, "0.1"),
        (1e-5, "1e-05"),
        ([1, False], "[1, no]"),
        ({"a": 1}, "{a: 1}"),
        ("x", "x"),
    ],
)
def test_values_of_flags_are_shown_as_users_type_them(value: Any, text: str) -> None:
    assert text_for_value(value) == text


@pytest.mark.parametrize(
    ("name", "is_high"),
    [
        ("loss", False),
        ("val_acc", True),
        ("train#valAccuracy", True),
        ("eval/f1", True),
        ("mapping_error", False),
        ("score_loss", False),
        ("mAP", True),
    ],
)
def test_name_of_a_scalar_says_whether_high_values_are_good(name: str, is_high: bool) -> None:
    assert is_high_good(name) is is_high


def test_scalars_that_measure_results_come_first() -> None:
    assert by_importance(["time", "loss", "acc", "val_loss", "lr"]) == ["val_loss", "loss", "acc", "lr", "time"]


def test_best_run_is_first_and_runs_without_a_value_are_last() -> None:
    runs: list[tuple[str, dict[str, float]]] = [
        ("a", {"loss": 0.3}),
        ("b", {}),
        ("c", {"loss": math.nan}),
        ("d", {"loss": 0.1}),
    ]
    assert [run for run, _ in best_first(runs, "loss")] == ["d", "a", "b", "c"]
    assert [run for run, _ in best_first([("a", {"acc": 0.3}), ("b", {"acc": 0.9})], "acc")] == ["b", "a"]


def test_result_that_is_the_only_one_of_a_run_is_shown_before_others() -> None:
    train = ["loss", "val_loss", "seconds"]
    assert results.columns_for([train], 3) == (["val_loss", "loss", "seconds"], ["loss", "seconds"])
    assert results.columns_for([train, ["acc"]], 3) == (["val_loss", "loss", "acc"], ["loss"])
    assert results.columns_for([train, ["acc"]], 2) == (["val_loss", "acc"], [])
    assert results.columns_for([[], []], 3) == ([], [])
