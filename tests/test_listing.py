"""Which runs are staged, found without looking at more than can have changed."""

import os
import pathlib

import pytest

from guild_dask import listing
from guild_dask.listing import RunsDirectory
from guild_dask.problems import HomeUnavailable


def _staged(runs: pathlib.Path, name: str, since: int, *tags: str) -> pathlib.Path:
    guild = runs / name / ".guild"
    (guild / "attrs").mkdir(parents=True)
    (guild / "opref").write_text("guildfile:/project/guild.yml '' '' op\n")
    (guild / "attrs" / "started").write_text(f"{since}\n")
    (guild / "attrs" / "tags").write_text("".join(f"- {tag}\n" for tag in tags) or "[]\n")
    (guild / "STAGED").touch()
    return guild


def _ids(directory: RunsDirectory) -> list[str]:
    return [run.id for run in directory.look().staged]


def test_runs_come_in_the_order_in_which_they_were_staged(tmp_path: pathlib.Path) -> None:
    _staged(tmp_path, "bbb", 1)
    _staged(tmp_path, "aaa", 2)
    assert _ids(RunsDirectory(str(tmp_path))) == ["bbb", "aaa"]


def test_run_that_guild_is_just_staging_is_not_there_yet(tmp_path: pathlib.Path) -> None:
    guild = _staged(tmp_path, "aaa", 1)
    (guild / "PENDING").touch()
    directory = RunsDirectory(str(tmp_path))
    assert _ids(directory) == []
    (guild / "PENDING").unlink()
    assert _ids(directory) == ["aaa"]


def test_new_tags_are_read_at_the_next_look(tmp_path: pathlib.Path) -> None:
    guild = _staged(tmp_path, "aaa", 1, "dask:foo=1")
    directory = RunsDirectory(str(tmp_path))
    (before,) = directory.look().staged
    (guild / "attrs" / "tags").write_text("- dask:foo=20\n")
    assert not directory.is_unchanged(before)
    (after,) = directory.look().staged
    assert (before.tags, after.tags) == (("dask:foo=1",), ("dask:foo=20",))
    assert directory.is_unchanged(after)


def test_half_written_directory_is_whole_at_a_later_look(tmp_path: pathlib.Path) -> None:
    guild = _staged(tmp_path, "aaa", 1)
    opref = (guild / "opref").read_text()
    (guild / "opref").unlink()
    directory = RunsDirectory(str(tmp_path))
    assert directory.look().broken == {"aaa": "it does not say which operation it is for"}
    (guild / "opref").write_text(opref)
    assert _ids(directory) == ["aaa"]
    assert directory.look().broken == {}


def test_directory_that_cannot_be_looked_into_is_named_and_the_others_are_found(tmp_path: pathlib.Path) -> None:
    _staged(tmp_path, "aaa", 1)
    (tmp_path / "bbb").mkdir()
    # Permissions do not keep root out; a link to itself does.
    os.symlink(".guild", tmp_path / "bbb" / ".guild")
    (tmp_path / "ccc").write_text("not a directory")
    found = RunsDirectory(str(tmp_path)).look()
    assert [run.id for run in found.staged] == ["aaa"]
    assert found.broken == {"bbb": "it cannot be read: Too many levels of symbolic links"}


def test_claimed_or_deleted_run_is_gone_at_the_next_look(tmp_path: pathlib.Path) -> None:
    one, other = _staged(tmp_path, "aaa", 1), _staged(tmp_path, "bbb", 2)
    directory = RunsDirectory(str(tmp_path))
    assert _ids(directory) == ["aaa", "bbb"]
    (one / "STAGED").rename(one / "PENDING")
    (other.parent).rename(tmp_path.parent / f"{tmp_path.name}-trash")
    assert _ids(directory) == []


def test_every_run_gets_its_turn(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Finished runs are looked at a few at a time; one that is staged again is found when its turn comes.
    monkeypatch.setattr(listing, "_TURN", 3)
    guilds = [_staged(tmp_path, f"run{number:02}", number) for number in range(1, 11)]
    for guild in guilds:
        (guild / "STAGED").unlink()
    directory = RunsDirectory(str(tmp_path))
    assert _ids(directory) == []
    for guild in guilds:
        (guild / "STAGED").touch()
    found = [len(_ids(directory)) for _ in range(4)]
    assert found == [3, 6, 9, 10]


def test_forgotten_name_is_looked_at_next(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_TURN", 0)
    guild = _staged(tmp_path, "aaa", 1)
    (guild / "STAGED").unlink()
    directory = RunsDirectory(str(tmp_path))
    assert _ids(directory) == []
    (guild / "STAGED").touch()
    assert _ids(directory) == []
    directory.forget("aaa")
    assert _ids(directory) == ["aaa"]


def test_home_without_runs_is_an_empty_one(tmp_path: pathlib.Path) -> None:
    assert _ids(RunsDirectory(str(tmp_path / "nothing"))) == []


def test_runs_directory_that_is_none_is_told(tmp_path: pathlib.Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(HomeUnavailable, match=r"cannot list .*runs: Not a directory"):
        RunsDirectory(str(tmp_path / "runs")).look()
