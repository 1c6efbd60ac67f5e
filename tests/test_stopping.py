"""Stopping a scheduler, or one of its runs: nothing is lost, and nothing is left behind."""

import pathlib
import signal
import time

import psutil
import pytest
from scheduling import NO_DASHBOARD, a_project, scheduler_process, stage, statuses
from support import Guild, Sandbox, Started, wait_until

# A run with a child, a child of a child in a session of its own, and one that nobody waits for.
TREE = """
tree:
  main: tree
"""
TREE_SCRIPT = """
import os, subprocess, time
subprocess.Popen("setsid sleep 3601 & (sleep 3602 &)", shell=True).wait()
subprocess.Popen(["sh", "-c", "sleep 3603; true"], start_new_session=True)
print("grown", flush=True)
time.sleep(3604)
"""
NAP = """
nap:
  exec: sh -c 'echo napping; exec sleep 3600'
"""
STUBBORN = """
stubborn:
  main: stubborn
"""
STUBBORN_SCRIPT = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("not listening", flush=True)
time.sleep(3600)
"""


def _sleepers(user: Sandbox) -> list[psutil.Process]:
    return [process for process in user.processes() if "sleep" in process.name()]


def _last_lines(started: Started) -> list[str]:
    return [line.partition(" ")[2].split(" ", 3)[-1] for line in started.output.strip().splitlines()[-2:]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stop_ends_runs_and_leaves_the_rest_staged(user: Sandbox, guild: Guild, number: signal.Signals) -> None:
    a_project(user, NAP)
    stage(guild, "nap", "aaa", "bbb", "ccc")
    with guild.started(f"run dask:scheduler workers=2 {NO_DASHBOARD} -y") as scheduler:
        wait_until(lambda: scheduler.output.count("napping") == 2, describe=scheduler.so_far)
        scheduler_process(user).send_signal(number)
        scheduler.wait(30)
    assert statuses(user) == {"aaa": "terminated", "bbb": "terminated", "ccc": "staged"}
    assert _last_lines(scheduler) == ["Stopping Dask scheduler", "Stopping Dask cluster"]


def test_guild_stop_ends_a_scheduler_in_the_background(user: Sandbox, guild: Guild) -> None:
    a_project(user, NAP)
    stage(guild, "nap", "aaa", "bbb")
    guild(f"run dask:scheduler workers=1 {NO_DASHBOARD} --background -y")
    wait_until(lambda: statuses(user)["aaa"] == "running", describe=lambda: statuses(user))
    guild("stop -Fo dask:scheduler -y")
    assert statuses(user) == {"aaa": "terminated", "bbb": "staged"}


def test_run_that_does_not_listen_is_killed_and_asking_twice_does_it_at_once(user: Sandbox, guild: Guild) -> None:
    a_project(user, STUBBORN, {"stubborn.py": STUBBORN_SCRIPT})
    once = _seconds_to_stop(user, guild, ["aaa", "bbb", "ccc"], [signal.SIGINT])
    assert statuses(user) == {"aaa": "terminated", "bbb": "terminated", "ccc": "staged"}
    guild("runs rm ccc -y")
    twice = _seconds_to_stop(user, guild, ["ddd", "eee", "fff"], [signal.SIGINT, signal.SIGINT])
    assert statuses(user) | {"ddd": "terminated", "eee": "terminated", "fff": "staged"} == statuses(user)
    assert not list((user.guild_home / "dask" / "claims").iterdir())
    # The first gave them ten seconds.
    assert twice < once / 2


def _seconds_to_stop(user: Sandbox, guild: Guild, run_ids: list[str], signals: list[signal.Signals]) -> float:
    stage(guild, "stubborn", *run_ids)
    with guild.started(f"run dask:scheduler workers=2 {NO_DASHBOARD} -y") as scheduler:
        wait_until(lambda: scheduler.output.count("not listening") == 2, describe=scheduler.so_far)
        process = scheduler_process(user)
        asked = time.monotonic()
        for number in signals:
            process.send_signal(number)
            scheduler.wait_for_output("Ending 2 run(s)")
        scheduler.wait(30)  # what Guild allows
        return time.monotonic() - asked


def test_stopping_the_scheduler_ends_the_whole_tree(user: Sandbox, guild: Guild) -> None:
    a_project(user, TREE, {"tree.py": TREE_SCRIPT})
    stage(guild, "tree", "aaa")
    with guild.started(f"run dask:scheduler {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("grown")
        wait_until(lambda: len(_sleepers(user)) >= 3)  # the last one is started by another process
        scheduler_process(user).terminate()
        scheduler.wait(30)
        assert not user.processes()
    assert statuses(user) == {"aaa": "terminated"}


def test_stopping_one_run_ends_its_whole_tree_and_no_other(user: Sandbox, guild: Guild) -> None:
    a_project(user, TREE + NAP, {"tree.py": TREE_SCRIPT})
    stage(guild, "tree", "aaa")
    stage(guild, "nap", "bbb")
    with guild.started(f"run dask:scheduler workers=2 {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("grown")
        scheduler.wait_for_output("napping")
        guild("stop aaa -y")
        scheduler.wait_for_output("Run aaa was terminated")
        assert len(_sleepers(user)) == 1  # the nap
        assert statuses(user) == {"aaa": "terminated", "bbb": "running"}


def test_a_stop_before_the_first_look_is_an_orderly_one(user: Sandbox, guild: Guild) -> None:
    a_project(user, NAP)
    stage(guild, "nap", "aaa")
    with guild.started(f"run dask:scheduler {NO_DASHBOARD} -y") as scheduler:
        wait_until(lambda: _has_scheduler(user), describe="a scheduler process")
        scheduler_process(user).terminate()
        scheduler.wait(30)
    assert "Traceback" not in scheduler.output
    assert statuses(user)["aaa"] in ("staged", "terminated")


def _has_scheduler(user: Sandbox) -> bool:
    try:
        # The handler for SIGTERM is there as soon as the first of our modules has been imported.
        return any("libffi" in m.path or "_ctypes" in m.path for m in scheduler_process(user).memory_maps())
    except (LookupError, psutil.Error):
        return False


def test_output_folder_of_a_stopped_scheduler_is_empty(user: Sandbox, guild: Guild) -> None:
    a_project(user, NAP)
    stage(guild, "nap", "aaa")
    with guild.started(f"run dask:scheduler {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("napping")
        scheduler_process(user).terminate()
        scheduler.wait(30)
    assert not [path for path in _scheduler_runs(user) if (path / "run-output").exists()]


def _scheduler_runs(user: Sandbox) -> list[pathlib.Path]:
    return [path for path in (user.guild_home / "runs").iterdir() if path.name not in ("aaa", "bbb")]
