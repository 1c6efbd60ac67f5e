"""Which runs are staged, found without reading more than can have changed."""

import os
import pathlib

import pytest

from guild_dask.home import listing
from guild_dask.home.errors import HomeUnavailable
from guild_dask.home.listing import RunsDirectory, Turns
from guild_dask.home.run_directory import Staged
from tests.support.failing_files import unreadable_file


def _staged(runs: pathlib.Path, name: str, since: int, *tags: str) -> pathlib.Path:
    guild = runs / name / ".guild"
    (guild / "attrs").mkdir(parents=True)
    (guild / "opref").write_text("guildfile:/project/guild.yml '' '' op\n")
    (guild / "attrs" / "started").write_text(f"{since}\n")
    (guild / "attrs" / "tags").write_text("".join(f"- {tag}\n" for tag in tags) or "[]\n")
    (guild / "STAGED").touch()
    return guild


class Polls:
    """A runs directory, and the staged runs that its polls have found."""

    def __init__(self, path: pathlib.Path, turns: Turns | None = None) -> None:
        self.directory = RunsDirectory(str(path), turns)
        self.runs: dict[str, Staged] = {}

    def ids(self) -> list[str]:
        """Returns the staged runs after another poll, in order."""
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
    polls = Polls(tmp_path)
    assert polls.ids() == []
    (guild / "PENDING").unlink()
    assert polls.ids() == ["aaa"]


def test_new_tags_are_read_at_the_next_poll(tmp_path: pathlib.Path) -> None:
    guild = _staged(tmp_path, "aaa", 1, "dask:foo=1")
    directory = RunsDirectory(str(tmp_path))
    (before,) = directory.poll().staged
    (guild / "attrs" / "tags").write_text("- dask:foo=20\n")
    assert not directory.is_unchanged(before)
    (after,) = directory.poll().staged
    assert (before.tags, after.tags) == (("dask:foo=1",), ("dask:foo=20",))
    assert directory.is_unchanged(after)


def test_half_written_directory_is_whole_at_a_later_poll(tmp_path: pathlib.Path) -> None:
    guild = _staged(tmp_path, "aaa", 1)
    opref = (guild / "opref").read_text()
    (guild / "opref").unlink()
    polls = Polls(tmp_path)
    assert polls.directory.poll().broken == {"aaa": "it names no operation"}
    (guild / "opref").write_text(opref)
    assert polls.ids() == ["aaa"]
    assert polls.directory.poll().broken == {}


def test_directory_that_cannot_be_read_is_named_and_the_others_are_found(tmp_path: pathlib.Path) -> None:
    _staged(tmp_path, "aaa", 1)
    (tmp_path / "bbb").mkdir()
    # Permissions do not keep root out; a link to itself does.
    os.symlink(".guild", tmp_path / "bbb" / ".guild")
    (tmp_path / "ccc").write_text("not a directory")
    found = RunsDirectory(str(tmp_path)).poll()
    assert [run.id for run in found.staged] == ["aaa"]
    assert found.broken == {"bbb": "it cannot be read: Too many levels of symbolic links"}


def test_claimed_or_deleted_run_is_gone_at_the_next_poll(tmp_path: pathlib.Path) -> None:
    one, other = _staged(tmp_path, "aaa", 1), _staged(tmp_path, "bbb", 2)
    polls = Polls(tmp_path)
    assert polls.ids() == ["aaa", "bbb"]
    (one / "STAGED").rename(one / "PENDING")
    (other.parent).rename(tmp_path.parent / f"{tmp_path.name}-trash")
    assert polls.ids() == []


def test_every_run_gets_its_turn(tmp_path: pathlib.Path) -> None:
    # Finished runs are read a few at a time; one that is staged again is found when its turn comes.
    guilds = [_staged(tmp_path, f"run{number:02}", number) for number in range(1, 11)]
    for guild in guilds:
        (guild / "STAGED").unlink()
    polls = Polls(tmp_path, Turns(others=3))
    assert polls.ids() == []
    for guild in guilds:
        (guild / "STAGED").touch()
    found = [len(polls.ids()) for _ in range(4)]
    assert found == [3, 6, 9, 10]


def test_forgotten_name_is_read_at_the_next_poll(tmp_path: pathlib.Path) -> None:
    guild = _staged(tmp_path, "aaa", 1)
    (guild / "STAGED").unlink()
    polls = Polls(tmp_path, Turns(others=0))
    assert polls.ids() == []
    (guild / "STAGED").touch()
    assert polls.ids() == []
    polls.directory.forget("aaa")
    assert polls.ids() == ["aaa"]


@pytest.mark.parametrize("name", ["attrs/tags", "attrs/started", "opref", "STAGED"])
def test_run_of_which_a_file_cannot_be_read_hides_no_other(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    bad = _staged(tmp_path, "aaa", 1)
    _staged(tmp_path, "bbb", 2)
    polls = Polls(tmp_path)
    with unreadable_file(monkeypatch, str(bad / name)):
        assert polls.ids() == ["bbb"]
    assert polls.ids() == ["aaa", "bbb"]


def test_home_of_which_no_run_can_be_read_is_unavailable(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number:03}" for number in range(50)]
    folders = [_staged(tmp_path, name, 1) for name in names]
    polls = Polls(tmp_path)
    with (
        unreadable_file(monkeypatch, *(str(each / "opref") for each in folders)),
        pytest.raises(HomeUnavailable, match="Input/output error"),
    ):
        polls.ids()
    assert sorted(polls.ids()) == names


def test_home_without_runs_is_an_empty_one(tmp_path: pathlib.Path) -> None:
    assert Polls(tmp_path / "nothing").ids() == []


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
    polls = Polls(tmp_path, Turns(staged=3))
    assert len(polls.ids()) == 10
    for guild in guilds:
        (guild / "STAGED").unlink()
    chosen = "run10"
    assert not polls.directory.is_unchanged(polls.runs[chosen])
    assert chosen not in polls.ids()
    # Three had their turn, and the chosen one beside them, unless it was among them.
    assert len(polls.runs) in (6, 7)
    assert [len(polls.ids()) for _ in range(3)][-1] == 0


def test_names_are_listed_when_the_folder_has_changed_and_now_and_then(tmp_path: pathlib.Path) -> None:
    # A file system that does not keep the time of its folders costs a minute, not a run.
    _staged(tmp_path, "aaa", 1)
    os.utime(tmp_path, ns=(10**18, 10**18))
    polls = Polls(tmp_path)
    assert polls.ids() == ["aaa"]
    _staged(tmp_path, "bbb", 2)
    os.utime(tmp_path, ns=(10**18, 10**18))
    found = [polls.ids() for _ in range(Turns().listed)]
    assert (found[0], found[-1]) == (["aaa"], ["aaa", "bbb"])
    _staged(tmp_path, "ccc", 3)
    assert polls.ids() == ["aaa", "bbb", "ccc"]


def test_name_that_came_in_the_moment_of_the_last_poll_is_found(tmp_path: pathlib.Path) -> None:
    # Within the clock tick of the file system, the folder's time stays what it was.
    polls = Polls(tmp_path)
    _staged(tmp_path, "aaa", 1)
    status = tmp_path.stat()
    assert polls.ids() == ["aaa"]
    _staged(tmp_path, "bbb", 2)
    os.utime(tmp_path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert polls.ids() == ["aaa", "bbb"]
