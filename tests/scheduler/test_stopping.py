"""Stopping a scheduler, or one of its runs: nothing is lost, and nothing is left behind."""

import pathlib
import signal
import socket
import time

import psutil
import pytest

from tests.support.sandbox import DEADLINE, Guild, Sandbox, Started, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, scheduler_process, stage, statuses

# A run with a child, a child of a child in a session of its own, and one that no process waits for.
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
# A run that cuts processes loose, as servers and agents do, and exits by itself: when it is asked to, or at once.
LOOSE = """
loose:
  exec: python loose.py ${seconds}
  flags:
    seconds: 0
"""
LOOSE_SCRIPT = """
import signal, subprocess, sys, time
subprocess.Popen("exec > /dev/null 2>&1; (setsid sleep 3601 &); (sleep 3602 &); sleep 0.3 &", shell=True).wait()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("loose", flush=True)
time.sleep(int(sys.argv[1]))
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


def test_run_that_ends_by_itself_when_it_is_stopped_leaves_nothing_behind(user: Sandbox, guild: Guild) -> None:
    a_project(user, LOOSE, {"loose.py": LOOSE_SCRIPT})
    stage(guild, "loose", "aaa", options="seconds=3603")
    with guild.started(f"run dask:scheduler {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("loose")
        wait_until(lambda: len(_sleepers(user)) >= 2)
        guild("stop aaa -y")
        wait_until(lambda: statuses(user) == {"aaa": "completed"})  # by its own account
        wait_until(lambda: not _sleepers(user))
        assert scheduler_process(user).is_running()


def test_run_that_ends_by_itself_when_it_is_stopped_leaves_nothing_that_holds_its_output(
    user: Sandbox, guild: Guild
) -> None:
    a_project(user, LOOSE, {"loose.py": LOOSE_SCRIPT.replace("exec > /dev/null 2>&1;", "")})
    stage(guild, "loose", "aaa", options="seconds=3603")
    with guild.started(f"run dask:scheduler {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("loose")
        wait_until(lambda: len(_sleepers(user)) >= 2)
        guild("stop aaa -y")
        wait_until(lambda: not _sleepers(user))
        wait_until(lambda: statuses(user) == {"aaa": "completed"})
        assert scheduler_process(user).is_running()


def test_run_goes_on_for_as_long_as_its_output_is_open(user: Sandbox, guild: Guild) -> None:
    # As with Guild alone: the operation's own process may leave the work to others.
    a_project(user, "apart:\n  exec: sh -c '(sleep 3; echo done at last) &'\n")
    stage(guild, "apart", "aaa")
    assert "done at last" in guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y").output


def test_run_that_has_ended_uses_nothing_that_the_next_one_is_given(user: Sandbox, guild: Guild) -> None:
    a_project(user, LOOSE, {"loose.py": LOOSE_SCRIPT})
    stage(guild, "loose", "aaa", "bbb")
    output = guild(f"run dask:scheduler workers=1 run-once=yes {NO_DASHBOARD} -y").output
    assert "2 run(s) completed" in output
    assert "Run aaa ended and left processes behind, which are ended, too: sleep (pid " in output
    assert output.index("Run aaa ended and left") < output.rindex("\nloose\n")
    assert not user.processes()


def test_what_ends_soon_after_its_run_is_not_worth_a_word(user: Sandbox, guild: Guild) -> None:
    a_project(user, "soon:\n  exec: sh -c '(exec >/dev/null 2>&1; setsid sleep 0.5 & setsid sleep 0.1 &)'\n")
    stage(guild, "soon", "aaa")
    output = guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y").output
    assert "1 run(s) completed" in output
    assert "left" not in output.replace("left staged", "")


def test_a_stop_before_the_first_look_is_an_orderly_one(user: Sandbox, guild: Guild) -> None:
    a_project(user, NAP)
    stage(guild, "nap", "aaa")
    with guild.started(f"run dask:scheduler {NO_DASHBOARD} -y") as scheduler:
        wait_until(lambda: _has_scheduler(user), describe="a scheduler process")
        scheduler_process(user).terminate()
        scheduler.wait(30)
    assert "Traceback" not in scheduler.output
    assert statuses(user)["aaa"] in ("staged", "terminated")


# A class whose clusters take a while to come; that they are closed can be seen.
SLOW_CLASS = """
import pathlib, time
from distributed import LocalCluster

class Slow(LocalCluster):
    def __init__(self):
        print("class is opening", flush=True)
        time.sleep(2)
        super().__init__(n_workers=1, dashboard_address=None)

    def close(self, timeout=None):
        print("class is closed", flush=True)
        return super().close(timeout)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_is_heard_while_a_dask_scheduler_does_not_answer(
    user: Sandbox, guild: Guild, number: signal.Signals
) -> None:
    # It takes connections, and says nothing.
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf.settimeout(DEADLINE)
        address = f"tcp://127.0.0.1:{deaf.getsockname()[1]}"
        with guild.started(f"run dask:scheduler cluster={address} {NO_DASHBOARD} -y") as scheduler:
            scheduler.wait_for_output("Initializing cluster")
            with deaf.accept()[0]:
                began = time.monotonic()
                scheduler_process(user).send_signal(number)
                scheduler.wait(20)
    assert time.monotonic() - began < 10, "it would have given up by itself after 30 seconds"
    assert _last_lines(scheduler) == ["Stopping Dask scheduler", "Stopping Dask cluster"], scheduler.output
    assert "Traceback" not in scheduler.output
    assert not list((user.guild_home / "dask" / "schedulers").iterdir())


def test_stop_is_heard_while_a_cluster_of_any_class_is_opened_and_it_is_closed(
    user: Sandbox, guild: Guild, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_project(user, NAP, {"slow.py": SLOW_CLASS})
    monkeypatch.setenv("PYTHONPATH", str(folder))
    with guild.started(f"run dask:scheduler cluster=slow:Slow {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("class is opening")
        scheduler.signal(signal.SIGINT)
        scheduler.wait(30)
    assert "class is closed" in scheduler.output
    assert "Dashboard link" not in scheduler.output
    assert _last_lines(scheduler) == ["Stopping Dask scheduler", "Stopping Dask cluster"], scheduler.output
    assert "Traceback" not in scheduler.output


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
