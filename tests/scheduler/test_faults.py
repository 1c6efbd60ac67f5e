"""The disk fills, the home becomes read-only, the lock is held: one message, no busy loop, and work goes on."""

import contextlib
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from guild import lock

from tests.support.sandbox import Guild, Sandbox, Started, run_command, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, scheduler_process, stage, statuses

HOLD = """
hold:
  exec: sh -c 'echo holding; until [ -e ../../../folder/go-$RUN_ID ]; do sleep 0.1; done'
"""
QUICK = """
quick:
  exec: echo quick
"""


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@pytest.fixture
def small_disk(user: Sandbox) -> Iterator[pathlib.Path]:
    """The Guild home on a file system of its own, which a test can fill or make read-only."""
    try:
        _mount("-t", "tmpfs", "-o", "size=4m", "tmpfs", str(user.guild_home))
    except (OSError, subprocess.CalledProcessError) as e:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"cannot mount a file system: {e}")
    try:
        yield user.guild_home
    finally:
        subprocess.run(["umount", "--lazy", str(user.guild_home)], check=True)


@contextlib.contextmanager
def _idle_scheduler(guild: Guild) -> Iterator[Started]:
    with guild.started(f"run dask:scheduler workers=1 poll-interval=0.3 {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("Waiting for staged runs")
        yield scheduler


def _wait_for_looks(user: Sandbox, count: int) -> None:
    """Waits until the scheduler has woken up and gone back to waiting so many times."""
    process = scheduler_process(user)
    first = process.num_ctx_switches().voluntary
    wait_until(lambda: process.num_ctx_switches().voluntary >= first + count, describe="looks of the scheduler")


def test_read_only_home_is_told_once_and_work_goes_on_when_it_can(
    user: Sandbox, guild: Guild, small_disk: pathlib.Path
) -> None:
    a_project(user, QUICK)
    with _idle_scheduler(guild) as scheduler:
        process = scheduler_process(user)
        stage(guild, "quick", "warm-up")
        wait_until(lambda: statuses(user)["warm-up"] == "completed", describe=scheduler.so_far)
        # Not only for Guild: what the scheduler has not settled by now is another thing to be told.
        wait_until(lambda: not any((user.guild_home / "dask" / "claims").iterdir()), describe=scheduler.so_far)
        # Staged between two polls, so that it cannot start before the disk is read-only.
        process.suspend()
        stage(guild, "quick", "aaa")
        # A mount of its own over the folder: files that are open already, such as Guild's log, stay writable.
        _mount("--bind", str(small_disk), str(small_disk))
        _mount("-o", "remount,bind,ro", str(small_disk))
        process.resume()
        _wait_for_looks(user, 30)
        assert statuses(user)["aaa"] == "staged"
        subprocess.run(["umount", str(small_disk)], check=True)
        wait_until(lambda: statuses(user)["aaa"] == "completed", describe=scheduler.so_far)
        _check_told_once(scheduler, "Read-only file system")


def test_full_disk_is_told_once_and_work_goes_on_when_it_can(
    user: Sandbox, guild: Guild, small_disk: pathlib.Path
) -> None:
    a_project(user, QUICK)
    with _idle_scheduler(guild) as scheduler:
        process = scheduler_process(user)
        process.suspend()
        stage(guild, "quick", "aaa")
        filler = small_disk / "filler"
        _fill(filler)
        process.resume()
        _wait_for_looks(user, 30)
        assert statuses(user)["aaa"] == "staged"
        filler.unlink()
        wait_until(lambda: statuses(user)["aaa"] == "completed", describe=scheduler.so_far)
        _check_told_once(scheduler, "No space left on device")


def _fill(path: pathlib.Path) -> None:
    with path.open("wb", buffering=0) as f, contextlib.suppress(OSError):
        while f.write(b"\0" * 4096):
            pass


@contextlib.contextmanager
def _read_only(folder: pathlib.Path) -> Iterator[None]:
    """Makes a folder read-only; files that are open already, such as Guild's log, stay writable."""
    _mount("--bind", str(folder), str(folder))
    _mount("-o", "remount,bind,ro", str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_home_that_becomes_read_only_does_not_disturb_what_is_running(
    user: Sandbox, guild: Guild, small_disk: pathlib.Path
) -> None:
    a_project(user, HOLD + QUICK)
    stage(guild, "hold", "aaa", "bbb")
    with guild.started(f"run dask:scheduler workers=2 poll-interval=0.3 {NO_DASHBOARD} -y") as scheduler:
        wait_until(lambda: scheduler.output.count("holding") == 2, describe=scheduler.so_far)
        with _read_only(small_disk):
            (user.folder / "go-aaa").touch()
            scheduler.wait_for_output("trying again")
            assert scheduler.is_running
        (user.folder / "go-bbb").touch()
        wait_until(lambda: statuses(user)["bbb"] == "completed", describe=scheduler.so_far)
        stage(guild, "quick", "ccc")
        wait_until(lambda: statuses(user)["ccc"] == "completed", describe=scheduler.so_far)
    assert "Traceback" not in scheduler.output
    assert "error in guild-dask itself" not in scheduler.output


def _as_a_user() -> list[str]:
    """Returns what runs a command so that permissions count: to root, they do only if it gives up what makes it so."""
    without = "-dac_override,-dac_read_search"
    return ["setpriv", f"--bounding-set={without}", f"--inh-caps={without}"] if os.getuid() == 0 else []


def test_run_that_was_staged_in_a_directory_that_cannot_be_entered_starts_elsewhere(
    user: Sandbox, guild: Guild
) -> None:
    project = a_project(user, QUICK)
    locked = user.folder / "locked"
    shutil.copytree(project, locked)
    os.chdir(locked)
    stage(guild, "quick", "aaa")
    os.chdir(project)
    stage(guild, "quick", "bbb")
    locked.chmod(0)
    command = f"guild run dask:scheduler workers=1 run-once=yes poll-interval=0.3 {NO_DASHBOARD} -y"
    finished = run_command([*_as_a_user(), *command.split()], os.environ, os.getcwd())
    locked.chmod(0o755)
    assert statuses(user) == {"aaa": "completed", "bbb": "completed"}, finished
    assert "could not be started" not in finished.output, finished


@pytest.mark.parametrize("mode", ["readable", "attributes"])
def test_run_that_cannot_be_written_does_not_hold_up_the_others(user: Sandbox, guild: Guild, mode: str) -> None:
    a_project(user, QUICK)
    stage(guild, "quick", "aaa", "bbb")
    run = user.guild_home / "runs" / "aaa" / ".guild"
    run.chmod(0o555) if mode == "readable" else (run / "attrs" / "flags").chmod(0)
    command = f"guild run dask:scheduler workers=1 run-once=yes poll-interval=0.3 {NO_DASHBOARD} -y"
    finished = run_command([*_as_a_user(), *command.split()], os.environ, os.getcwd())
    run.chmod(0o755)
    (run / "attrs" / "flags").chmod(0o644)
    assert finished.exit_code == 0, finished
    assert statuses(user) == {"aaa": "staged", "bbb": "completed"}, finished
    assert finished.output.count("Leaving run aaa staged") == 1, finished
    assert "1 run(s) completed, 0 failed, 1 left staged" in finished.output


def test_lock_that_somebody_holds_is_told_once_and_work_goes_on_when_it_is_free(user: Sandbox, guild: Guild) -> None:
    a_project(user, QUICK)
    with _idle_scheduler(guild) as scheduler:
        with lock.Lock(lock.RUN_STATUS, guild_home=str(user.guild_home)):
            stage(guild, "quick", "aaa")
            scheduler.wait_for_output("another process has held")
            assert statuses(user)["aaa"] == "staged"
        wait_until(lambda: statuses(user)["aaa"] == "completed", describe=scheduler.so_far)
        _check_told_once(scheduler, "another process has held")


def test_lock_of_a_dead_process_is_no_lock(user: Sandbox, guild: Guild) -> None:
    a_project(user, QUICK)
    stage(guild, "quick", "aaa")
    locks = user.guild_home / "locks"
    locks.mkdir(exist_ok=True)
    (locks / "run-status").write_text("")
    guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y")
    assert statuses(user)["aaa"] == "completed"


def test_home_that_vanishes_is_no_traceback(user: Sandbox, guild: Guild) -> None:
    a_project(user, QUICK)
    with _idle_scheduler(guild) as scheduler:
        runs = user.guild_home / "runs"
        runs.rename(user.guild_home / "moved")
        _wait_for_looks(user, 10)
        (user.guild_home / "moved").rename(runs)
        stage(guild, "quick", "aaa")
        wait_until(lambda: statuses(user).get("aaa") == "completed", describe=scheduler.so_far)
    assert "Traceback" not in scheduler.output


def _check_told_once(scheduler: Started, problem: str) -> None:
    wait_until(lambda: "The Guild home can be used again" in scheduler.output, describe=scheduler.so_far)
    assert scheduler.output.count(problem) == 1, scheduler.so_far()
    assert "Traceback" not in scheduler.output
