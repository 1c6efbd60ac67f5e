"""Tables of runs in a narrow terminal: flags tell runs apart, and reasons are whole."""

import click
import pytest

from guild_dask.cli.run_table import table_of
from guild_dask.cli.status import fitting

SWEEP = [
    {"epochs": "20", "loss": loss, "alpha": alpha, "lr": lr}
    for loss in ("log_loss", "modified_huber")
    for alpha in ("0.0001", "0.01")
    for lr in ("0.1", "0.001")
]


def flags_text(flags: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in flags.items())


def columns(flags: list[dict[str, str]], **more: list[str]) -> dict[str, list[str]]:
    count = len(flags)
    return {
        "RUN": [f"{number:08}" for number in range(count)],
        "OPERATION": ["digits:train"] * count,
        "LABEL": ["baseline sweep"] * count,
        "FLAGS": list(map(flags_text, flags)),
        **more,
    }


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_flags_get_columns_so_that_every_value_is_seen() -> None:
    found = table_of(columns(SWEEP, val_loss=["0.12345"] * 8, TOOK=["24 s"] * 8), SWEEP)
    lines = [click.unstyle(line) for line in found]
    assert len(lines) == 9
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == ["RUN", "OPERATION", "LABEL", "epochs", "loss", "alpha", "lr", "val_loss", "TOOK"]
    rows = [line.split() for line in lines[1:]]
    assert len({tuple(row[-6:-2]) for row in rows}) == 8, "each run of the sweep can be told from the others"
    assert rows[0][1] == "train", "without the model, which all have in common"


def test_optimizer_is_no_model() -> None:
    for operations, shown in (
        (["digits:train", "digits:train+dask:tpe"], ["train", "train+dask:tpe"]),
        (["train", "train+dask:tpe"], ["train", "train+dask:tpe"]),
    ):
        columns = {"RUN": ["a" * 8, "b" * 8], "OPERATION": operations, "LABEL": ["n" * 70] * 2}
        assert [line.split()[1] for line in table_of(columns)[1:]] == shown


def test_flags_that_do_not_fit_beside_the_others_are_below_their_run() -> None:
    many = [{**flags, "optimizer": "stochastic", "schedule": "constant"} for flags in SWEEP]
    lines = table_of(columns(many, STATUS=["completed"] * 8, WHEN=["12 min ago"] * 8), many)
    assert " ".join(line.strip() for line in lines[2:4]) == flags_text(many[0])
    assert all(len(click.unstyle(line)) <= 80 for line in lines)


def test_reasons_are_below_their_runs_and_a_common_one_is_told_once() -> None:
    whys = ["requests gpu=3, largest worker has gpu=2", "requires resources not defined for cluster: memory, slots"]
    lines = table_of(columns(SWEEP[:2], WHY=whys), SWEEP[:2], beneath=("WHY",))
    assert [line.strip() for line in lines[2::2]] == whys
    lines = table_of(columns(SWEEP[:2], WHY=[whys[0]] * 2), SWEEP[:2], beneath=("WHY",))
    assert lines[3:] == [f"All of them: {whys[0]}"]


def test_flag_named_by_an_attacker_sends_nothing_to_the_terminal() -> None:
    flags = [{"A\x1b]0;x\x07": value, **rest} for value, rest in zip("abcdefgh", SWEEP, strict=True)]
    lines = table_of(columns(flags, **{"val\x07": ["0.1"] * 8}), flags)
    assert "A ]0;x" in lines[0], "it has a column"
    assert all(letter.isprintable() for line in lines for letter in click.unstyle(line))


def test_columns_that_say_nothing_are_left_out_first() -> None:
    more = {"REQUESTS": ["-"] * 2, "WORKER": ["a-worker"] * 2, "FOR": ["25 s"] * 2}
    flags = [{"lr": "0.1", "alpha": "0.1"}, {"lr": "0.2", "alpha": "0.1"}]
    (head, *rows) = table_of(columns(flags, **more), flags, spare=("WORKER",))
    assert "REQUESTS" in head, "it fits without the worker"
    assert "WORKER" not in head
    assert "digits:train" in rows[0]
    assert "lr=0.1 alpha=0.1" in rows[0]


def test_nothing_is_cut_or_moved_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    whys = ["x" * 100, "y" * 200]
    lines = table_of(columns(SWEEP[:2], WHY=whys), SWEEP[:2], beneath=("WHY",), spare=("LABEL",))
    assert [line.split()[-1] for line in lines[1:]] == whys
    assert flags_text(SWEEP[0]) in lines[1]


def test_watch_counts_the_rows_of_lines_that_are_too_wide() -> None:
    lines = ["x" * 100, *"abcdef"]
    assert fitting(lines, 8) == lines
    assert fitting(lines, 5) == ["x" * 100, "a", "b", "... 4 more lines: the window is too small"]
