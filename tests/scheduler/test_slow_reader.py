"""A slow reader of the scheduler's output holds up neither runs nor a stop."""

import contextlib
import os
import shlex
import subprocess
import sys
import threading
import time

import pytest

from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, scheduler_process, stage, statuses

PROJECT = """
chatty:
  exec: yes 0123456789012345678901234567890123456789
quick:
  exec: echo quick
"""
QUICK = [f"quick{number}" for number in range(5)]

# Guild allows this long for a stop.
MOST = 30.0


def _read_slowly(end: int, found: list[bytes]) -> None:
    """Reads 20 kB a second, until it is closed."""
    with contextlib.suppress(OSError):
        while data := os.read(end, 2000):
            found.append(data)
            time.sleep(0.1)


def test_slow_reader_of_a_chatty_run_holds_up_neither_other_runs_nor_a_stop(user: Sandbox, guild: Guild) -> None:
    a_project(user, PROJECT)
    stage(guild, "chatty", "chatty")
    command = shlex.split(f"guild run dask:scheduler workers=2 poll-interval=0.5 {NO_DASHBOARD} -y")
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT) as guilds,
        contextlib.ExitStack() as closing,
    ):
        assert guilds.stdout
        found: list[bytes] = []
        reader = threading.Thread(target=_read_slowly, args=(guilds.stdout.fileno(), found), daemon=True)
        reader.start()
        closing.callback(guilds.kill)  # it would go on at the reader's pace
        output = user.guild_home / "runs" / "chatty" / ".guild" / "output"
        # More than all pipes take, so that the scheduler's output is stuck.
        wait_until(lambda: output.exists() and output.stat().st_size > 2_000_000, describe=lambda: b"".join(found))
        stage(guild, "quick", *QUICK)
        wait_until(lambda: all(statuses(user)[name] == "completed" for name in QUICK), describe=lambda: statuses(user))
        scheduler = scheduler_process(user)
        began = time.monotonic()
        scheduler.terminate()
        wait_until(lambda: not scheduler.is_running(), describe=lambda: b"".join(found)[-2000:])
        assert time.monotonic() - began < MOST
        assert statuses(user)["chatty"] == "terminated"


@pytest.mark.parametrize("closed", [">&-", ">&- <&-"])
def test_guild_runs_a_scheduler_without_standard_input_and_output(user: Sandbox, guild: Guild, closed: str) -> None:
    a_project(user, PROJECT)
    stage(guild, "quick", "aaa")
    command = f"exec guild run dask:scheduler run-once=yes {NO_DASHBOARD} -y {closed}"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert statuses(user)["aaa"] == "completed"


def test_scheduler_without_standard_output_works(user: Sandbox, guild: Guild) -> None:
    a_project(user, PROJECT)
    stage(guild, "quick", "aaa")
    flags = f"--run-once yes --{NO_DASHBOARD.replace('=', ' ')}"
    closed = f"exec {shlex.quote(sys.executable)} -m guild_dask.scheduler {flags} >&-"
    environ = {**os.environ, "RUN_DIR": str(user.root / "run"), "RUN_ID": "run"}
    (user.root / "run").mkdir()
    done = subprocess.run(["sh", "-c", closed], env=environ, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert statuses(user)["aaa"] == "completed"
