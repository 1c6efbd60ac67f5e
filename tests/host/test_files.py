"""On NFS, what another host has changed is seen for sure only in a folder that was opened since.

NFS itself is not to be had everywhere; tests/long/on_nfs.py has it. Here it is seen that folders are opened in time.
"""

import os
import pathlib
import sys
from collections.abc import Callable, Iterator

import pytest

from guild_dask.home import (
    attempts,
    claims,
    control,
    end_note,
    layout,
    run_directory,
    search_journal,
    status,
    stop_request,
)
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.home.run_queue import GuildHome
from guild_dask.host import files, processes

_EVENTS = ("open", "os.listdir", "os.rename", "os.remove")
_heard: list[list[str]] = []  # what is touched, while a test listens


def _listen(event: str, args: tuple[object, ...]) -> None:
    if _heard and event in _EVENTS and isinstance(args[0], (str, bytes, os.PathLike)):
        _heard[-1].append(os.fsdecode(args[0]))


@pytest.fixture(scope="session", autouse=True)
def _ear() -> None:
    sys.addaudithook(_listen)  # for which there is no way back


@pytest.fixture
def touched() -> Iterator[list[str]]:
    _heard.append([])
    yield _heard[-1]
    _heard.clear()


def _me() -> processes.ProcessIdentity:
    me = processes.identity(os.getpid())
    assert me
    return me


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder of claims, with one on the run aaa."""
    claims.write(tmp_path / "dask" / "claims", claims.Claim("aaa", "sss", _me(), _me()))
    return tmp_path / "dask" / "claims"


READS: dict[str, Callable[[pathlib.Path], object]] = {
    "present": lambda folder: claims.present(folder, "aaa"),
    "all_claims": lambda folder: list(claims.all_claims(folder)),
    "withdraw": lambda folder: claims.withdraw(folder, "aaa"),
    "hand_over": lambda folder: claims.hand_over(folder, claims.Claim("aaa", "sss", _me(), _me()), _me()),
    "is_owned_by": lambda folder: claims.is_owned_by(claims.path(folder, "aaa"), _me()),
    "mark_started": lambda folder: claims.mark_started(claims.path(folder, "aaa")),
    "remove": lambda folder: claims.remove(folder, "aaa"),
    "last_heartbeat": lambda folder: claims.last_heartbeat(folder, "aaa"),
    "written": lambda folder: claims.written(folder, "aaa"),
    "read": lambda folder: end_note.read(claims.path(folder, "aaa")),
    "read_exit": lambda folder: end_note.read_exit(claims.path(folder, "aaa"), _me()),
    "requested_cause": lambda folder: stop_request.requested_cause(claims.path(folder, "aaa")),
    "is_requested": lambda folder: stop_request.is_requested(claims.path(folder, "aaa")),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_folder_of_claims_is_opened_before_anything_in_it_decides(
    folder: pathlib.Path, touched: list[str], read: Callable[[pathlib.Path], object]
) -> None:
    read(folder)
    assert next(path for path in touched if path.startswith(str(folder))) == str(folder)


def test_run_directory_is_refreshed_before_its_end_is_read(tmp_path: pathlib.Path, touched: list[str]) -> None:
    run_dir = tmp_path / "runs" / "aaa"
    (run_dir / ".guild" / "attrs").mkdir(parents=True)
    home = GuildHome(str(tmp_path), Heartbeat(str(tmp_path), "sss", _me()))
    home.settle("aaa", 0)
    home.has_recorded_end(claims.Found("aaa", None, is_started=True, written=0))
    guild_dir = run_dir / ".guild"
    found = [path for path in touched if path.startswith(str(run_dir))]
    assert found[:6] == [str(run_dir), str(guild_dir), f"{guild_dir}/attrs"] * 2


# What decides about a run, and what is read for polls and views.
DECIDING: dict[str, Callable[[str], object]] = {
    "is_there": run_directory.is_there,
    "is_run": run_directory.is_run,
    "is_missing": run_directory.is_missing,
    "has": lambda run_dir: run_directory.has(run_dir, layout.LOCK),
    "is_staged": run_directory.is_staged,
    "clear_markers": lambda run_dir: run_directory.clear_markers(run_dir, layout.PENDING),
    "attribute": lambda run_dir: run_directory.attribute(run_dir, "exit_status"),
    "our_tags": run_directory.our_tags,
    "recorded_status": run_directory.recorded_status,
    "has_end": run_directory.has_end,
    "recorded_end": run_directory.recorded_end,
    "recorded_start": run_directory.recorded_start,
    "forget_end": run_directory.forget_end,
    "current_signature": run_directory.current_signature,
    "status": status.status,
    "search_journal": search_journal.read,
}
POLLING: dict[str, Callable[[str], object]] = {
    "seems_staged": run_directory.seems_staged,
    "seems_to_have": lambda run_dir: run_directory.seems_to_have(run_dir, layout.LOCK),
    "staged_signature": run_directory.staged_signature,
    "known_attribute": lambda run_dir: run_directory.known_attribute(run_dir, "exit_status"),
    "exit_status": run_directory.exit_status,
}


@pytest.fixture
def run_dir(tmp_path: pathlib.Path) -> str:
    attributes = pathlib.Path(layout.attributes(str(tmp_path / "aaa")))
    attributes.mkdir(parents=True)
    (attributes / "exit_status").write_text("0")
    run_directory.set_marker(str(tmp_path / "aaa"), layout.STAGED)
    return str(tmp_path / "aaa")


@pytest.mark.parametrize("read", DECIDING.values(), ids=DECIDING)
def test_run_directory_is_opened_before_anything_in_it_decides(
    run_dir: str, touched: list[str], read: Callable[[str], object]
) -> None:
    touched.clear()
    read(run_dir)
    folders = (run_dir, layout.guild_dir(run_dir), layout.attributes(run_dir))
    assert touched[0] in folders
    # No folder is opened twice, which would take another message to the file server.
    assert [path for path in touched if path in folders] == [path for path in folders if path in touched]
    assert touched[: len(set(touched) & set(folders))] == [path for path in folders if path in touched]


@pytest.mark.parametrize("read", POLLING.values(), ids=POLLING)
def test_polls_and_views_open_no_folder(run_dir: str, touched: list[str], read: Callable[[str], object]) -> None:
    touched.clear()
    read(run_dir)
    assert not [path for path in touched if os.path.isdir(path)]


def test_folders_of_attempts_and_requests_are_refreshed(tmp_path: pathlib.Path, touched: list[str]) -> None:
    attempts.past(str(tmp_path))
    assert touched[:2] == [str(tmp_path / ".guild"), str(tmp_path / ".guild" / "dask-attempts")]
    control.state(str(tmp_path), "sss")
    assert touched[-1] == str(control.folder(str(tmp_path)))


def test_missing_folder_is_ignored(tmp_path: pathlib.Path) -> None:
    files.refresh(tmp_path / "missing", tmp_path)
    with pytest.raises(FileNotFoundError):
        files.modified(tmp_path / "missing")
    (tmp_path / "file").touch()
    assert files.modified(tmp_path / "file") == (tmp_path / "file").stat().st_mtime
    assert files.names(tmp_path / "missing") == []


def test_new_folders_are_refreshed_from_the_outermost_to_the_innermost(
    tmp_path: pathlib.Path, touched: list[str]
) -> None:
    assert not files.exists(tmp_path / "a" / "b" / "c", levels=3)
    assert touched == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]


def test_folder_of_several_files_is_refreshed_once(tmp_path: pathlib.Path, touched: list[str]) -> None:
    (tmp_path / "b").write_text("found")
    candidates = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    touched.clear()
    assert files.first(candidates, pathlib.Path.read_text) == "found"
    assert touched == [str(tmp_path), *map(str, candidates[:2])]


@pytest.mark.parametrize("content", ["text", b"bytes"])
def test_write_replaces_the_whole_content_and_leaves_no_draft(tmp_path: pathlib.Path, content: str | bytes) -> None:
    file = tmp_path / "file"
    file.write_text("something longer than the new content")
    files.write(file, content, "draft")
    assert file.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [file]


def test_write_that_fails_leaves_the_old_content_and_no_draft(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "target"
    target.mkdir()  # which no file can replace
    with pytest.raises(OSError, match="target"):
        files.write(target, "new")
    assert list(tmp_path.iterdir()) == [target]
