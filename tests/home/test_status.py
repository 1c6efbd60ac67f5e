"""The status of a run: Guild's rule, checked against Guild."""

import itertools
import os
import pathlib

import psutil
import pytest
from guild import run as guild_run

from guild_dask.home import layout, run_directory, run_view
from guild_dask.home.listing import RunsDirectory
from guild_dask.home.outcome import End
from guild_dask.home.run_info import KILLED_BY
from guild_dask.home.status import ENDED, Status, end_for, status, status_for
from tests.home.test_run_directory import make_run

MARKERS = ("LOCK.remote", "PENDING", "STAGED")
EXIT_STATUSES = (None, 0, 3, -15)
DEAD = 2**22 + 1  # above the largest pid
PIDS = (None, os.getpid(), DEAD)

SETS_OF_MARKERS = [chosen for count in range(len(MARKERS) + 1) for chosen in itertools.combinations(MARKERS, count)]


# Guild leaves it to the garbage collector to close the file LOCK.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("pid", PIDS, ids=("no process", "a process", "a dead process"))
@pytest.mark.parametrize("exit_status", EXIT_STATUSES)
@pytest.mark.parametrize("markers", SETS_OF_MARKERS, ids="+".join)
def test_status_is_the_one_that_guild_shows(
    tmp_path: pathlib.Path, markers: tuple[str, ...], exit_status: int | None, pid: int | None
) -> None:
    assert not psutil.pid_exists(DEAD)
    attributes = tmp_path / ".guild" / "attrs"
    attributes.mkdir(parents=True)
    for name in markers:
        (tmp_path / ".guild" / name).touch()
    if exit_status is not None:
        (attributes / "exit_status").write_text(f"{exit_status}\n")
    if pid is not None:
        (tmp_path / ".guild" / "LOCK").write_text(str(pid))
    shown = Status(guild_run.Run("aaa", str(tmp_path)).status)
    assert status(str(tmp_path)) is shown
    assert status_for(markers, exit_status, pid == os.getpid()) is shown


def test_run_with_an_unreadable_exit_status_has_none(tmp_path: pathlib.Path) -> None:
    attributes = tmp_path / ".guild" / "attrs"
    attributes.mkdir(parents=True)
    (attributes / "exit_status").write_text("[\n")
    assert status(str(tmp_path)) is Status.ERROR


@pytest.mark.parametrize(
    ("status", "facts", "end"),
    [
        (Status.COMPLETED, {}, End.COMPLETED),
        (Status.ERROR, {}, End.FAILED),
        (Status.TERMINATED, {}, End.TERMINATED),
        (Status.TERMINATED, {KILLED_BY: 11}, End.FAILED),
        # The user has started it again, without a scheduler.
        (Status.COMPLETED, {KILLED_BY: 11}, End.COMPLETED),
        *((status, {KILLED_BY: 11}, None) for status in Status if status not in ENDED),
    ],
)
def test_status_and_record_together_say_how_a_run_ended(status: Status, facts: dict[str, int], end: End | None) -> None:
    assert end_for(status, facts) is end


def test_staged_runs_that_are_counted_are_those_that_the_queue_takes(tmp_path: pathlib.Path) -> None:
    for name in ("aaa", "bbb", "ccc"):
        make_run(tmp_path / name)
    # Guild sets STAGED before it removes PENDING, and a kill in between leaves both.
    run_directory.set_marker(str(tmp_path / "bbb"), layout.PENDING)
    run_directory.clear_markers(str(tmp_path / "ccc"), layout.STAGED)
    assert [run.id for run in RunsDirectory(str(tmp_path)).poll().staged] == ["aaa"]
    assert run_view.count_staged(str(tmp_path)) == 1
    assert [name for name in ("aaa", "bbb", "ccc") if run_directory.is_staged(str(tmp_path / name))] == ["aaa"]
    assert run_view.count_staged(str(tmp_path / "missing")) == 0
