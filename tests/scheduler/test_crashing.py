"""A scheduler that is killed loses nothing, and the next one takes up where it was."""

import json
import socket

import psutil

from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, scheduler_process, stage, statuses

# Runs until a file appears, and prints more than a pipe holds, so that it would hang if its output were not read.
TALKER = """
talk:
  main: talk
"""
TALKER_SCRIPT = """
import os, time
print("talking", flush=True)
while not os.path.exists(os.environ["GUILD_HOME"] + "/enough"):
    print("x" * 20000, flush=True)
    time.sleep(0.05)
print("done", flush=True)
"""
QUICK = """
quick:
  exec: echo quick
"""


def _kill_with_its_parent(user: Sandbox) -> None:
    """Kills the scheduler and the `guild run` process that reads its output."""
    process = scheduler_process(user)
    parent = process.parent()
    for victim in (process, parent):
        if victim:
            victim.kill()
    # Debian's init in a container may not take note of a dead child; a zombie is dead.
    wait_until(lambda: not _lives(process), describe="the scheduler's death")


def _lives(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


def test_killed_scheduler_leaves_the_queue_staged_and_its_run_goes_on(user: Sandbox, guild: Guild) -> None:
    a_project(user, TALKER + QUICK, {"talk.py": TALKER_SCRIPT})
    stage(guild, "talk", "aaa")
    stage(guild, "quick", "bbb", "ccc")
    with guild.started(f"run dask:scheduler workers=1 {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("talking")
        _kill_with_its_parent(user)
    assert statuses(user) == {"aaa": "running", "bbb": "staged", "ccc": "staged"}

    # The run that goes on takes the only slot of the next scheduler, too: it has to end first.
    with guild.started(f"run dask:scheduler workers=1 poll-interval=0.5 run-once=yes {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("Starting staged run ccc")
        size = _output_size(user)
        wait_until(lambda: _output_size(user) > size + 200_000, describe="output of the run that goes on")
        assert statuses(user) == {"aaa": "running", "bbb": "staged", "ccc": "staged"}
        (user.guild_home / "enough").touch()
        scheduler.wait()
    assert statuses(user) == {"aaa": "completed", "bbb": "completed", "ccc": "completed"}
    assert guild("cat --output aaa").output.rstrip().endswith("done")
    assert not list((user.guild_home / "dask" / "claims").iterdir())


def _output_size(user: Sandbox) -> int:
    return (user.guild_home / "runs" / "aaa" / ".guild" / "output").stat().st_size


def test_amounts_that_a_dead_schedulers_run_uses_are_counted(user: Sandbox, guild: Guild) -> None:
    a_project(user, TALKER + QUICK, {"talk.py": TALKER_SCRIPT})
    stage(guild, "talk", "aaa", options="--tag dask:gpu=1")
    with guild.started(f"run dask:scheduler workers=4 resources=gpu=2 {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("talking")
        _kill_with_its_parent(user)
    stage(guild, "quick", "bbb", options="--tag dask:gpu=2")
    stage(guild, "quick", "ccc", options="--tag dask:gpu=1")
    flags = f"workers=4 resources=gpu=2 poll-interval=0.5 run-once=yes {NO_DASHBOARD}"
    with guild.started(f"run dask:scheduler {flags} -y") as scheduler:
        # One of two is free: ccc fits beside the run that goes on, bbb does not.
        wait_until(lambda: statuses(user)["ccc"] == "completed", describe=scheduler.so_far)
        assert statuses(user)["bbb"] == "staged"
        (user.guild_home / "enough").touch()
        scheduler.wait()
    assert statuses(user) == {"aaa": "completed", "bbb": "completed", "ccc": "completed"}


def test_claim_of_a_dead_scheduler_is_staged_again(user: Sandbox, guild: Guild) -> None:
    a_project(user, QUICK)
    stage(guild, "quick", "aaa")
    # As a scheduler leaves it that dies between its claim and the start.
    run = user.guild_home / "runs" / "aaa" / ".guild"
    (run / "STAGED").rename(run / "PENDING")
    dead = {"pid": 1, "started": -1.0, "boot": "another", "host": _host()}
    claim = {"run": "aaa", "scheduler_id": "dead", "scheduler": dead, "owner": dead, "attempt": 1, "requests": {}}
    claims = user.guild_home / "dask" / "claims"
    claims.mkdir(parents=True)
    (claims / "aaa.claimed").write_text(json.dumps(claim))
    finished = guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y")
    assert "Staged run aaa again (it was claimed and did not start)" in finished.output
    assert statuses(user) == {"aaa": "completed"}


def test_run_that_is_pending_without_a_claim_is_left_alone(user: Sandbox, guild: Guild) -> None:
    # It belongs to a Guild queue, or Guild is just staging it.
    a_project(user, QUICK)
    stage(guild, "quick", "aaa")
    run = user.guild_home / "runs" / "aaa" / ".guild"
    (run / "STAGED").rename(run / "PENDING")
    guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y")
    assert statuses(user) == {"aaa": "pending"}


def test_rubbish_among_the_claims_does_no_harm(user: Sandbox, guild: Guild) -> None:
    a_project(user, QUICK)
    stage(guild, "quick", "aaa")
    claims = user.guild_home / "dask" / "claims"
    claims.mkdir(parents=True)
    (claims / "bbb.claimed").write_text("[rubbish")
    (claims / "ccc.started").write_bytes(b"\xff\xfe")
    (claims / "aaa.claimed").write_text('{"owner": 3}')
    finished = guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y")
    assert "Traceback" not in finished.output
    assert statuses(user) == {"aaa": "completed"}


def test_killed_starter_ends_its_run_and_no_process_is_left(user: Sandbox, guild: Guild) -> None:
    a_project(user, TALKER + QUICK, {"talk.py": TALKER_SCRIPT})
    stage(guild, "talk", "aaa")
    stage(guild, "quick", "bbb")
    with guild.started(f"run dask:scheduler workers=1 run-once=yes {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("talking")
        operation = psutil.Process(int((user.guild_home / "runs" / "aaa" / ".guild" / "LOCK").read_text()))
        starter = operation.parent()
        assert starter
        starter.kill()
        scheduler.wait()
    assert statuses(user) == {"aaa": "terminated", "bbb": "completed"}
    assert not _lives(operation)


def _host() -> str:
    return socket.gethostname()
