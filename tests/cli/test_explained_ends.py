"""`guild-dask explain` of runs that their scheduler, a user or a limit ended."""

import json
import os
import pathlib
import signal

import pytest

from guild_dask.home import stop_request
from guild_dask.home.outcome import Cause, Ending
from tests.cli.test_commands import data_of
from tests.support.sandbox import Guild, Sandbox, run_command, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, scheduler_process, stage, statuses
from tests.support.searches import BATCH, SPACE, a_search, some_trials, trial_id

OPERATIONS = """
nap: {exec: 'sh -c "echo napping; exec sleep 3600"'}
leaves: {exec: 'sh -c "(sleep 3600 &); exit ${code}"', flags: {code: 0}}
obeys: {exec: 'python obeys.py'}
"""
OBEYS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("listening", flush=True)
time.sleep(3600)
"""


def explained(run_id: str) -> str:
    finished = run_command(f"guild-dask explain {run_id}", os.environ, os.getcwd())
    assert finished.exit_code == 0, finished
    return " ".join(finished.output.split())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_of_a_stopped_scheduler_is_explained_with_how_to_stage_it_again(
    user: Sandbox, guild: Guild, number: signal.Signals
) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa", options="--tag dask-retries:1")
    with guild.started(f"run dask:scheduler {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("napping")
        scheduler_process(user).send_signal(number)
        scheduler.wait(30)
    assert "Run aaa was terminated" in scheduler.output
    expected = "It was ended: its scheduler was stopped. 'guild run --restart aaa --stage' stages it again."
    assert explained("aaa").endswith(expected), explained("aaa")
    guild("run --restart aaa --stage -y")
    assert statuses(user) == {"aaa": "staged"}


def test_run_that_ended_with_guild_stop_of_its_scheduler_is_explained(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa")
    guild(f"run dask:scheduler {NO_DASHBOARD} --background -y")
    wait_until(lambda: statuses(user)["aaa"] == "running", describe=lambda: statuses(user))
    guild("stop -Fo dask:scheduler -y")
    assert "It was ended: its scheduler was stopped." in explained("aaa")


def test_run_that_a_user_stopped_was_not_ended_by_its_scheduler(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa")
    with guild.started(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("napping")
        assert run_command("guild-dask stop aaa", os.environ, os.getcwd()).exit_code == 0
        scheduler.wait()
    assert explained("aaa").endswith("It was ended: it was stopped.")


def test_stop_request_of_a_user_precedes_that_of_a_scheduler(tmp_path: pathlib.Path) -> None:
    claim = tmp_path / "aaa.claimed"
    assert stop_request.requested_cause(claim) is None
    stop_request.request_stop(claim)
    stop_request.request_stop(claim, Cause.SCHEDULER_STOPPED)
    assert stop_request.requested_cause(claim) is Cause.STOPPED
    other = tmp_path / "bbb.claimed"
    stop_request.request_stop(other, Cause.SCHEDULER_STOPPED)
    assert stop_request.requested_cause(other) is Cause.SCHEDULER_STOPPED
    stop_request.request_stop(other)
    assert stop_request.requested_cause(other) is Cause.STOPPED
    assert stop_request.is_requested(other)


def test_stop_request_of_a_user_precedes_that_of_a_search(tmp_path: pathlib.Path) -> None:
    claim = tmp_path / "aaa.claimed"
    stop_request.request_stop(claim, Cause.PRUNED)
    stop_request.request_stop(claim, Cause.SCHEDULER_STOPPED)
    assert stop_request.requested_cause(claim) is Cause.PRUNED
    stop_request.request_stop(claim)
    stop_request.request_stop(claim, Cause.PRUNED)
    assert stop_request.requested_cause(claim) is Cause.STOPPED


def test_run_that_its_search_pruned_is_explained_by_that(user: Sandbox) -> None:
    a_search(user.guild_home, some_trials(4), SPACE)
    records = user.guild_home / "runs" / trial_id(4) / ".guild" / "attrs"
    (records / "dask").write_text(json.dumps({"worker": "local", "scheduler": BATCH, "ended": "pruned"}))
    (records / "tags").write_text(json.dumps(["dask:gpu=1", "pruned"]))
    (records / "label").write_text("pruned dask:gpu=1 act=tanh")
    assert explained(trial_id(4)).endswith("It was ended: search bbbbbbbb pruned it.")
    [shown] = data_of("runs --terminated --json")
    assert (shown["label"], shown["how"]) == ("pruned", "search bbbbbbbb pruned it")
    # A run that a search pruned is no failure, and is not tried again.
    assert not Cause.PRUNED.is_loss
    assert not Ending("terminated", -15, "pruned").is_failure


def test_end_with_its_scheduler_is_no_loss() -> None:
    assert not Cause.SCHEDULER_STOPPED.is_loss
    assert not Cause.SCHEDULER_STOPPED.is_limit


def test_run_that_completed_and_left_something_until_its_time_limit_did_complete(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "leaves", "aaa", options="--tag dask-time:2s")
    output = guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y").output
    assert "1 run(s) completed, 0 failed, 0 left staged" in output
    words = explained("aaa")
    assert "Run aaa (leaves dask-time:2s code=0) completed." in words
    assert words.endswith("Processes that it left behind were ended: it ran for 2s, its time limit.")
    assert "It was ended" not in words


def test_run_that_failed_and_left_something_until_its_time_limit_did_fail(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "leaves code=3", "aaa", options="--tag dask-time:2s")
    output = guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y").output
    assert "Run aaa failed with exit code 3" in output
    words = explained("aaa")
    assert "failed with exit code 3." in words
    assert "Processes that it left behind were ended: it ran for 2s, its time limit." in words


def test_run_that_completes_when_it_is_stopped_was_asked_to_end(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS, {"obeys.py": OBEYS})
    stage(guild, "obeys", "aaa")
    with guild.started(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("listening")
        assert run_command("guild-dask stop aaa", os.environ, os.getcwd()).exit_code == 0
        scheduler.wait()
    assert explained("aaa").endswith("It got a stop request (it was stopped) and exited with code 0.")
