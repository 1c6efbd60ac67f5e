"""The space of a search: what users type becomes dimensions, and every point of a space is one again when read back."""

import datetime
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guild_dask.scheduler.search.space import BadSpace, Choices, Range, Space, key_of, space_for_flags

FINITE = st.floats(-1e6, 1e6, allow_nan=False)


@st.composite
def texts(draw: st.DrawFn) -> Any:
    """Returns a flag's value that describes a dimension of any kind."""
    kind = draw(st.sampled_from(["int", "float", "uniform", "log", "logint", "quniform", "qint", "list"]))
    if kind == "list":
        return draw(st.lists(st.one_of(st.booleans(), st.integers(), FINITE, st.none(), st.text("abc")), min_size=1))
    if kind in ("int", "qint", "logint"):
        low = draw(st.integers(1 if kind == "logint" else -1000, 1000))
        high = low + draw(st.integers(0, 1000))
        step = draw(st.integers(1, 50))
        return {"int": f"[{low}:{high}]", "logint": f"logint[{low}:{high}]", "qint": f"quniform[{low}:{high}:{step}]"}[
            kind
        ]
    if kind == "log":
        low_float = draw(st.floats(1e-9, 1e3))
        return f"loguniform[{low_float!r}:{low_float * draw(st.floats(1, 1e6))!r}]"
    low_float, high_float = sorted((draw(FINITE), draw(FINITE)))
    if kind == "quniform":
        return f"quniform[{low_float!r}:{high_float!r}:{draw(st.sampled_from(['0.05', '0.1', '2.5', '1e-3']))}]"
    return f"{'uniform' if kind == 'uniform' else ''}[{low_float!r}:{high_float!r}]"


@given(texts(), st.floats(0, 1))
def test_value_of_a_dimension_is_in_it_and_maps_to_itself(text: Any, share: float) -> None:
    dimension = space_for_flags({"x": text}).dimensions["x"]
    if isinstance(dimension, Choices):
        index = min(int(share * len(dimension.options)), len(dimension.options) - 1)
        value = dimension.options[index]
        assert dimension.index_of(value) == index
    else:
        value = dimension.flag_value(min(dimension.low + share * (dimension.high - dimension.low), dimension.high))
        assert dimension.flag_value(value) == value
        assert isinstance(value, int) == dimension.is_integer
    assert dimension.contains(value)
    space = Space({"x": dimension}, {"fixed": 1})
    assert space.contains(space.flags({"x": value}))
    assert space.point(space.flags({"x": value})) == {"x": value}


@given(texts())
def test_finite_dimension_lists_as_many_different_values_as_it_has(text: Any) -> None:
    dimension = space_for_flags({"x": text}).dimensions["x"]
    if dimension.size <= 1000:
        values = list(dimension.values())
        assert len({key_of({"x": value}) for value in values}) == len(values) == dimension.size
        assert all(dimension.contains(value) for value in values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1:10]", Range(1, 10, is_integer=True)),
        ("[1:10:3]", Range(1, 10, is_integer=True, first=3)),
        ("[0.0:1]", Range(0.0, 1)),
        ("[0:1:0.5]", Range(0, 1, first=0.5)),
        ("uniform[0:1]", Range(0, 1, is_integer=True)),
        ("loguniform[1:100]", Range(1, 100, is_log=True)),
        ("log-uniform[1e-5:1e-1:1e-3]", Range(1e-5, 1e-1, is_log=True, first=1e-3)),
        ("logint[1:1024]", Range(1, 1024, is_integer=True, is_log=True)),
        ("quniform[0:1:0.3]", Range(0, 0.9, step=0.3)),
        ("quniform[0:10:5:5]", Range(0, 10, is_integer=True, step=5, first=5)),
        ([1, 1.0, True, "1"], Choices((1.0, True, "1"))),
    ],
)
def test_guilds_syntax_becomes_a_dimension(text: Any, expected: Range | Choices) -> None:
    found = space_for_flags({"x": text}).dimensions["x"]
    assert found == expected or (isinstance(found, Choices) and len(found.options) == 3)


@pytest.mark.parametrize("value", ["model.pt", "a[b]", "[1]", "10:30", "", None, 3, True])
def test_plain_value_is_fixed(value: Any) -> None:
    assert space_for_flags({"x": [1, 2], "y": value}).fixed == {"y": value}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"x": 1}, "no flag to search"),
        ({"x": []}, "empty list"),
        ({"x": "[2:1]"}, "inverted range"),
        ({"x": "loguniform[0:1]"}, "above 0"),
        ({"x": "logint[0:8]"}, "above 0"),
        ({"x": "logint[0.5:8]"}, "integers"),
        ({"x": "quniform[0:1]"}, "LOW:HIGH:STEP"),
        ({"x": "quniform[0:1:0]"}, "above 0"),
        ({"x": "uniform[a:1]"}, "not a number"),
        ({"x": "uniform[0:inf]"}, "finite"),
        ({"x": "uniform[1:2:3:4]"}, "LOW:HIGH"),
        ({"x": "[0:1:7]"}, "not in its range"),
        ({"x": "quniform[0:10:5:2.5]"}, "not in its range"),
        ({"x": "gauss[0:1]"}, "unknown function"),
        ({"x": "quniform[0:1:1e-30]"}, "2**53"),
        ({"x": "quniform[0:1:1e-300]"}, "2**53"),
        ({"x": "[0:10000000000000000]"}, "2**53"),
        ({"x": "[10000000000000000:10000000000000001]"}, "2**53"),
        ({"x": "logint[1:10000000000000000]"}, "2**53"),
        ({"x": "[-1e308:1e308]"}, "too wide"),
        ({"x": f"[0:1{'0' * 400}]"}, "finite"),
        ({"x": ["[0:1]", 2]}, "a list with [0:1]"),
        ({"x": [datetime.date(2020, 1, 1), 2]}, "put it in quotes"),
    ],
)
def test_bad_space_is_one_line_that_names_the_flag(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(BadSpace) as raised:
        space_for_flags(flags)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_size_is_the_number_of_points() -> None:
    assert space_for_flags({"a": [1, 2, 3], "b": "[1:4]"}).size == 12
    assert space_for_flags({"a": [1, 2, 3], "b": "[1.0:4]"}).size == math.inf


def test_fixed_flag_that_is_not_a_number_is_equal_to_itself() -> None:
    # Guild reads `clip=nan` as a number.
    space = space_for_flags({"x": "[1:9]", "clip": math.nan})
    assert space.contains(space.flags({"x": 2}))
    assert not space.contains({"x": 2, "clip": 1.0})


def test_run_with_another_fixed_flag_is_not_in_the_space() -> None:
    space = space_for_flags({"x": "[0.0:1.0]", "data": "a"})
    assert space.contains({"x": 0.5, "data": "a"})
    assert not space.contains({"x": 0.5, "data": "b"})
    assert not space.contains({"x": 2.0, "data": "a"})
    assert not space.contains({"data": "a"})


def test_large_integers_are_different_points() -> None:
    large = 2**53
    assert space_for_flags({"x": [large, large + 1]}).size == 2
    assert key_of({"x": large}) != key_of({"x": large + 1})
    assert key_of({"x": large}) == key_of({"x": float(large)})
