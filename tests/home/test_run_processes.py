"""Tests which processes are taken for those of a run."""

import os
import pathlib
import subprocess
import sys

import pytest

from guild_dask.home import claims, layout, run_processes, second_start
from guild_dask.home.claim_record import Claim
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.home.run_queue import GuildHome
from guild_dask.host import processes
from tests.home.test_run_directory import make_run
from tests.support.processes import living
from tests.support.sandbox import wait_until


@pytest.fixture
def run_dir(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "home" / "runs" / "aaa"
    folder.mkdir(parents=True)
    return folder


def pids_of(run_dir: pathlib.Path, **variables: str) -> tuple[bool, bool]:
    """Returns whether a process with these variables belongs to the run, by itself and among all processes."""
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


@pytest.mark.skipif(sys.platform != "linux", reason="reads environments of processes")
def test_run_whose_starter_alone_was_killed_is_neither_claimed_nor_started_again(run_dir: pathlib.Path) -> None:
    # Recovery takes such a run for running; a user who stages or restarts it must not get a second copy.
    starter = subprocess.Popen(["sleep", "60"])
    owner = processes.identity(starter.pid)
    starter.kill()
    starter.wait()
    home = run_dir.parents[1]
    assert owner
    folder = layout.claims_folder(str(home))
    claim = Claim("aaa", "scheduler", owner, owner, 1, {})
    claims.write(folder, claim)
    os.rename(claims.path(folder, "aaa"), claims.path(folder, "aaa").with_suffix(claims.STARTED))
    make_run(run_dir)
    me = processes.identity(os.getpid())
    assert me
    guild_home = GuildHome(str(home), Heartbeat(str(home), "me", me))
    (run,) = guild_home.staged().staged
    with living("sh", "-c", "echo ready; cat", env={**os.environ, "RUN_ID": "aaa", "RUN_DIR": str(run_dir)}) as process:
        assert process.stdout
        process.stdout.readline()
        assert "runs aaa" in second_start.refusal_for(str(run_dir))
        assert not guild_home.claim([(run, claim)]).taken
    wait_until(lambda: second_start.refusal_for(str(run_dir)) == "")  # `cat` ends a moment later than its shell
    (run,) = guild_home.staged().staged
    assert guild_home.claim([(run, claim)]).taken
