"""Tests which processes are taken for those of a run."""

import os
import pathlib

import pytest

from guild_dask.home import run_processes
from tests.support.processes import living


@pytest.fixture
def run_dir(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "home" / "runs" / "aaa"
    folder.mkdir(parents=True)
    return folder


def pids_of(run_dir: pathlib.Path, **variables: str) -> tuple[bool, bool]:
    """Tells whether a process with these variables belongs to the run, by itself and among all processes."""
    with living("sh", "-c", "echo ready; cat", env={**os.environ, **variables}) as process:
        assert process.stdout
        process.stdout.readline()  # a process that is just starting has no readable environment
        found = {each.pid for each in run_processes.all_of(str(run_dir))}
        return run_processes.belongs_to(process.pid, str(run_dir)), process.pid in found


def test_process_of_a_run_names_its_directory(run_dir: pathlib.Path) -> None:
    assert pids_of(run_dir, RUN_ID="aaa", RUN_DIR=str(run_dir)) == (True, True)


def test_other_paths_of_the_same_directory_count(run_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "home")
    assert pids_of(run_dir, RUN_ID="aaa", RUN_DIR=str(link / "runs" / "aaa")) == (True, True)


def test_run_of_that_id_in_another_home_is_another_run(run_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    # A run that was exported and imported keeps its id.
    copy = tmp_path / "copy" / "runs" / "aaa"
    copy.mkdir(parents=True)
    assert pids_of(run_dir, RUN_ID="aaa", RUN_DIR=str(copy)) == (False, False)


def test_id_decides_if_the_directory_cannot_be_seen(run_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    # It may have another path there, as in a container.
    assert pids_of(run_dir, RUN_ID="aaa", RUN_DIR=str(tmp_path / "not-here")) == (True, True)
    assert pids_of(run_dir, RUN_ID="bbb", RUN_DIR=str(tmp_path / "not-here")) == (False, False)
