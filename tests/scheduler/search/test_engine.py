"""Optuna behind our interface: points are new, in the space, and the same after a restart at the same place."""

import importlib.util
import itertools
import pathlib
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guild_dask.scheduler.search.engine import Engine, EngineMissing, Knowledge, Observation
from guild_dask.scheduler.search.space import key_of, space_for_flags
from tests.scheduler.search.test_space import texts

FLAGS = {"lr": "loguniform[1e-5:1e-1]", "layers": [1, 2, 3], "q": "quniform[0:1:0.1]", "n": "logint[1:64]"}


def _engine(flags: dict[str, Any], kind: str = "tpe", objectives: int = 1) -> Engine:
    return Engine(kind, space_for_flags(flags), ["minimize"] * objectives, 1)


@settings(deadline=None, max_examples=10)
@given(st.dictionaries(st.sampled_from("abcd"), texts(), min_size=1))
def test_points_of_any_space_are_in_it_and_are_told_back(flags: dict[str, Any]) -> None:
    space = space_for_flags(flags)
    engine = _engine(flags)
    known = Knowledge()
    for value in range(3):
        for point in engine.propose(known, 1):
            assert space.contains(point)
            told = (*known.observations, Observation(point, (float(value),)))
            known = Knowledge(told, avoided=frozenset(key_of(each.point) for each in told))


def test_every_point_of_a_small_space_is_proposed_once() -> None:
    engine = _engine({"a": [1, 2, 3], "b": ["x", True, None], "c": 5})
    points = engine.propose(Knowledge(), 20)
    assert len({key_of(point) for point in points}) == len(points) == 9
    seen = frozenset(key_of(point) for point in points[:5])
    assert {key_of(point) for point in engine.propose(Knowledge(avoided=seen), 20)} == {
        key_of(point) for point in points[5:]
    }


def test_large_space_has_points_left_if_optuna_knows_none_that_is_new() -> None:
    space = space_for_flags({name: list(range(7)) for name in "abcdef"})
    engine = Engine("tpe", space, ["minimize"], 1, most_asked=0)
    points = engine.propose(Knowledge(), 20)
    assert len({key_of(point) for point in points}) == 20
    assert all(map(space.contains, points))


def test_first_values_are_tried_first() -> None:
    (point,) = _engine({"a": "[0.0:1.0:0.25]", "b": "[1:9:4]", "c": [1, 2]}).propose(Knowledge(), 1)
    assert (point["a"], point["b"]) == (0.25, 4)


def test_first_values_are_tried_once_whatever_earlier_runs_have_tried() -> None:
    engine = _engine({"a": "[0.0:1.0:0.25]"})
    earlier = Observation({"a": 0.5}, (1.0,))
    known = Knowledge([earlier], avoided=frozenset([key_of(earlier.point)]))
    first, second = engine.propose(known, 2)
    assert first == {"a": 0.25}
    assert second != first
    (next_one,) = engine.propose(replace(known, is_begun=True), 1)
    assert next_one != first


def test_proposals_are_the_same_after_a_restart_and_differ_at_each_place() -> None:
    assert _engine(FLAGS).propose(Knowledge(), 2) == _engine(FLAGS).propose(Knowledge(), 2)
    engine = _engine(FLAGS, "random")
    seen: list[dict[str, Any]] = []
    for _ in range(5):
        seen += engine.propose(Knowledge(avoided=frozenset(map(key_of, seen))), 1)
    assert len({point["lr"] for point in seen}) == 5


@pytest.mark.parametrize("kind", ["tpe", "random"])
def test_proposals_are_the_same_however_many_are_made_at_a_time(kind: str) -> None:
    # How many slots are free when the search takes a step depends on chance.
    engine = _engine({"lr": "loguniform[1e-5:1e-1]", "n": "[1:4]"}, kind)
    sequences = []
    for sizes in ((1, 1, 1, 1, 1, 1), (6,), (2, 1, 3)):
        points: list[dict[str, Any]] = []
        for size in sizes:
            points += engine.propose(Knowledge((), points, frozenset(map(key_of, points))), size)
        sequences.append(points)
    assert sequences[0] == sequences[1] == sequences[2]


HAS_TORCH = importlib.util.find_spec("torch") is not None
GP = pytest.param("gp", marks=pytest.mark.skipif(not HAS_TORCH, reason="needs PyTorch, which is no requirement"))


@pytest.mark.parametrize("kind", ["tpe", "random", GP])
def test_search_finds_what_is_good(kind: str) -> None:
    engine = _engine({"x": "[-5.0:5.0]"}, kind)
    observed: list[Observation] = []
    for _ in range(40):
        known = Knowledge(observed, avoided=frozenset(key_of(each.point) for each in observed))
        (point,) = engine.propose(known, 1)
        observed.append(Observation(point, ((point["x"] - 2) ** 2,)))
    best = min(each.values[0] for each in observed if each.values)
    late = [each.values[0] for each in observed[20:] if each.values]
    assert best < 0.5
    assert kind == "random" or sum(late) / len(late) < 5  # a random point has 10 on average


def test_failed_pruned_and_running_trials_and_several_objectives_are_accepted() -> None:
    points = [{"lr": 10.0**-n, "layers": 1 + n % 3, "q": n / 10, "n": n + 1} for n in range(1, 5)]
    told = [
        Observation(points[0], None),
        Observation(points[1], (1.0,), {1: 2.0, 3: 1.0}),
        Observation(points[2], (3.0,)),
    ]
    assert len(_engine(FLAGS).propose(Knowledge(told, points[3:]), 3)) == 3
    pairs = [Observation(point, (float(n), -float(n))) for n, point in enumerate(points)]
    assert len(_engine(FLAGS, objectives=2).propose(Knowledge(pairs), 2)) == 2


def test_running_points_are_not_proposed_again() -> None:
    running = [{"a": a, "b": b} for a, b in itertools.product((1, 2), (1, 2))][:3]
    known = Knowledge((), running, frozenset(map(key_of, running)))
    assert _engine({"a": [1, 2], "b": [1, 2]}).propose(known, 5) == [{"a": 2, "b": 2}]


def test_package_that_cannot_be_loaded_is_one_line(tmp_path: pathlib.Path) -> None:
    # As PyTorch without a library of CUDA.
    (tmp_path / "scipy.py").touch()
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so: cannot open shared object file')")
    text = _error_without_a_package(f"sys.path.insert(0, {str(tmp_path)!r})", "gp")
    assert "libcudart.so" in text
    assert "pip install torch scipy" in text


def test_missing_package_is_one_line_with_the_command_to_install_it() -> None:
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        with pytest.raises(EngineMissing, match="pip install torch scipy"):
            _engine(FLAGS, "gp")
    assert "pip install 'optuna" in _error_without_a_package("sys.modules['optuna'] = None", "tpe")


def _error_without_a_package(preparation: str, kind: str) -> str:
    """Returns the one line of the error, in a process of its own."""
    code = f"import sys; {preparation}\nfrom guild_dask.scheduler.search.engine import *\n"
    code += "from guild_dask.scheduler.search.space import space_for_flags\n"
    code += (
        f"try: Engine({kind!r}, space_for_flags({{'x': [1, 2]}}), ['minimize'], 1)\nexcept EngineMissing as e: print(e)"
    )
    text = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert text.count("\n") == 1
    return text
