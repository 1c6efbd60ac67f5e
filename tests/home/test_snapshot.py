"""What is on record for a run survives a start that was cut short."""

import os
import pathlib

import pytest

from guild_dask.home import snapshot
from guild_dask.host import files


@pytest.fixture
def run(tmp_path: pathlib.Path) -> pathlib.Path:
    attributes = tmp_path / "run" / ".guild" / "attrs"
    attributes.mkdir(parents=True)
    (attributes.parent / "opref").write_text("guildfile:/project/guild.yml '' '' op\n")
    (attributes / "flags").write_text("lr: 0.1\n")
    (attributes / "label").write_bytes(b"caf\xe9 \xff\x00\n")
    return tmp_path / "run"


def _restore(run: pathlib.Path, saved: pathlib.Path) -> None:
    with files.open_folder(run / ".guild") as folder:
        snapshot.restore(folder, saved)


def _records(run: pathlib.Path) -> dict[str, bytes]:
    paths = [run / ".guild" / "opref", *(run / ".guild" / "attrs").iterdir()]
    return {path.name: path.read_bytes() for path in paths}


def test_records_come_back_as_they_were(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    before = _records(run)
    snapshot.save(str(run), tmp_path / "aaa.saved")
    # As Guild leaves them when it is killed: emptied, half written, added.
    (run / ".guild" / "opref").write_text("")
    (run / ".guild" / "attrs" / "flags").write_text("lr: ")
    (run / ".guild" / "attrs" / "env").write_text("A: b\n")
    _restore(run, tmp_path / "aaa.saved")
    assert _records(run) == before
    _restore(run, tmp_path / "aaa.saved")
    assert _records(run) == before


def test_without_a_snapshot_nothing_is_touched(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    before = _records(run)
    _restore(run, tmp_path / "aaa.saved")
    (tmp_path / "aaa.saved").write_text("[rubbish")
    _restore(run, tmp_path / "aaa.saved")
    assert _records(run) == before


def test_snapshot_that_cannot_be_written_leaves_no_draft(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "aaa.saved").mkdir()
    with pytest.raises(OSError, match=r"aaa\.saved"):
        snapshot.save(str(run), tmp_path / "aaa.saved")
    assert sorted(os.listdir(tmp_path)) == ["aaa.saved", "run"]
