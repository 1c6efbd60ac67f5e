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
from click.testing import CliRunner

from guild_dask.cli import common
from guild_dask.cli.main import main
from guild_dask.home import layout, run_directory
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.host import processes
from guild_dask.monitor.state import State, as_data
from guild_dask.plan.troubles import OtherVersion, WorkerWithoutRuns, data_for_trouble
from tests.home.test_run_directory import make_run
from tests.support.failing_files import Files
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
    """Runs a command in a terminal of 80 columns; yields its process and the descriptor of its output."""
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
        # Reading fails when no process has the terminal open.
        with contextlib.suppress(OSError):
            while part := os.read(parent, 1000):
                seen += part
        assert process.wait(10) == 0
    lines = click.unstyle(seen.decode()).splitlines()
    assert max(map(len, lines), default=0) <= 80, lines
    return lines


def data_of(command: str) -> Any:
    return json.loads(typed(f"{command} --json").output)


def scheduler_with_a_running_run(user: Sandbox) -> Any:
    """Returns the scheduler's state once a run is running."""

    def with_running() -> Any:
        found = data_of("status")["schedulers"]
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
        ("xyz", "there is no command 'xyz'; the commands are status, runs"),
        ("status --wach", "--watch"),
        ("explain", "Missing argument 'RUN'"),
        ("priority aaa", "Missing argument 'N'"),
    ],
)
def test_typing_error_is_named_with_what_is_accepted(user: Sandbox, command: str, hint: str) -> None:
    assert hint in typed(command, exit_code=2).output


def test_duration_is_not_broken_at_the_end_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert common.wrapped("the run was started 4 s ago") == ["the run was started", "4 s ago"]
    assert common.wrapped("it has now run for 4 s") == ["it has now run for", "4 s"]


def test_missing_home_is_named(user: Sandbox) -> None:
    assert "there is no Guild home at /no/where" in typed("-H /no/where status", exit_code=1).output


def test_home_that_is_a_file_is_named(user: Sandbox) -> None:
    file = user.folder / "file"
    file.touch()
    for command in ("status", "runs", "pause"):
        assert f"{file} is not a folder; set GUILD_HOME" in typed(f"-H {file} {command}", exit_code=1).output


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
    assert data_of("status")["staged"] == 2
    assert "\n  guild run dask:scheduler gpus=auto\n" in typed("explain aaa").output


def test_memory_without_a_unit_is_explained_before_there_is_a_scheduler(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa", options="--tag dask:mem=8")
    assert "Tag 'dask:mem=8' requests 8 bytes of memory: amounts of mem are bytes; write mem=8GB" in " ".join(
        typed("explain aaa").output.split()
    )


def test_status_shows_where_runs_are_and_why_others_wait(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "bad", "bad")
    stage(guild, "nap seconds=60", "aaa", "bbb", options="--tag 'dask:gpu=1 mem=8GB'")
    stage(guild, "nap seconds=60", "ccc", options="--tag dask:gpu=7 --label 'what is too much for any machine'")
    with guild.started(SCHEDULER):
        counts = "1 running, 1 waiting, 1 impossible, 0 completed, 1 failed"
        wait_until(lambda: counts in typed("status").output, describe=lambda: typed("status"))
        lines = typed("status").output.splitlines()
        assert lines[0].startswith("Scheduler sss on ")
        assert lines[1].startswith(counts)
        assert "local   1/2    gpu 1/1  mem 8/64GB" in lines
        assert any(line.split()[:5] == ["aaa", "nap", "gpu=1", "mem=8GB", "local"] for line in lines), lines
        assert any("waits for gpu=1, 0 free" in line and line.startswith("bbb") for line in lines)
        impossible = lines[next(number for number, line in enumerate(lines) if line.startswith("IMPOSSIBLE")) + 1]
        assert impossible.startswith("ccc")
        assert impossible.endswith("requests gpu=7, largest worker has gpu=1")
        assert any(line.startswith("bad") and line.endswith("failed: exit code 1") for line in lines)
        assert "\x1b" not in "".join(lines), "no colour in a file or a pipe"
        assert max(map(len, lines)) > 80, "and nothing is cut there"
        whole = "            requests gpu=7, largest worker has gpu=1"
        assert whole in seen_in_a_terminal("status"), "below its run"
        assert "It can never start with scheduler sss: requests gpu=7" in " ".join(typed("explain ccc").output.split())
        assert "It waits for gpu=1, 0 free. It is next." in " ".join(typed("explain bbb").output.split())
        assert "Scheduler sss runs it on worker local" in typed("explain aaa").output
        assert [each["can_start"] for each in data_of("explain bbb")["explanations"]] == [True]


def test_staged_schedulers_and_queues_are_not_started(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, f"dask:scheduler {NO_DASHBOARD}", "ttt")
    stage(guild, "queue", "qqq")
    stage(guild, f"dask:scheduler workers=[1,2] {NO_DASHBOARD}", "uuu")
    stage(guild, "nap seconds=[0,0.1]", "bat")
    assert data_of("status")["staged"] == 1
    assert "\n  guild run --start ttt\n" in typed("explain ttt").output
    # If one of them were started, run-once would wait for its end.
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
        # The queue is empty, and a run is held.
        wait_until(
            lambda: "waiting for runs to finish: aaa" in typed("status").output, describe=lambda: typed("status")
        )
        assert "HELD" in typed("status").output
        assert "HELD" in "".join(seen_in_a_terminal("status"))


def test_run_that_depends_on_an_impossible_one_is_explained(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa", options="--tag dask:gpu=8")
    stage(guild, "nap", "bbb", options="--tag dask-after:aaa")
    stage(guild, "nap", "ccc", options="--tag dask-after:bbb")
    words = " ".join(typed("explain ccc").output.split())
    assert "A scheduler then holds it: waiting for runs to finish: bbb." in words
    with guild.started(SCHEDULER):
        wait_until(lambda: "requests gpu=8" in typed("status").output, describe=lambda: typed("status"))
        why = "But run aaa can never start with scheduler sss: requests gpu=8, largest worker has gpu=1."
        for run in ("bbb", "ccc"):
            assert why in " ".join(typed(f"explain {run}").output.split())
            assert [each["can_start"] for each in data_of(f"explain {run}")["explanations"]] == [False]
    wait_until(lambda: not data_of("status")["schedulers"], describe=lambda: typed("status"))
    guild("runs rm bbb -y")
    words = " ".join(typed("explain ccc").output.split())
    assert "A scheduler then holds it: there is no run bbb, which it comes after. Change the tag:" in words


def test_status_shows_terminated_and_retrying_runs(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=60", "aaa", options="--tag dask-time:1s")
    stage(guild, "bad", "bbb", options="--tag dask-retries:9")
    with guild.started(SCHEDULER):
        wait_until(lambda: "RETRYING" in typed("status").output, describe=lambda: typed("status"))
        assert ", 1 retrying, " in typed("status").output
        assert "retries it" in typed("explain bbb").output
        wait_until(lambda: "TERMINATED" in typed("status").output, describe=lambda: typed("status"))
        (line,) = [line for line in typed("status").output.splitlines() if line.startswith("aaa")]
        assert line.endswith("it ran for 1s, its time limit")
        assert "TERMINATED" in "".join(seen_in_a_terminal("status"))
        (ended,) = [each for each in data_of("status")["schedulers"][0]["ended"] if each["run"] == "aaa"]
        assert ended["why"] == "it ran for 1s, its time limit"


def test_status_shows_runs_that_have_outlived_their_scheduler(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=60", "aaa", options="--tag dask:gpu=1")
    with guild.started(SCHEDULER):
        wait_until(lambda: statuses(user)["aaa"] == "running")
        assert "their scheduler has died" not in typed("status").output
        scheduler_process(user).kill()
        wait_until(lambda: "These runs continue though their scheduler has died." in typed("status").output)
        (line,) = [line for line in typed("status").output.splitlines() if line.startswith("aaa")]
        assert line.split()[:4] == ["aaa", "nap", "seconds=60", "gpu=1"]
        assert [each["run"] for each in data_of("status")["without_scheduler"]] == ["aaa"]
        typed("stop aaa")
        wait_until(lambda: not data_of("status")["without_scheduler"])


def test_run_that_a_filter_leaves_out_is_explained(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa")
    with guild.started(f"run dask:scheduler 'filter=op = bad' {NO_DASHBOARD} --run-id sss -y"):
        wait_until(lambda: data_of("status")["schedulers"], describe=lambda: typed("status"))
        wait_until(lambda: "It starts only runs that match 'op = bad'." in typed("status").output)
        words = " ".join(typed("explain aaa").output.split())
        assert "Scheduler sss ignores it: that one starts only runs that match 'op = bad'." in words


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_run_is_explained_whatever_file_cannot_be_read(guild_home: pathlib.Path, failing: Files) -> None:
    make_run(guild_home / "runs" / "aaa", label="x\n", tags="[dask-after:bbb]\n")
    make_run(guild_home / "runs" / "bbb")
    process = processes.identity(os.getpid())
    assert process
    Heartbeat(str(guild_home), "sss", process).renew()
    state = State("sss", process.host, process.pid, 1.0, filter="label = x")
    layout.scheduler_state(str(guild_home), "sss").write_text(json.dumps(as_data(state)))
    typed_here = ["-H", str(guild_home), "explain", "aaa"]
    assert "Run aaa" in CliRunner().invoke(main, typed_here).output
    chosen = 0
    while chosen == 0 or failing.count >= chosen:
        chosen += 1
        with failing.failing(chosen):
            found = CliRunner().invoke(main, typed_here)
        assert found.exception is None or isinstance(found.exception, SystemExit), f"file {chosen} could not be read"
    assert chosen > 20


def test_stopped_run_is_terminated_and_the_next_one_starts(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=60", "aaa", "bbb", options="--tag dask:gpu=1")
    with guild.started(SCHEDULER):
        scheduler_with_a_running_run(user)
        wait_until(lambda: statuses(user)["aaa"] == "running")
        assert "it has not started" in typed("stop bbb", exit_code=1).output
        assert typed("stop aaa").output == "Run aaa: stop requested\n"
        wait_until(lambda: statuses(user) == {"aaa": "terminated", "bbb": "running", "sss": "running"})
        assert "it is not running (terminated)" in typed("stop aaa", exit_code=1).output


def test_stopped_run_is_not_tried_again(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=60", "aaa", options="--tag dask-retries:3")
    with guild.started(SCHEDULER):
        scheduler_with_a_running_run(user)
        wait_until(lambda: statuses(user)["aaa"] == "running")
        typed("stop aaa")
        wait_until(
            lambda: data_of("status")["schedulers"][0]["ends"] == {"terminated": 1}, describe=lambda: typed("status")
        )
        assert statuses(user)["aaa"] == "terminated"


def test_pause_resume_and_drain_reach_the_scheduler(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    with guild.started(SCHEDULER) as scheduler:
        wait_until(lambda: data_of("status")["schedulers"], describe=scheduler.so_far)
        assert typed("pause ss").output == "Sent 'pause' to 1 scheduler(s): sss\n"
        wait_until(lambda: "It is paused." in typed("status").output, describe=lambda: typed("status"))
        stage(guild, "nap seconds=0", "aaa")
        wait_until(lambda: data_of("status")["schedulers"][0]["waiting"] == 1)
        (line,) = [line for line in typed("status").output.splitlines() if line.startswith("aaa")]
        assert "the scheduler is paused" in line
        assert "is paused and starts no runs. 'guild-dask resume' resumes it." in typed("explain aaa").output
        assert "0 schedulers at work begin with 'x'; at work: sss" in typed("resume x", exit_code=1).output
        assert data_of("resume") == {"request": "resume", "schedulers": ["sss"], "all": True}
        wait_until(lambda: statuses(user)["aaa"] == "completed")
        typed("drain")
        assert scheduler.wait().exit_code == 0
    assert typed("drain").output == "No scheduler is at work\n"
    assert "new ones will be paused" in typed("pause").output


def test_pause_of_all_lasts_without_a_scheduler_and_cannot_be_resumed_for_one(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=0", "aaa")
    typed("pause")
    assert "Schedulers are paused: they start no runs until 'guild-dask resume'." in typed("status").output
    assert "'guild-dask resume'" in typed("explain aaa").output
    with guild.started(SCHEDULER):
        wait_until(lambda: data_of("status")["schedulers"])
        assert "'guild-dask resume' resumes all of them" in typed("resume sss", exit_code=1).output
        typed("resume")
        wait_until(lambda: statuses(user)["aaa"] == "completed")
    # Guild's process gets the signal as well, and may end first.
    wait_until(lambda: not data_of("status")["schedulers"], describe=lambda: typed("status"))
    assert typed("resume").output == "Schedulers are no longer paused; no scheduler is at work\n"


def test_run_that_failed_is_explained(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "bad", "bbb", options="--tag dask-retries:1")
    guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y")
    words = " ".join(typed("explain bbb").output.split())
    assert "Run bbb (bad dask-retries:1) failed with exit code 1 in attempt 2." in words


def test_priority_lets_a_run_start_first(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=0", "aaa", "bbb", options="--tag other")
    assert typed("priority bbb 5").output == "Run bbb has priority 5\n"
    assert typed("priority bbb -- -7").output == "Run bbb has priority -7\n"
    assert data_of("priority bbb 9")["tags"] == ["dask-priority:9", "other"]
    assert "dask-priority:9" in guild("runs info bbb").output
    assert "whole number" in typed("priority bbb high", exit_code=1).output
    finished = guild(f"run dask:scheduler run-once=yes workers=1 {NO_DASHBOARD} --run-id sss -y")
    places = [finished.output.index(f"Starting staged run {run}") for run in ("bbb", "aaa")]
    assert places == sorted(places)
    assert "is not waiting: it is completed" in typed("priority bbb 1", exit_code=1).output


def test_priority_keeps_the_tags_of_a_run_whatever_file_cannot_be_read(
    guild_home: pathlib.Path, failing: Files
) -> None:
    run_dir = str(make_run(guild_home / "runs" / "aaa", tags="['dask:gpu=1']\n"))
    typed_here = ["-H", str(guild_home), "priority", "aaa", "5"]
    chosen = 0
    while chosen == 0 or failing.count >= chosen:
        chosen += 1
        run_directory.write_tags(run_dir, ["dask:gpu=1"])
        with failing.failing(chosen):
            CliRunner().invoke(main, typed_here)
        assert "dask:gpu=1" in run_directory.tags(run_dir), f"file {chosen} could not be read"
    assert run_directory.tags(run_dir) == ["dask-priority:5", "dask:gpu=1"]
    assert chosen > 10


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


def test_control_characters_of_a_run_are_removed(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa")
    attributes = user.guild_home / "runs" / "aaa" / ".guild" / "attrs"
    (attributes / "label").write_text('"\\e[2J\\aboo"\n')
    output = typed("explain aaa").output
    assert "boo" in output
    assert all(letter.isprintable() or letter == "\n" for letter in output)


def test_control_characters_of_run_ids_are_escaped_in_errors(user: Sandbox) -> None:
    for number in range(2):
        (user.guild_home / "runs" / f"ab\x1b]0;{number}\x07" / ".guild").mkdir(parents=True)
    assert "2 runs begin with 'ab' (ab\\x1b]0;" in typed("explain ab", exit_code=1).output


def test_flags_that_are_no_json_are_printed_as_text(user: Sandbox, guild: Guild) -> None:
    # YAML has dates, bytes, keys that are no text, and numbers that JSON has not.
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa")
    attributes = user.guild_home / "runs" / "aaa" / ".guild" / "attrs"
    (attributes / "flags").write_text(
        "d: 2020-01-01\nt: 2020-01-01 10:00:00\nb: !!binary aGk=\nm: {2020-01-01: {2: [.inf]}}\nn: .nan\nyes: 1\n"
    )
    (found,) = data_of("runs")
    assert found["flags"] == {
        "d": "2020-01-01",
        "t": "2020-01-01 10:00:00",
        "b": "b'hi'",
        "m": {"2020-01-01": {"2": ["inf"]}},
        "n": "nan",
        "True": 1,
    }


def test_trouble_with_workers_is_shown(user: Sandbox, guild: Guild) -> None:
    with guild.started(SCHEDULER):
        path = layout.scheduler_state(str(user.guild_home), "sss")
        wait_until(path.exists)
        trouble = WorkerWithoutRuns("w1", OtherVersion("0.0", "1.0"))
        published = [data_for_trouble(trouble), "a text of another version", {"kind": "New", "worker": "w2"}]
        path.write_text(json.dumps({**json.loads(path.read_text()), "troubles": published}))
        words = " ".join(typed("status").output.split())
        assert "worker w1 gets no run: it has guild-dask 0.0; the scheduler has 1.0: install guild-dask 1.0 in" in words
        assert "a text of another version" in words
        assert "New (worker=w2)" in words
        found, *_ = [
            each for each in json.loads(typed("doctor --json", exit_code=1).output) if each["what"] == "workers"
        ]
        assert found["remedy"] == trouble.remedy


def test_unreadable_state_counts_as_not_published(user: Sandbox, guild: Guild) -> None:
    with guild.started(SCHEDULER):
        path = layout.scheduler_state(str(user.guild_home), "sss")
        wait_until(path.exists)
        path.write_text('{"scheduler": "sss"')
        assert "It has just started." in typed("status").output
        assert data_of("status")["schedulers"][0]["scheduler"] == "sss"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_can_complete(user: Sandbox, shell: str) -> None:
    assert "_GUILD_DASK_COMPLETE" in typed(f"completion {shell}").output


def test_empty_list_says_what_there_is_none_of(user: Sandbox) -> None:
    (user.guild_home / "runs").mkdir(parents=True)
    for command, text in {
        "runs": "There are no runs.",
        "runs --failed": "No run has failed.",
        "runs --running --staged": "No run is running or is staged.",
        "runs --since 2h": "No run has changed in that time.",
        "runs --completed --since 2h": "No run has completed in that time.",
        "retry --failed": "No run of a scheduler has failed.",
        "retry --failed --terminated": "No run of a scheduler has failed or was terminated.",
    }.items():
        assert typed(command).output.strip() == text


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


def test_status_does_not_list_the_runs_directory(user: Sandbox, guild: Guild) -> None:
    # The status of a home with 10,000 runs is quick because the runs directory is not listed: here it is missing.
    with guild.started(SCHEDULER):
        wait_until(layout.scheduler_state(str(user.guild_home), "sss").exists)
        runs = user.guild_home / "runs"
        away = pathlib.Path(user.guild_home / "away")
        runs.rename(away)
        try:
            assert "Scheduler sss" in typed("status").output
        finally:
            away.rename(runs)
