"""The command `guild-dask`, as a user types it, on real schedulers."""

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from typing import Any

import click
import pytest

from guild_dask.monitor.publisher import state_path
from guild_dask.plan.troubles import OtherVersion, WorkerWithoutRuns, data_for_trouble
from tests.support.sandbox import Finished, Guild, Sandbox, run_command, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, scheduler_process, stage, statuses

OPERATIONS = """
nap: {exec: 'sleep ${seconds}', flags: {seconds: 1}}
bad: {exec: 'false'}
"""

SCHEDULER = f"run dask:scheduler resources='gpu=1 mem=64GB' workers=2 {NO_DASHBOARD} --run-id sss -y"


def typed(command: str, exit_code: int = 0) -> Finished:
    finished = run_command(f"guild-dask {command}", os.environ, os.getcwd())
    assert finished.exit_code == exit_code, finished
    assert "Traceback" not in finished.output
    return finished


@contextlib.contextmanager
def in_a_terminal(*command: str) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Gives a command that runs in a terminal of 80 columns, and where to read what it prints."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(command, stdout=child, stdin=child, stderr=child)
    os.close(child)
    try:
        yield process, parent
    finally:
        os.close(parent)


def seen_in_a_terminal(command: str) -> list[str]:
    """Returns the lines that a terminal of 80 columns shows, none of which is longer."""
    seen = b""
    with in_a_terminal("guild-dask", *command.split()) as (process, parent):
        # It ends with an error when nobody has it open any more.
        with contextlib.suppress(OSError):
            while part := os.read(parent, 1000):
                seen += part
        assert process.wait(10) == 0
    lines = click.unstyle(seen.decode()).splitlines()
    assert max(map(len, lines), default=0) <= 80, lines
    return lines


def told(command: str) -> Any:
    return json.loads(typed(f"{command} --json").output)


def scheduler_told(user: Sandbox) -> Any:
    """Returns what the scheduler tells once there is something running."""

    def with_running() -> Any:
        found = told("status")["schedulers"]
        return found[0] if found and found[0].get("running") else None

    return wait_until(with_running, describe=lambda: typed("status"))


def test_help_names_every_command_and_each_has_its_own(user: Sandbox) -> None:
    text = typed("--help").output
    names = [line.split()[0] for line in text.partition("Commands:\n")[2].splitlines()]
    assert {"status", "explain", "stop", "priority", "completion"} <= set(names)
    for name in names:
        assert typed(f"{name} --help").output.startswith(f"Usage: guild-dask {name}")


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("statsu", "there is no command 'statsu'; did you mean 'status'?"),
        ("xyz", "there is no command 'xyz'; there are status, explain"),
        ("status --wach", "Did you mean --watch?"),
        ("explain", "Missing argument 'RUN'"),
        ("priority aaa", "Missing argument 'N'"),
    ],
)
def test_typing_error_is_named_with_what_is_accepted(user: Sandbox, command: str, hint: str) -> None:
    assert hint in typed(command, exit_code=2).output


def test_home_that_is_not_there_is_named(user: Sandbox) -> None:
    assert "there is no Guild home at /no/where" in typed("-H /no/where status", exit_code=1).output


def test_run_is_found_by_the_first_letters_of_its_id(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "abc", "abd")
    assert "Run abc (nap seconds=1) is staged." in typed("explain abc").output
    assert "2 runs begin with 'ab' (abc, abd...)" in typed("explain ab", exit_code=1).output
    assert "there is no run 'x'" in typed("explain x", exit_code=1).output
    assert "there is no run '../runs/abc'" in typed("explain ../runs/abc", exit_code=1).output


def test_without_scheduler_the_status_counts_and_names_the_command(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa", "bbb", options="--tag dask:gpu=1")
    assert "2 run(s) are staged" in typed("status").output
    assert told("status")["staged"] == 2
    assert "\n  guild run dask:scheduler gpus=auto\n" in typed("explain aaa").output


def test_status_shows_where_runs_are_and_why_others_wait(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "bad", "bad")
    stage(guild, "nap seconds=60", "aaa", "bbb", options="--tag 'dask:gpu=1 mem=8GB'")
    stage(guild, "nap seconds=60", "ccc", options="--tag dask:gpu=7 --label 'what is too much for any machine'")
    with guild.started(SCHEDULER):
        counts = "1 running, 1 waiting, 1 never to start, 0 completed, 1 failed"
        wait_until(lambda: counts in typed("status").output, describe=lambda: typed("status"))
        lines = typed("status").output.splitlines()
        assert lines[0].startswith("Scheduler sss on ")
        assert lines[1].startswith(counts)
        assert "local   1/2   gpu 1/1  mem 8/64GB" in lines
        assert any(line.startswith("aaa      nap seconds=60  gpu=1 mem=8GB  local") for line in lines), lines
        assert any("waits for gpu=1, 0 free" in line and line.startswith("bbb") for line in lines)
        assert any("asks gpu=7, largest worker has gpu=1" in line and line.endswith("never") for line in lines)
        assert any(line.startswith("bad") and line.endswith("failed (exit 1)") for line in lines)
        assert "\x1b" not in "".join(lines), "no colour in a file or a pipe"
        assert max(map(len, lines)) > 80, "and nothing is cut off there"
        assert any("…" in line for line in seen_in_a_terminal("status"))
        assert "It can never start with the scheduler sss: it asks gpu=7" in " ".join(
            typed("explain ccc").output.split()
        )
        assert "It waits for gpu=1, 0 free. It is next." in " ".join(typed("explain bbb").output.split())
        assert "Scheduler sss runs it on worker local" in typed("explain aaa").output
        assert [each["can_start"] for each in told("explain bbb")["explanations"]] == [True]


def test_scheduler_and_queue_that_are_staged_are_left_to_their_user(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, f"dask:scheduler {NO_DASHBOARD}", "ttt")
    stage(guild, "queue", "qqq")
    stage(guild, f"dask:scheduler workers=[1,2] {NO_DASHBOARD}", "uuu")
    stage(guild, "nap seconds=[0,0.1]", "bat")
    assert told("status")["staged"] == 1
    assert "\n  guild run --start ttt\n" in typed("explain ttt").output
    # Were one of them started, run-once would have to wait for its end.
    output = guild(f"{SCHEDULER} run-once=yes").output
    for run in ("ttt", "qqq", "uuu"):
        line = f"Leaving run {run} staged (it is a scheduler itself; start it with 'guild run --start {run}')"
        assert output.count(line) == 1, output
    assert "Starting staged run bat" in output
    assert statuses(user) | {"sss": ""} == {"ttt": "staged", "qqq": "staged", "uuu": "staged", "sss": ""}
    assert "1 run(s) completed, 0 failed, 3 left staged" in output
    with guild.started(SCHEDULER) as scheduler:
        scheduler.wait_for_output("Waiting for staged runs")
        wait_until(lambda: "HELD" in typed("status").output, describe=lambda: typed("status"))
        assert "0 running, 0 waiting, 3 held" in typed("status").output
        assert "yourself:\n  guild run --start uuu\n" in typed("explain uuu").output


def test_status_shows_runs_that_come_after_others(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=60", "aaa")
    stage(guild, "nap", "bbb", options="--tag dask-after:aaa")
    with guild.started(SCHEDULER):
        # Nothing waits for room, and something waits.
        wait_until(
            lambda: "waiting for runs to finish: aaa" in typed("status").output, describe=lambda: typed("status")
        )
        assert "HELD" in typed("status").output
        assert "HELD" in "".join(seen_in_a_terminal("status"))


def test_run_that_comes_after_others_in_vain_is_told_so(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa", options="--tag dask:gpu=8")
    stage(guild, "nap", "bbb", options="--tag dask-after:aaa")
    stage(guild, "nap", "ccc", options="--tag dask-after:bbb")
    words = " ".join(typed("explain ccc").output.split())
    assert "It then still comes after others: waiting for runs to finish: bbb." in words
    with guild.started(SCHEDULER):
        wait_until(lambda: "asks gpu=8" in typed("status").output, describe=lambda: typed("status"))
        why = "But run aaa can never start with the scheduler sss: it asks gpu=8, largest worker has gpu=1."
        for run in ("bbb", "ccc"):
            assert why in " ".join(typed(f"explain {run}").output.split())
            assert [each["can_start"] for each in told(f"explain {run}")["explanations"]] == [False]
    wait_until(lambda: not told("status")["schedulers"], describe=lambda: typed("status"))
    guild("runs rm bbb -y")
    words = " ".join(typed("explain ccc").output.split())
    assert "The scheduler then holds it back: there is no run bbb, which it comes after. Change the tag:" in words


def test_status_shows_what_a_limit_ended_and_what_is_tried_again(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=60", "aaa", options="--tag dask-time:1s")
    stage(guild, "bad", "bbb", options="--tag dask-retries:9")
    with guild.started(SCHEDULER):
        wait_until(lambda: "AGAIN" in typed("status").output, describe=lambda: typed("status"))
        assert ", 1 to be tried again, " in typed("status").output
        assert "tries it again" in typed("explain bbb").output
        wait_until(lambda: "TERMINATED" in typed("status").output, describe=lambda: typed("status"))
        (line,) = [line for line in typed("status").output.splitlines() if line.startswith("aaa")]
        assert line.endswith("it ran for 1s, its time limit")
        assert "TERMINATED" in "".join(seen_in_a_terminal("status"))
        (ended,) = [each for each in told("status")["schedulers"][0]["ended"] if each["run"] == "aaa"]
        assert ended["why"] == "it ran for 1s, its time limit"


def test_status_shows_runs_that_have_outlived_their_scheduler(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=60", "aaa", options="--tag dask:gpu=1")
    with guild.started(SCHEDULER):
        wait_until(lambda: statuses(user)["aaa"] == "running")
        assert "their scheduler has died" not in typed("status").output
        scheduler_process(user).kill()
        wait_until(lambda: "These runs go on though their scheduler has died." in typed("status").output)
        (line,) = [line for line in typed("status").output.splitlines() if line.startswith("aaa")]
        assert line.split()[:4] == ["aaa", "nap", "seconds=60", "gpu=1"]
        assert [each["run"] for each in told("status")["without_scheduler"]] == ["aaa"]
        typed("stop aaa")
        wait_until(lambda: not told("status")["without_scheduler"])


def test_run_that_a_filter_leaves_out_is_told_so(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa")
    with guild.started(f"run dask:scheduler 'filter=op = bad' {NO_DASHBOARD} --run-id sss -y"):
        wait_until(lambda: told("status")["schedulers"], describe=lambda: typed("status"))
        wait_until(lambda: "It sees only runs that match 'op = bad'." in typed("status").output)
        words = " ".join(typed("explain aaa").output.split())
        assert "The scheduler sss does not see it: it starts only runs that match 'op = bad'." in words


def test_stopped_run_is_terminated_and_the_next_one_starts(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=60", "aaa", "bbb", options="--tag dask:gpu=1")
    with guild.started(SCHEDULER):
        scheduler_told(user)
        wait_until(lambda: statuses(user)["aaa"] == "running")
        assert "it has not started" in typed("stop bbb", exit_code=1).output
        assert typed("stop aaa").output == "Run aaa: asked to end\n"
        wait_until(lambda: statuses(user) == {"aaa": "terminated", "bbb": "running", "sss": "running"})
        assert "it is not running (terminated)" in typed("stop aaa", exit_code=1).output


def test_stopped_run_is_not_tried_again(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=60", "aaa", options="--tag dask-retries:3")
    with guild.started(SCHEDULER):
        scheduler_told(user)
        wait_until(lambda: statuses(user)["aaa"] == "running")
        typed("stop aaa")
        wait_until(
            lambda: told("status")["schedulers"][0]["ends"] == {"terminated": 1}, describe=lambda: typed("status")
        )
        assert statuses(user)["aaa"] == "terminated"


def test_pause_resume_and_drain_reach_the_scheduler(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    with guild.started(SCHEDULER) as scheduler:
        wait_until(lambda: told("status")["schedulers"], describe=scheduler.so_far)
        assert typed("pause ss").output == "Asked 1 scheduler(s) to pause: sss\n"
        wait_until(lambda: "It is paused." in typed("status").output, describe=lambda: typed("status"))
        stage(guild, "nap seconds=0", "aaa")
        wait_until(lambda: told("status")["schedulers"][0]["waiting"] == 1)
        (line,) = [line for line in typed("status").output.splitlines() if line.startswith("aaa")]
        assert "nothing starts while the scheduler is paused" in line
        assert "is paused, and starts nothing. It goes on with 'guild-dask" in typed("explain aaa").output
        assert "0 schedulers at work begin with 'x'; at work: sss" in typed("resume x", exit_code=1).output
        assert told("resume") == {"request": "resume", "schedulers": ["sss"], "all": True}
        wait_until(lambda: statuses(user)["aaa"] == "completed")
        typed("drain")
        assert scheduler.wait().exit_code == 0
    assert typed("drain").output == "No scheduler is at work\n"
    assert "those that are started will be paused" in typed("pause").output


def test_pause_of_all_is_seen_without_a_scheduler_and_not_ended_for_one(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=0", "aaa")
    typed("pause")
    assert "Schedulers are paused: they start nothing until 'guild-dask resume'." in typed("status").output
    assert "'guild-dask resume'" in typed("explain aaa").output
    with guild.started(SCHEDULER):
        wait_until(lambda: told("status")["schedulers"])
        assert "'guild-dask resume' lets all of them go on" in typed("resume sss", exit_code=1).output
        typed("resume")
        wait_until(lambda: statuses(user)["aaa"] == "completed")
    # The process around it was told to end as well, and may be faster.
    wait_until(lambda: not told("status")["schedulers"], describe=lambda: typed("status"))
    assert typed("resume").output == "Nothing is paused any more; no scheduler is at work\n"


def test_run_that_failed_is_explained(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "bad", "bbb", options="--tag dask-retries:1")
    guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y")
    words = " ".join(typed("explain bbb").output.split())
    assert "It failed with exit code 1 in attempt 2; 'guild cat --output bbb' shows its output." in words


def test_priority_lets_a_run_start_first(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=0", "aaa", "bbb", options="--tag other")
    assert typed("priority bbb 5").output == "Run bbb has priority 5\n"
    assert typed("priority bbb -- -7").output == "Run bbb has priority -7\n"
    assert told("priority bbb 9")["tags"] == ["dask-priority:9", "other"]
    assert "dask-priority:9" in guild("runs info bbb").output
    assert "whole number" in typed("priority bbb high", exit_code=1).output
    finished = guild(f"run dask:scheduler run-once=yes workers=1 {NO_DASHBOARD} --run-id sss -y")
    places = [finished.output.index(f"Starting staged run {run}") for run in ("bbb", "aaa")]
    assert places == sorted(places)
    assert "does not wait: it is completed" in typed("priority bbb 1", exit_code=1).output


def test_watch_redraws_in_a_terminal_until_it_is_interrupted(user: Sandbox) -> None:
    seen = b""
    with in_a_terminal("guild-dask", "status", "--watch") as (process, parent):
        while seen.count(b"No scheduler is at work") < 2:
            seen += os.read(parent, 1000)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        while b"\x1b[?25h" not in seen:
            seen += os.read(parent, 1000)
    assert seen.count(b"\x1b[H") >= 2
    assert b"Traceback" not in seen


def test_text_of_a_run_does_not_command_the_terminal(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa")
    attributes = user.guild_home / "runs" / "aaa" / ".guild" / "attrs"
    (attributes / "label").write_text('"\\e[2J\\aboo"\n')
    output = typed("explain aaa").output
    assert "boo" in output
    assert all(letter.isprintable() or letter == "\n" for letter in output)


def test_trouble_with_workers_is_shown(user: Sandbox, guild: Guild) -> None:
    with guild.started(SCHEDULER):
        path = state_path(str(user.guild_home), "sss")
        wait_until(path.exists)
        trouble = WorkerWithoutRuns("w1", OtherVersion("0.0", "1.0"))
        told_by_others = [data_for_trouble(trouble), "said by another version", {"kind": "New", "worker": "w2"}]
        path.write_text(json.dumps({**json.loads(path.read_text()), "troubles": told_by_others}))
        words = " ".join(typed("status").output.split())
        assert "worker w1 gets no run: it has guild-dask 0.0, and this is 1.0: install guild-dask 1.0 in" in words
        assert "said by another version" in words
        assert "New (worker=w2)" in words
        found, *_ = [
            each for each in json.loads(typed("doctor --json", exit_code=1).output) if each["what"] == "workers"
        ]
        assert found["remedy"] == trouble.remedy


def test_damaged_state_is_as_good_as_none(user: Sandbox, guild: Guild) -> None:
    with guild.started(SCHEDULER):
        path = state_path(str(user.guild_home), "sss")
        wait_until(path.exists)
        path.write_text('{"scheduler": "sss"')
        assert "It has just begun." in typed("status").output
        assert told("status")["schedulers"][0]["scheduler"] == "sss"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_can_complete(user: Sandbox, shell: str) -> None:
    assert "_GUILD_DASK_COMPLETE" in typed(f"completion {shell}").output


def test_runs_are_completed(user: Sandbox, guild: Guild, monkeypatch: pytest.MonkeyPatch) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "abc", "xyz")
    for name, value in {
        "_GUILD_DASK_COMPLETE": "bash_complete",
        "COMP_WORDS": "guild-dask explain a",
        "COMP_CWORD": "2",
    }.items():
        monkeypatch.setenv(name, value)
    assert typed("").output == "plain,abc\n"


def test_large_home_is_not_read_for_a_status(user: Sandbox, guild: Guild) -> None:
    # 10,000 runs cost nothing if nobody looks at them: a folder that cannot be listed shows that nobody does.
    with guild.started(SCHEDULER):
        wait_until(state_path(str(user.guild_home), "sss").exists)
        runs = user.guild_home / "runs"
        away = pathlib.Path(user.guild_home / "away")
        runs.rename(away)
        try:
            assert "Scheduler sss" in typed("status").output
        finally:
            away.rename(runs)
