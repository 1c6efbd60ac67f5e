"""Which runs are staged, found without looking at more than can have changed."""

import os
import pathlib

import pytest

from guild_dask.home import listing
from guild_dask.home.errors import HomeUnavailable
from guild_dask.home.listing import RunsDirectory, Turns
from guild_dask.home.run_directory import Staged


def _staged(runs: pathlib.Path, name: str, since: int, *tags: str) -> pathlib.Path:
    guild = runs / name / ".guild"
    (guild / "attrs").mkdir(parents=True)
    (guild / "opref").write_text("guildfile:/project/guild.yml '' '' op\n")
    (guild / "attrs" / "started").write_text(f"{since}\n")
    (guild / "attrs" / "tags").write_text("".join(f"- {tag}\n" for tag in tags) or "[]\n")
    (guild / "STAGED").touch()
    return guild


class Looking:
    """A runs directory, and the staged runs that its looks have told of."""

    def __init__(self, path: pathlib.Path, turns: Turns | None = None) -> None:
        self.directory = RunsDirectory(str(path), turns)
        self.runs: dict[str, Staged] = {}

    def ids(self) -> list[str]:
        """Returns the staged runs after another look, in order."""
        changes = self.directory.poll()
        for run_id in changes.gone:
            self.runs.pop(run_id, None)
        self.runs.update({run.id: run for run in changes.staged})
        return sorted(self.runs, key=lambda run_id: self.runs[run_id].since)


def test_runs_come_in_the_order_in_which_they_were_staged(tmp_path: pathlib.Path) -> None:
    _staged(tmp_path, "bbb", 1)
    _staged(tmp_path, "aaa", 2)
    assert [run.id for run in RunsDirectory(str(tmp_path)).poll().staged] == ["bbb", "aaa"]


def test_run_that_guild_is_just_staging_is_not_there_yet(tmp_path: pathlib.Path) -> None:
    guild = _staged(tmp_path, "aaa", 1)
    (guild / "PENDING").touch()
    looking = Looking(tmp_path)
    assert looking.ids() == []
    (guild / "PENDING").unlink()
    assert looking.ids() == ["aaa"]


def test_new_tags_are_read_at_the_next_look(tmp_path: pathlib.Path) -> None:
    guild = _staged(tmp_path, "aaa", 1, "dask:foo=1")
    directory = RunsDirectory(str(tmp_path))
    (before,) = directory.poll().staged
    (guild / "attrs" / "tags").write_text("- dask:foo=20\n")
    assert not directory.is_unchanged(before)
    (after,) = directory.poll().staged
    assert (before.tags, after.tags) == (("dask:foo=1",), ("dask:foo=20",))
    assert directory.is_unchanged(after)


def test_half_written_directory_is_whole_at_a_later_look(tmp_path: pathlib.Path) -> None:
    guild = _staged(tmp_path, "aaa", 1)
    opref = (guild / "opref").read_text()
    (guild / "opref").unlink()
    looking = Looking(tmp_path)
    assert looking.directory.poll().broken == {"aaa": "it does not say which operation it is for"}
    (guild / "opref").write_text(opref)
    assert looking.ids() == ["aaa"]
    assert looking.directory.poll().broken == {}


def test_directory_that_cannot_be_looked_into_is_named_and_the_others_are_found(tmp_path: pathlib.Path) -> None:
    _staged(tmp_path, "aaa", 1)
    (tmp_path / "bbb").mkdir()
    # Permissions do not keep root out; a link to itself does.
    os.symlink(".guild", tmp_path / "bbb" / ".guild")
    (tmp_path / "ccc").write_text("not a directory")
    found = RunsDirectory(str(tmp_path)).poll()
    assert [run.id for run in found.staged] == ["aaa"]
    assert found.broken == {"bbb": "it cannot be read: Too many levels of symbolic links"}


def test_claimed_or_deleted_run_is_gone_at_the_next_look(tmp_path: pathlib.Path) -> None:
    one, other = _staged(tmp_path, "aaa", 1), _staged(tmp_path, "bbb", 2)
    looking = Looking(tmp_path)
    assert looking.ids() == ["aaa", "bbb"]
    (one / "STAGED").rename(one / "PENDING")
    (other.parent).rename(tmp_path.parent / f"{tmp_path.name}-trash")
    assert looking.ids() == []


def test_every_run_gets_its_turn(tmp_path: pathlib.Path) -> None:
    # Finished runs are looked at a few at a time; one that is staged again is found when its turn comes.
    guilds = [_staged(tmp_path, f"run{number:02}", number) for number in range(1, 11)]
    for guild in guilds:
        (guild / "STAGED").unlink()
    looking = Looking(tmp_path, Turns(others=3))
    assert looking.ids() == []
    for guild in guilds:
        (guild / "STAGED").touch()
    found = [len(looking.ids()) for _ in range(4)]
    assert found == [3, 6, 9, 10]


def test_forgotten_name_is_read_at_the_next_poll(tmp_path: pathlib.Path) -> None:
    guild = _staged(tmp_path, "aaa", 1)
    (guild / "STAGED").unlink()
    looking = Looking(tmp_path, Turns(others=0))
    assert looking.ids() == []
    (guild / "STAGED").touch()
    assert looking.ids() == []
    looking.directory.forget("aaa")
    assert looking.ids() == ["aaa"]


def test_home_without_runs_is_an_empty_one(tmp_path: pathlib.Path) -> None:
    assert Looking(tmp_path / "nothing").ids() == []


def test_runs_directory_that_is_none_is_told(tmp_path: pathlib.Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(HomeUnavailable, match=r"cannot list .*runs: Not a directory"):
        RunsDirectory(str(tmp_path / "runs")).poll()


def test_only_what_has_changed_is_told(tmp_path: pathlib.Path) -> None:
    _staged(tmp_path, "aaa", 1)
    bbb = _staged(tmp_path, "bbb", 2, "dask:foo=1")
    directory = RunsDirectory(str(tmp_path))
    assert [run.id for run in directory.poll().staged] == ["aaa", "bbb"]
    assert directory.poll() == listing.Listing((), {})
    (bbb / "attrs" / "tags").write_text("- dask:foo=20\n")
    _staged(tmp_path, "ccc", 3)
    assert [(run.id, run.tags) for run in directory.poll().staged] == [("bbb", ("dask:foo=20",)), ("ccc", ())]
    (bbb / "STAGED").unlink()
    assert directory.poll() == listing.Listing((), {}, frozenset(("bbb",)))


def test_staged_runs_take_turns_and_one_that_is_to_start_does_not_wait_for_its(tmp_path: pathlib.Path) -> None:
    guilds = [_staged(tmp_path, f"run{number:02}", number) for number in range(1, 11)]
    looking = Looking(tmp_path, Turns(staged=3))
    assert len(looking.ids()) == 10
    for guild in guilds:
        (guild / "STAGED").unlink()
    chosen = "run10"
    assert not looking.directory.is_unchanged(looking.runs[chosen])
    assert chosen not in looking.ids()
    # Three had their turn, and the chosen one beside them, unless it was among them.
    assert len(looking.runs) in (6, 7)
    assert [len(looking.ids()) for _ in range(3)][-1] == 0


def test_names_are_listed_when_the_folder_has_changed_and_now_and_then(tmp_path: pathlib.Path) -> None:
    # A file system that does not keep the time of its folders costs a minute, not a run.
    _staged(tmp_path, "aaa", 1)
    os.utime(tmp_path, ns=(10**18, 10**18))
    looking = Looking(tmp_path)
    assert looking.ids() == ["aaa"]
    _staged(tmp_path, "bbb", 2)
    os.utime(tmp_path, ns=(10**18, 10**18))
    looks = [looking.ids() for _ in range(Turns().listed)]
    assert (looks[0], looks[-1]) == (["aaa"], ["aaa", "bbb"])
    _staged(tmp_path, "ccc", 3)
    assert looking.ids() == ["aaa", "bbb", "ccc"]


def test_name_that_came_in_the_moment_of_the_last_look_is_found(tmp_path: pathlib.Path) -> None:
    # Within the clock tick of the file system, the folder's time stays what it was.
    looking = Looking(tmp_path)
    _staged(tmp_path, "aaa", 1)
    status = tmp_path.stat()
    assert looking.ids() == ["aaa"]
    _staged(tmp_path, "bbb", 2)
    os.utime(tmp_path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert looking.ids() == ["aaa", "bbb"]
