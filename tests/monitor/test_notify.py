"""The user's command is run for failed runs and for an empty queue; no text of a run becomes part of a command."""

import dataclasses
import pathlib

import pytest

from guild_dask.monitor.notify import Notifier, command_for, facts_of_run, is_empty
from guild_dask.monitor.state import EndedRun, Phase, RunningRun, State, WaitingKind
from guild_dask.plan.reasons import TooLarge
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, stage, statuses

OPERATIONS = """
good: {exec: 'true'}
bad: {exec: 'sh -c "exit 3"'}
nap: {exec: 'sleep 60'}
"""
SCRIPT = """#!/bin/sh
{ env | grep '^GUILD_DASK_' | sort | tr '\\n' ' '; echo; } >> "$1"
"""
FAILED = EndedRun("aaa", "$(touch /tmp/no) `x`", "failed", 3, "local", "here", 9.0, 5.0, 1.0, 2)


@pytest.fixture
def script(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("notify") / "tell me"
    path.write_text(SCRIPT)
    path.chmod(0o755)
    return path


def test_command_is_run_for_a_failed_run_and_for_an_empty_queue(
    user: Sandbox, guild: Guild, script: pathlib.Path
) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "good", "aaa")
    stage(guild, "bad", "bbb")
    stage(guild, "good", "ccc", options="--tag dask:gpu=1")
    facts = user.root / "told"
    finished = guild(
        f"run dask:scheduler \"notify='{script}' {facts}\" workers=1 run-once=yes {NO_DASHBOARD} --run-id sss -y"
    )
    assert "WARNING: [guild]" in finished.output, "the failed run is logged, too"
    failed, empty = facts.read_text().splitlines()
    for fact in ("EVENT=run-failed", "RUN=bbb", "OPERATION=bad", "EXIT_CODE=3", "RESULT=failed", "SCHEDULER=sss"):
        assert f"GUILD_DASK_{fact} " in failed, failed
    for fact in ("EVENT=queue-empty", "COMPLETED=1", "FAILED=1", "LEFT_STAGED=1"):
        assert f"GUILD_DASK_{fact} " in empty, empty


def test_command_is_run_for_a_run_that_a_limit_ended_and_for_an_empty_queue_only_after_all_attempts(
    user: Sandbox, guild: Guild, script: pathlib.Path
) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa", options="--tag dask-time:1s")
    stage(guild, "bad", "bbb", options="--tag dask-retries:1")
    facts = user.root / "told"
    guild(f"run dask:scheduler \"notify='{script}' {facts}\" workers=2 run-once=yes {NO_DASHBOARD} -y")
    limit, failed, empty = facts.read_text().splitlines()
    assert "GUILD_DASK_RESULT=terminated " in limit
    assert "GUILD_DASK_REASON=it ran for 1s, its time limit " in limit
    assert "GUILD_DASK_ATTEMPT=2 " in failed
    assert "GUILD_DASK_EVENT=queue-empty " in empty


def test_command_that_cannot_be_run_is_logged_once_and_runs_continue(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "bad", "aaa", "bbb")
    output = guild(f"run dask:scheduler notify=/no/such workers=1 run-once=yes {NO_DASHBOARD} -y").output
    assert output.count("Command '/no/such' of flag 'notify' cannot be run") == 1
    warning = "There is no command '/no/such', which flag 'notify' names"
    assert output.index(warning) < output.index("Starting staged run"), "before anything has failed"
    assert statuses(user) == {"aaa": "error", "bbb": "error"}


def test_slow_command_delays_nothing(user: Sandbox, guild: Guild) -> None:
    go = user.root / "go"
    slow = user.root / "slow"
    slow.write_text(f"until [ -e {go} ]; do sleep 0.1; done\n")
    a_project(user, OPERATIONS)
    stage(guild, "bad", "aaa")
    stage(guild, "good", "bbb")
    with guild.started(f"run dask:scheduler 'notify=sh {slow}' workers=1 {NO_DASHBOARD} --run-id sss -y"):
        wait_until(lambda: statuses(user)["bbb"] == "completed")
        assert [process for process in user.processes() if str(slow) in process.cmdline()]
        go.touch()


def test_facts_are_never_a_command(tmp_path: pathlib.Path, script: pathlib.Path) -> None:
    notifier = Notifier(command_for([str(script), str(tmp_path / "told")], {"PATH": "/usr/bin:/bin"}, str(tmp_path)))
    notifier.ended(FAILED)
    notifier.close()
    assert "GUILD_DASK_OPERATION=$(touch /tmp/no) `x`" in (tmp_path / "told").read_text()
    assert "\0" not in "".join(facts_of_run(EndedRun("a\0b", "x", "failed", None, "", "", 0, 0, 0, 1)).values())


def test_stopped_run_is_not_a_failure() -> None:
    assert not dataclasses.replace(FAILED, end="terminated").is_failure
    assert not dataclasses.replace(FAILED, end="terminated", cause="stopped").is_failure
    assert dataclasses.replace(FAILED, end="terminated", cause="of another version").is_failure
    assert dataclasses.replace(FAILED, end="terminated", cause="out-of-memory").is_failure
    assert not dataclasses.replace(FAILED, end="retried", cause="worker-died").is_failure


def test_queue_is_empty_when_no_run_can_start() -> None:
    impossible = WaitingKind(2, {}, TooLarge("gpu", 7.0, 1.0))
    running = RunningRun("a", "o", "w", "h", 0.0, 0.0, 1)
    assert is_empty(State("s", "h", 1, 0.0))
    assert is_empty(State("s", "h", 1, 0.0, waiting=2, kinds=(impossible,)))
    assert not is_empty(State("s", "h", 1, 0.0, waiting=3, kinds=(impossible, WaitingKind(1))))
    assert not is_empty(State("s", "h", 1, 0.0, running=(running,)))
    assert not is_empty(State("s", "h", 1, 0.0, phase=Phase.STOPPING))
