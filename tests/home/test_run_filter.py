"""Which staged runs a scheduler sees."""

import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guild_dask.home import run_directory
from guild_dask.home.listing import Listing
from guild_dask.home.run_filter import BadFilter, Selection
from tests.home.test_run_directory import make_run

# Guild leaves the files of attributes open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

WORDS = st.sampled_from(
    ["op", "=", "<", "and", "or", "not", "in", "contains", "is", "(", ")", "[", "]", ",", "1", "'x'"]
)


def listing(*run_dirs: pathlib.Path) -> Listing:
    return Listing(tuple(run_directory.read_staged(str(run_dir)) for run_dir in run_dirs), {})


def chosen(selection: Selection, given: Listing) -> list[str]:
    return [run.id for run in selection.of(given).staged]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("op = op", ["aaa", "bbb"]),
        ("lr < 0.1", ["bbb"]),
        ("flag:lr = 0.5", ["aaa"]),
        ("tags contains big", ["aaa"]),
        ("not label = x", ["bbb"]),
        ("status = staged and op != op", []),
        ("loss < 1", []),  # there are no scalars yet
    ],
)
def test_runs_are_chosen_by_attributes_and_flags(tmp_path: pathlib.Path, expression: str, expected: list[str]) -> None:
    given = listing(
        make_run(tmp_path / "aaa", flags="lr: 0.5\n", tags="[big]\n", label="x\n"),
        make_run(tmp_path / "bbb", flags="lr: 0.01\n"),
    )
    assert chosen(Selection(expression), given) == expected


def test_search_is_chosen_by_the_operation_tags_and_flags_of_its_trials(tmp_path: pathlib.Path) -> None:
    search = make_run(tmp_path / "aaa")
    (search / ".guild" / "opref").write_text("builtin:guild '' dask tpe")
    proto = make_run(search / ".guild" / "proto", flags="epochs: 3\n", tags="[big]\n")
    for expression in ("tags contains big", "op = op", "epochs = 3"):
        selection = Selection(expression)
        assert chosen(selection, listing(search)) == ["aaa"]
        assert selection.matches(str(search))
    selection = Selection("tags contains small")
    assert chosen(selection, listing(search)) == []
    (proto / ".guild" / "attrs" / "tags").write_text("[small]\n")
    assert chosen(selection, Listing((), {})) == ["aaa"]
    (proto / ".guild" / "attrs" / "tags").unlink()
    (proto / ".guild" / "attrs" / "tags").mkdir()
    found = selection.of(listing(search))
    assert (found.staged, set(found.broken)) == ((), {"aaa"})


def test_run_is_judged_again_when_it_has_changed_and_not_before(tmp_path: pathlib.Path) -> None:
    run_dir = make_run(tmp_path / "aaa", label="x\n")
    selection = Selection("label = x")
    assert chosen(selection, listing(run_dir)) == ["aaa"]
    # With thousands of runs waiting, reading them all at each look would take seconds.
    (run_dir / ".guild" / "opref").unlink()
    given = Listing((run_directory.Staged("aaa", str(run_dir), 1700000000000000, ()),), {})
    assert chosen(selection, given) == ["aaa"]
    (run_dir / ".guild" / "attrs" / "label").write_text("y\n")
    assert chosen(selection, given) == []


def test_waiting_run_comes_to_match_and_ceases_to(tmp_path: pathlib.Path) -> None:
    # A look tells of staged runs that have other tags; other attributes are for the selection to see.
    run_dir = make_run(tmp_path / "aaa", label="x\n")
    selection = Selection("label = why")
    assert chosen(selection, listing(run_dir)) == []
    nothing = Listing((), {})
    (run_dir / ".guild" / "attrs" / "label").write_text("why\n")
    assert chosen(selection, nothing) == ["aaa"]
    assert selection.of(nothing) == nothing
    (run_dir / ".guild" / "attrs" / "label").write_text("other\n")
    assert selection.of(nothing).gone == {"aaa"}
    assert selection.of(Listing((), {}, frozenset(("aaa",)))).staged == ()
    (run_dir / ".guild" / "attrs" / "label").write_text("why\n")
    assert selection.of(nothing) == nothing


def test_broken_run_does_not_disturb_the_others(tmp_path: pathlib.Path) -> None:
    given = listing(make_run(tmp_path / "aaa", flags="[\n"), make_run(tmp_path / "bbb", flags="lr: 1\n"))
    assert chosen(Selection("lr = 1"), given) == ["bbb"]


def test_what_cannot_be_read_stays_in_the_listing() -> None:
    assert Selection("op = op").of(Listing((), {"aaa": "broken"})).broken == {"aaa": "broken"}


@settings(deadline=None, max_examples=50)
@given(st.text() | st.lists(WORDS).map(" ".join))
def test_expression_is_read_or_named_with_what_is_accepted(expression: str) -> None:
    problem = None
    try:
        Selection(expression)
    except BadFilter as e:
        problem = str(e)
    assert problem is None or "guild runs -F" in problem
