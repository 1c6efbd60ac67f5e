"""A nearly full disk, and low limits on processes: no staged run is taken for one that cannot start."""

import os
import pathlib
import re
import shutil

import pytest

from tests.support.exhaustion import as_nobody, disk, fill, give_to_nobody
from tests.support.sandbox import Guild, Sandbox, Started, run_command, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, scheduler_process, stage, statuses

QUICK = """
quick:
  exec: echo quick
refused:
  exec: echo refused
  requires:
    - file: no-such-file
"""
LONG = """
dies:
  exec: sh -c 'echo begun; exec sleep 600'
exits:
  exec: sh -c 'trap "exit 1" TERM; echo begun; sleep 600 & wait'
"""
RUNS = [f"run{number}" for number in range(4)]


def _all(status: str) -> dict[str, str]:
    return dict.fromkeys(RUNS, status)


def _check_log(scheduler: Started) -> None:
    """Checks that every start that failed has a reason, and that nothing is a traceback."""
    assert not re.search(r"could not be started[^:]*: *$", scheduler.output, re.MULTILINE), scheduler.so_far()
    assert "Traceback" not in scheduler.output, scheduler.so_far()
    assert "error in guild-dask itself" not in scheduler.output, scheduler.so_far()


@pytest.mark.parametrize(("kind", "left"), [("tmpfs", 4), ("tmpfs", 40), ("ext4", 24)])
def test_runs_stay_staged_on_a_nearly_full_disk_and_complete_when_there_is_space(
    user: Sandbox, guild: Guild, kind: str, left: int
) -> None:
    a_project(user, QUICK)
    with disk(kind, user.guild_home, user.root / "image") as home:
        command = f"run dask:scheduler workers=2 poll-interval=0.2 {NO_DASHBOARD} -y"
        with guild.started(command) as scheduler:
            scheduler.wait_for_output("Waiting for staged runs")
            process = scheduler_process(user)
            process.suspend()  # so that it starts nothing before the disk is full
            stage(guild, "quick", *RUNS)
            fill(home / "filler", left * 1024)
            process.resume()
            scheduler.wait_for_output("No space left on device")
            before = process.num_ctx_switches().voluntary
            wait_until(lambda: process.num_ctx_switches().voluntary > before + 30, describe=scheduler.so_far)
            assert statuses(user) == _all("staged"), scheduler.so_far()
            (home / "filler").unlink()
            wait_until(lambda: statuses(user) == _all("completed"), describe=scheduler.so_far)
        assert scheduler.output.count("No space left on device") == 1, scheduler.so_far()
        assert "can be used again" in scheduler.output
        _check_log(scheduler)


def test_run_whose_starter_finds_the_disk_full_is_staged_again(user: Sandbox, guild: Guild) -> None:
    # The scheduler saw free space when it claimed the run.
    a_project(user, QUICK)
    with disk("tmpfs", user.guild_home, user.root / "image") as home:
        command = f"run dask:scheduler workers=2 poll-interval=0.2 {NO_DASHBOARD} -y"
        with guild.started(command) as scheduler:
            scheduler.wait_for_output("Waiting for staged runs")
            (process,) = [each for each in user.processes() if "forkserver.py" in " ".join(each.cmdline())]
            process.suspend()  # runs are claimed, and their starters come when the disk is full
            stage(guild, "quick", *RUNS)
            wait_until(lambda: len(list(home.glob("dask/claims/*.claimed"))) == 2, describe=scheduler.so_far)
            fill(home / "filler", 8192)
            process.resume()
            scheduler.wait_for_output("No space left on device")
            (home / "filler").unlink()
            wait_until(lambda: statuses(user) == _all("completed"), describe=scheduler.so_far)
        _check_log(scheduler)


@pytest.mark.parametrize(("operation", "stop"), [("dies", "guild stop aaa -y"), ("exits", "guild-dask stop aaa")])
def test_run_that_the_user_stops_on_a_full_disk_is_not_tried_again(
    user: Sandbox, guild: Guild, operation: str, stop: str
) -> None:
    # Neither its starter nor Guild can record how it ended.
    a_project(user, LONG)
    with disk("tmpfs", user.guild_home, user.root / "image") as home:
        stage(guild, operation, "aaa", options="--tag dask-retries:1")
        with guild.started(f"run dask:scheduler poll-interval=0.2 {NO_DASHBOARD} -y") as scheduler:
            scheduler.wait_for_output("begun")
            fill(home / "filler", 0)
            stopped = run_command(stop, os.environ, os.getcwd())
            assert stopped.exit_code == 0, stopped
            scheduler.wait_for_output("No space left on device")
            (home / "filler").unlink()
            scheduler.wait_for_output("Run aaa was terminated")
        assert "attempt 2" not in scheduler.output, scheduler.so_far()


@pytest.mark.parametrize("most", [16, 25])
def test_too_low_a_limit_on_processes_ends_no_run(user: Sandbox, guild: Guild, most: int) -> None:
    a_project(user, QUICK)
    stage(guild, "quick", *RUNS)
    limited = Guild(user.root, (*as_nobody(f"--nproc={most}:1000"), "guild"))
    give_to_nobody(user.root)
    command = f"run dask:scheduler workers=4 poll-interval=0.2 run-once=yes {NO_DASHBOARD} -y"
    with limited.started(command) as scheduler:
        if most < 20:  # too few for a single run
            scheduler.wait_for_output("no more processes or threads can be started")
            for process in user.processes():
                run_command([*as_nobody("--nproc=1000:1000"), f"--pid={process.pid}"], os.environ, "/")
        ended = scheduler.wait()
    assert ended.exit_code == 0, ended
    assert statuses(user) == _all("completed"), ended
    assert "4 run(s) completed, 0 failed, 0 left staged" in ended.output
    _check_log(scheduler)


def test_too_low_a_limit_on_open_files_loses_no_run(user: Sandbox, guild: Guild) -> None:
    a_project(user, QUICK)
    stage(guild, "quick", "run0")
    runs = [f"run{number}" for number in range(40)]
    for name in runs[1:]:
        shutil.copytree(user.guild_home / "runs" / "run0", user.guild_home / "runs" / name)
    limited = Guild(user.root, ("prlimit", "--nofile=100", "guild"))
    with limited.started(
        f"run dask:scheduler workers=40 poll-interval=0.2 run-once=yes {NO_DASHBOARD} -y"
    ) as scheduler:
        ended = scheduler.wait(120)
    assert ended.exit_code == 0, ended
    assert statuses(user) == dict.fromkeys(runs, "completed"), ended
    assert "A limit of 100 open files is too low for 40 slots" in ended.output
    assert "Too many open files" in ended.output
    assert "40 run(s) completed, 0 failed, 0 left staged\n" in ended.output
    _check_log(scheduler)


def test_refusal_of_guild_ends_the_run_and_has_its_reason(user: Sandbox, guild: Guild) -> None:
    a_project(user, QUICK)
    (user.folder / "project" / "no-such-file").touch()
    stage(guild, "refused", "aaa")
    resolved = user.guild_home / "runs" / "aaa" / "no-such-file"
    resolved.unlink(missing_ok=True)
    (user.folder / "project" / "no-such-file").unlink()
    attribute = user.guild_home / "runs" / "aaa" / ".guild" / "attrs" / "deps"
    attribute.unlink(missing_ok=True)
    ended = guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y")
    assert statuses(user) == {"aaa": "error"}, ended
    assert re.search(r"Run aaa could not be started \(exit code 1\): .*no-such-file", ended.output), ended
    assert pathlib.Path(attribute.parent).is_dir()
