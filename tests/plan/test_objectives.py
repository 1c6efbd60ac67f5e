"""Objectives: what users type, and which results are better."""

import math
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guild_dask.plan.objectives import (
    BadObjective,
    Objective,
    best_of,
    dominates,
    objectives_for_options,
    objectives_for_text,
    option_for,
    source_for,
)


@pytest.mark.parametrize(
    ("text", "is_for_all", "expected"),
    [
        ("loss", True, [Objective("loss")]),
        ("-accuracy", True, [Objective("accuracy", True)]),
        ("max accuracy", True, [Objective("accuracy", False, "max")]),
        ("-max accuracy", True, [Objective("accuracy", True, "max")]),
        ("loss latency", True, [Objective("loss"), Objective("latency")]),
        ("loss, -accuracy", False, [Objective("loss"), Objective("accuracy", True)]),
        ("-a b", True, [Objective("a", True), Objective("b", True)]),
        ("-a b", False, [Objective("a", True), Objective("b")]),
        ("max", True, [Objective("max")]),
        ("train#loss", True, [Objective("train#loss")]),
    ],
)
def test_text_becomes_objectives(text: str, is_for_all: bool, expected: list[Objective]) -> None:
    assert list(objectives_for_text(text, is_for_all)) == expected


@pytest.mark.parametrize("text", ["", " ", "-", "loss loss", "avg loss"])
def test_text_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadObjective):
        objectives_for_text(text)


WORD = st.sampled_from(["loss", "acc", "min", "last", "avg", "train#loss"])
OBJECTIVES = st.lists(
    st.builds(Objective, WORD, st.booleans(), st.sampled_from(["first", "last", "min", "max"])),
    min_size=1,
    max_size=4,
    unique_by=str,
)


@given(OBJECTIVES)
def test_objectives_are_what_their_text_and_their_option_say(objectives: list[Objective]) -> None:
    assert list(objectives_for_text(source_for(objectives), is_minus_for_all=False)) == objectives
    option, value = shlex.split(option_for(objectives))
    minimized, maximized = (value, None) if option == "--minimize" else (None, value)
    assert list(objectives_for_options(minimized, maximized)) == objectives


def test_option_is_the_one_that_a_user_would_type() -> None:
    assert option_for([Objective("loss")]) == "--minimize loss"
    assert option_for([Objective("accuracy", True)]) == "--maximize accuracy"
    assert option_for([Objective("a", True), Objective("b", True)]) == "--maximize 'a b'"
    assert option_for([Objective("acc", True), Objective("loss", False, "min")]) == "--minimize '-acc min loss'"


def test_curve_follows_the_qualifier() -> None:
    values = {1: 3.0, 2: 1.0, 3: 2.0}
    assert Objective("loss").costs_by_step(values) == values
    assert Objective("loss", qualifier="min").costs_by_step(values) == {1: 3.0, 2: 1.0, 3: 1.0}
    assert Objective("loss", True, "max").costs_by_step(values) == {1: -3.0, 2: -3.0, 3: -3.0}
    assert Objective("loss").costs_by_step({1: math.nan}) == {1: math.inf}


@given(st.dictionaries(st.text("abc", min_size=1), st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1))
def test_pareto_set_dominates_all_others_and_nothing_in_itself(found: dict[str, tuple[int, int]]) -> None:
    best = best_of(found)
    assert best
    assert not any(dominates(found[a], found[b]) for a in best for b in best)
    assert all(any(dominates(found[a], found[b]) for a in best) for b in found if b not in best)


def test_best_of_one_objective_is_one_trial() -> None:
    assert best_of({"a": (2.0,), "b": (1.0,), "c": (1.0,)}) == ["b"]
    assert best_of({}) == []
