"""Scheduler files that are none: each is an error that names the file, at once."""

import os
import pathlib

import pytest

from guild_dask.cluster.base import ClusterError, Common
from guild_dask.cluster.existing import open_existing
from guild_dask.settings.cluster_spec import ClusterChoice, Kind
from tests.support import hostile

TEXTS = ("", "rubbish{", "[]", "5", '{"id": "x"}', '{"address": 5}', "[" * 100_000)


def _refused(path: pathlib.Path) -> str:
    with pytest.raises(ClusterError) as refused:
        open_existing(ClusterChoice(Kind.SCHEDULER_FILE, str(path)), Common("home", "token", 60.0, print))
    return str(refused.value)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:20])
def test_malformed_scheduler_file_is_refused_at_once(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / "scheduler.json"
    path.write_text(text)
    assert _refused(path) == (
        f"cluster=scheduler-file:{path}: this is not a file that 'dask scheduler --scheduler-file' has written"
    )


def test_scheduler_file_that_is_a_pipe_or_huge_is_refused_at_once(tmp_path: pathlib.Path) -> None:
    hostile.by_pipe(tmp_path / "pipe")
    assert _refused(tmp_path / "pipe").endswith("it is a named pipe, not a file")
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", 1 << 40)
    assert "larger than" in _refused(tmp_path / "huge")
    assert _refused(tmp_path / "missing").endswith("there is no such file")
