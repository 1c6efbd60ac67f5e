"""Resources: specs to amounts and back, and what fits."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guild_dask.plan.resources import (
    Unreadable,
    fits,
    format_amounts,
    remaining,
    request_for_spec,
    request_for_specs,
)
from guild_dask.plan.units import ACCEPTED_AMOUNTS
from tests.plan.test_units import AMOUNTS, TYPED

checked = settings(deadline=None, max_examples=200)

NAMES = TYPED.filter(lambda name: "=" not in name and name.strip())


@pytest.mark.parametrize("spec", ["foo", "bar"])
def test_spec_without_an_equals_sign_gets_the_documented_warning(spec: str) -> None:
    request = request_for_spec(spec)
    assert request.amounts == {}
    assert [str(part) for part in request.unreadable] == [
        f"Ignoring invalid dask resources spec {spec!r}: parts must be in format KEY=VAL"
    ]


@pytest.mark.parametrize("spec", ["foo=bar", "foo=-1", "foo=nan", "foo=", "=3", "foo=inf", "foo=1e999", "foo=3 4"])
def test_warning_for_a_bad_amount_names_the_spec_and_what_is_accepted(spec: str) -> None:
    (warning,) = (str(part) for part in request_for_spec(spec).unreadable)
    assert repr(spec) in warning
    assert ACCEPTED_AMOUNTS in warning or "KEY=VAL" in warning


@pytest.mark.parametrize("spec", ["'foo=1", 'foo="1', "foo=1\\", "", "  "])
def test_warning_for_a_spec_that_is_empty_or_open_ended_names_it_and_what_is_accepted(spec: str) -> None:
    request = request_for_spec(spec)
    (warning,) = (str(part) for part in request.unreadable)
    assert repr(spec) in warning
    assert "KEY=VAL" in warning
    assert request.amounts == {}


@pytest.mark.parametrize("bad", ["foo", "foo=bar", "foo=-1", "foo=nan", "foo=", "=3"])
def test_bad_part_is_named_and_the_others_are_read(bad: str) -> None:
    request = request_for_spec(f"a=1 {bad} b=2")
    assert request.amounts == {"a": 1, "b": 2}
    (warning,) = (str(part) for part in request.unreadable)
    assert warning.startswith(f"Ignoring {bad!r} in invalid dask resources spec 'a=1 {bad} b=2': ")


@pytest.mark.parametrize(
    ("text", "value"),
    [("4", 4), ("2.5", 2.5), ("5e9", 5e9), ("8GB", 8e9), ("16GiB", 16 * 2**30), ("0", 0), (".5", 0.5)],
)
def test_numbers_and_sizes_are_amounts(text: str, value: float) -> None:
    assert request_for_spec(f"foo={text}").amounts == {"foo": value}


def test_later_tag_wins_for_a_name_given_twice() -> None:
    assert request_for_specs(["foo=1 bar=1", "foo=2", "baz=3 baz=4"]).amounts == {"foo": 2, "bar": 1, "baz": 4}


def test_unreadable_tag_does_not_undo_an_earlier_one() -> None:
    request = request_for_specs(["foo=1", "foo=x"])
    assert request.amounts == {"foo": 1}
    assert [part.spec for part in request.unreadable] == ["foo=x"]


@checked
@given(TYPED)
def test_any_text_is_read_without_an_error(spec: str) -> None:
    request = request_for_spec(spec)
    assert request.amounts or request.unreadable
    assert all(0 <= amount < float("inf") and name.strip() for name, amount in request.amounts.items())
    for part in request.unreadable:
        # A log line is one line, whatever was typed.
        assert str(part).isprintable()
        assert part.spec == spec


@checked
@given(st.lists(TYPED))
def test_several_specs_are_read_like_each_of_them(specs: list[str]) -> None:
    together = request_for_specs(specs)
    each = [request_for_spec(spec) for spec in specs]
    assert together.unreadable == tuple(part for request in each for part in request.unreadable)
    assert together.amounts.keys() == {name for request in each for name in request.amounts}


@checked
@given(st.dictionaries(NAMES, AMOUNTS, min_size=1))
def test_formatted_amounts_are_read_back(amounts: dict[str, float]) -> None:
    request = request_for_spec(format_amounts(amounts))
    assert request.unreadable == ()
    assert request.amounts == amounts


def test_amounts_are_shown_in_the_order_of_names_and_as_typed() -> None:
    request = request_for_spec("mem=8GB foo=2.50 bar=1")
    assert format_amounts(request.amounts) == "bar=1 foo=2.50 mem=8GB"


def test_amounts_are_shown_as_the_user_would_have_to_type_them() -> None:
    request = request_for_spec("'mem=8 GB' plain=1")
    assert format_amounts(request.amounts) == "'mem=8 GB' plain=1"


def test_unreadable_parts_are_values() -> None:
    assert request_for_spec("a=x").unreadable == request_for_spec("a=x").unreadable
    assert Unreadable("a b", "a", "") != Unreadable("a b", "b", "")


def test_rounding_errors_of_sums_are_ignored() -> None:
    assert 0.1 + 0.2 > 0.3
    assert fits(0.1 + 0.2, 0.3)
    assert fits(0.2, remaining({"foo": 0.3}, {"foo": 0.1})["foo"])


@checked
@given(st.integers(1, 100), st.integers(1, 10**12))
def test_equal_parts_of_a_whole_fit_one_after_the_other_and_no_more(parts: int, whole: int) -> None:
    free = {"foo": float(whole)}
    part = {"foo": whole / parts}
    for _ in range(parts):
        assert fits(part["foo"], free["foo"])
        free = remaining(free, part)
    assert not fits(part["foo"], free["foo"])


@checked
@given(st.integers(0, 10**11), st.integers(1, 10**6))
def test_whole_numbers_are_compared_exactly(free: int, more: int) -> None:
    # Also large ones: a single byte too much does not fit.
    assert fits(free, free)
    assert not fits(free + more, free)


def test_remaining_ignores_taken_names_that_are_not_free() -> None:
    assert remaining({"foo": 3, "bar": 1}, {"foo": 1, "baz": 9}) == {"foo": 2, "bar": 1}


def test_commas_separate_parts_like_white_space() -> None:
    assert request_for_spec("gpu=1,mem=8GB, cpu=2").amounts == {"gpu": 1, "mem": 8e9, "cpu": 2}
