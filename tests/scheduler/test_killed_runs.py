"""Runs whose own process a signal ends: which of them failed, which were stopped, and what is said about them."""

import os
import signal
import subprocess

import psutil
import pytest

from guild_dask.home import attempts, claims, end_note, run_directory
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.home.outcome import Cause, End, Note, Result
from guild_dask.home.recovery import recover
from guild_dask.home.run_queue import GuildHome
from guild_dask.host import processes, signals
from guild_dask.worker.job import KILLED
from tests.support.sandbox import Guild, Sandbox, run_command, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, scheduler_process, stage, statuses

OPERATIONS = """
die: {exec: 'python -c "import os; os.kill(os.getpid(), ${number})"', flags: {number: 9}}
nap: {exec: 'sh -c "echo napping; exec sleep 3600"'}
fine: {exec: 'true'}
clumsy: {exec: 'python -u clumsy.py'}
"""

CLUMSY = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: {end})
print("working")
signal.pause()
"""

SEGFAULT = "killed by signal 11, SIGSEGV"
KILL = "killed by signal 9, SIGKILL; the kernel does that when memory runs out"


def typed(command: str) -> str:
    """Returns what `guild-dask COMMAND` prints, in one line."""
    finished = run_command(f"guild-dask {command}", os.environ, os.getcwd())
    assert finished.exit_code == 0, finished
    return " ".join(finished.output.split())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_request_to_end_is_no_failure(number: signal.Signals) -> None:
    assert not signals.is_failure(-number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE])
def test_any_other_signal_is_one(number: signal.Signals) -> None:
    assert signals.is_failure(-number)


def test_exit_code_is_no_signal() -> None:
    assert not any(signals.is_failure(code) for code in (0, 1, 9, 137))


def test_signal_without_a_name_has_a_number() -> None:
    assert signals.killed_by(-(signal.SIGRTMIN + 1)) == f"killed by signal {signal.SIGRTMIN + 1}"


@pytest.mark.parametrize(
    ("command", "home"),
    [
        ("exec python guild stop bbb", "."),  # of another run
        ("exec python guild stop", "elsewhere"),  # on another home
        ("exec python other.py guild stop", "."),  # another program
    ],
)
def test_crash_is_no_stop_though_another_command_looks_like_one(
    user: Sandbox, guild: Guild, command: str, home: str
) -> None:
    waits = "import signal\nsignal.pause()\n"
    a_project(user, OPERATIONS, {"guild": waits, "other.py": waits})
    stage(guild, "die number=11", "aaa")
    environ = {**os.environ, "GUILD_HOME": str(user.guild_home / home)}
    other = subprocess.Popen(["sh", "-c", command], env=environ)
    try:
        wait_until(lambda: "python" in psutil.Process(other.pid).cmdline())
        output = guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y").output
    finally:
        other.kill()
        other.wait()
    assert f"Run aaa was {SEGFAULT}" in output
    assert "1 failed" in output


def test_killed_runs_failed_and_are_explained(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "die number=11", "aaa")
    stage(guild, "die number=9", "bbb")
    stage(guild, "fine", "ccc")
    output = guild(f"run dask:scheduler workers=1 run-once=yes {NO_DASHBOARD} --run-id sss -y").output
    warnings = [line for line in output.splitlines() if line.startswith("WARNING")]
    assert [line.partition(" Run ")[2] for line in warnings] == [
        f"aaa was {SEGFAULT} ('guild cat --output aaa' shows its output)",
        f"bbb was {KILL} ('guild cat --output bbb' shows its output)",
    ]
    assert "1 run(s) completed, 2 failed, 0 left staged" in output
    del (found := statuses(user))["sss"]
    assert found == {"aaa": "terminated", "bbb": "terminated", "ccc": "completed"}  # as Guild has it
    assert f"It failed: it was {SEGFAULT} ('guild cat --output aaa' shows its output)." in typed("explain aaa")
    assert f"It failed: it was {KILL} ('guild cat --output bbb' shows its output)." in typed("explain bbb")
    told = typed("report sss")
    assert "failed: it was killed by signal 11" in told  # the rest where the terminal is wide enough
    assert "1 completed, 2 failed." in told


# Many a library does not survive the end of its process, and many an operation takes its end for an error.
@pytest.mark.parametrize("end", ["os.abort()", "sys.exit(1)", "sys.exit(143)"])
def test_run_that_fails_when_it_is_stopped_was_stopped(user: Sandbox, guild: Guild, end: str) -> None:
    a_project(user, OPERATIONS, {"clumsy.py": CLUMSY.format(end=end)})
    stage(guild, "clumsy", "aaa", options="--tag dask-retries:1")
    with guild.started(f"run dask:scheduler workers=1 run-once=yes {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("working")
        guild("stop aaa -y")
        output = scheduler.wait().output
    assert "0 run(s) completed, 0 failed, 1 terminated, 0 left staged" in output
    assert "It was ended: it was stopped." in typed("explain aaa")


def test_killed_run_is_tried_again_like_any_that_failed(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "die number=6", "aaa", options="--tag dask-retries:1")
    output = guild(f"run dask:scheduler workers=1 run-once=yes {NO_DASHBOARD} -y").output
    assert "Run aaa is staged again for attempt 2 (it was killed by signal 6, SIGABRT)" in output
    assert "Run aaa was killed by signal 6, SIGABRT ('guild cat" in output
    assert "0 run(s) completed, 1 failed, 0 left staged" in output
    (past,) = attempts.past(str(user.guild_home / "runs" / "aaa"))
    assert (past.cause, past.exit_status, past.is_loss) == (None, -6, False)
    assert "It failed in attempt 2: it was killed by signal 6, SIGABRT (" in typed("explain aaa")


def test_run_that_somebody_else_kills_is_shown_as_failed(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa")
    with guild.started(f"run dask:scheduler {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("napping")
        os.kill(int((user.guild_home / "runs" / "aaa" / ".guild" / "LOCK").read_text()), signal.SIGKILL)
        scheduler.wait_for_output("Run aaa was killed by signal 9, SIGKILL")
        wait_until(lambda: "1 failed" in typed("status"), describe=lambda: typed("status"))
        assert "FAILED OPERATION WHEN HOW aaa nap" in typed("status")
        assert "it was killed by signal 9, SIGKILL" in typed("status")
        assert "stopped" not in typed("status")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_that_a_person_ends_was_stopped_and_is_not_tried_again(
    user: Sandbox, guild: Guild, number: signal.Signals
) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa", options="--tag dask-retries:2")
    with guild.started(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("napping")
        os.kill(int((user.guild_home / "runs" / "aaa" / ".guild" / "LOCK").read_text()), number)
        scheduler.wait()
    (line,) = [line for line in scheduler.output.splitlines() if "Run aaa was terminated" in line]
    assert line.startswith("INFO: [guild]")
    assert "0 run(s) completed, 0 failed, 1 terminated, 0 left staged" in scheduler.output
    assert statuses(user) == {"aaa": "terminated"}
    assert not attempts.past(str(user.guild_home / "runs" / "aaa"))


def test_killed_run_of_a_dead_scheduler_is_tried_again_by_the_next_one(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa", options="--tag dask-retries:1")
    with guild.started(f"run dask:scheduler {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("napping")
        scheduler_process(user).kill()
        os.kill(int((user.guild_home / "runs" / "aaa" / ".guild" / "LOCK").read_text()), signal.SIGKILL)
        wait_until(lambda: statuses(user) == {"aaa": "terminated"}, describe=lambda: statuses(user))
    with guild.started(f"run dask:scheduler {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output(f"Run aaa is staged again for attempt 2 (it was {KILL})")


@pytest.fixture
def home(user: Sandbox, guild: Guild) -> GuildHome:
    """A Guild home in which one run has started under a claim of this process, and its starter is dead."""
    a_project(user, OPERATIONS)
    stage(guild, "fine", "aaa")
    me = processes.identity(os.getpid())
    assert me
    found = GuildHome(str(user.guild_home), Heartbeat(str(user.guild_home), "me", me))
    found.heartbeat.renew()
    (run,) = found.staged().staged
    assert found.claim([(run, claims.Claim("aaa", "me", me, me))]).taken
    assert claims.mark_started(claims.path(found.claims_folder, "aaa"))
    return found


class _Killed(BaseException):
    """Stands for the end of this process."""


def test_run_whose_starter_was_killed_did_not_fail_by_itself_whoever_settles_it(
    home: GuildHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be_killed(*_args: object) -> None:
        raise _Killed

    with monkeypatch.context() as patched:
        patched.setattr(claims, "remove", be_killed)
        with pytest.raises(_Killed):
            home.settle("aaa", KILLED, again=lambda *_: True, lost=Cause.KILLED)
    assert run_directory.attribute(home.run_dir("aaa"), "exit_status") == -signal.SIGKILL
    assert end_note.read(claims.path(home.claims_folder, "aaa")) == Note(Cause.KILLED)
    result = home.settle("aaa", 0, again=lambda *_: True)
    assert (result.end, result.cause) == (End.TERMINATED, Cause.KILLED)


def test_end_that_guild_has_on_record_is_a_failure_if_nothing_cut_the_run_short(home: GuildHome) -> None:
    run_directory.record_end(home.run_dir("aaa"), -signal.SIGSEGV)
    assert not recover(home).ended  # it is ours, and in our hands
    assert home.settle("aaa", 1) == Result(End.FAILED, -signal.SIGSEGV)


def test_end_that_guild_has_on_record_is_no_failure_if_a_limit_ended_the_run(home: GuildHome) -> None:
    run_directory.record_end(home.run_dir("aaa"), -signal.SIGSEGV)
    end_note.write(claims.path(home.claims_folder, "aaa"), Cause.TIME_LIMIT)
    assert home.settle("aaa", 1).end is End.TERMINATED
