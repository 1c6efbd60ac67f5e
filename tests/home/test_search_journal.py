"""The journal of a search, on a disk that refuses what was written."""

import datetime
import errno
import math
import os
import pathlib
from typing import Any

import pytest

from guild_dask.home.search_journal import SearchJournal, as_recorded, read


def test_event_that_is_written_although_the_disk_reports_an_error_is_on_record(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else the search would propose the same point again, under another id.
    (tmp_path / ".guild").mkdir()
    journal = SearchJournal(str(tmp_path))

    def refuse(_fd: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="quota"):
            journal.add("proposed", trial="aaa", number=1, point={"x": 1})
    journal.refresh()
    assert set(journal.log.proposals) == {"aaa"}
    journal.add("staged", trial="aaa")
    assert read(str(tmp_path)).staged == {"aaa"}


def test_event_that_is_cut_short_is_not_on_record(tmp_path: pathlib.Path) -> None:
    (tmp_path / ".guild").mkdir()
    journal = SearchJournal(str(tmp_path))
    journal.add("proposed", trial="aaa", number=1, point={"x": 1})
    (file,) = (path for path in (tmp_path / ".guild").iterdir() if "search" in path.name)
    os.truncate(file, file.stat().st_size - 5)
    again = SearchJournal(str(tmp_path))
    assert again.log.proposals == {}
    again.add("proposed", trial="bbb", number=1, point={"x": 1})
    assert set(read(str(tmp_path)).proposals) == {"bbb"}


@pytest.mark.parametrize(
    "tail",
    [
        b"\xff\xfe\n",
        b"[" * 100_000,
        b'{"event": "proposed", "at": 1, "trial": "bbb", "number": Infinity, "point": {}}',
        b'{"event": "started", "at": 1' + b"0" * 400 + b"}",
    ],
    ids=["no text", "nested", "infinite", "huge"],
)
def test_line_that_is_damaged_is_not_on_record_and_those_around_it_are(tmp_path: pathlib.Path, tail: bytes) -> None:
    (tmp_path / ".guild").mkdir()
    SearchJournal(str(tmp_path)).add("proposed", trial="aaa", number=1, point={"x": 1})
    (file,) = (path for path in (tmp_path / ".guild").iterdir() if "search" in path.name)
    with file.open("ab") as f:
        f.write(tail)
    SearchJournal(str(tmp_path)).add("staged", trial="aaa")
    found = read(str(tmp_path))
    assert (set(found.proposals), found.staged) == ({"aaa"}, {"aaa"})


@pytest.mark.parametrize(
    ("flags", "is_recorded"),
    [
        (
            {"lr": 1e-5, "n": 2**70, "name": "\ud800ä", "none": None, "far": math.inf, "more": {"a": [1]}},
            True,
        ),
        ({}, True),
        ({1: 2}, False),
        ({"lr": {1: 2}}, False),
        ({"day": datetime.date(2020, 1, 1)}, False),
    ],
)
def test_flags_are_recorded_if_they_are_the_same_when_they_are_read(
    tmp_path: pathlib.Path, flags: dict[str, Any], is_recorded: bool
) -> None:
    (tmp_path / ".guild").mkdir()
    SearchJournal(str(tmp_path)).add("proposed", trial="aaa", number=1, point={}, flags=as_recorded(flags))
    assert read(str(tmp_path)).proposals["aaa"].flags == (flags if is_recorded else None)
