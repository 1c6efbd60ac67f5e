"""What a run sees, and what the outside sees of a scheduler."""

import json
import os
import pathlib
import socket

import psutil
import pytest

from tests.support.sandbox import Guild, Sandbox, run_command
from tests.support.scheduling import NO_DASHBOARD, a_project, scheduler_process, stage, statuses

SHOW = """
show:
  exec: python show.py
"""
SHOW_SCRIPT = """
import json, os, sys
state = {"environ": dict(os.environ), "directory": os.getcwd(), "terminal": sys.stdout.isatty()}
open(os.environ["RUN_ID"] + ".json", "w").write(json.dumps(state))
"""


def _seen(user: Sandbox, run_id: str) -> dict[str, str]:
    state = json.loads((user.guild_home / "runs" / run_id / f"{run_id}.json").read_text())
    environ: dict[str, str] = state["environ"]
    return {name: value.replace(run_id, "RUN") for name, value in environ.items()}


def test_run_sees_what_it_would_see_when_started_by_hand(user: Sandbox, guild: Guild) -> None:
    a_project(user, SHOW, {"show.py": SHOW_SCRIPT})
    stage(guild, "show", "aaa", "bbb")
    # Names that Guild gives the scheduler's own run, and that Dask gives to workers, as the user has set them.
    mine = {"LOG_LEVEL": "20", "FLAG_X": "${y} $z", "RUN_ID": "mine", "PYTHONPATH": "/nowhere", "OMP_NUM_THREADS": "3"}
    environ = {**os.environ, **mine}
    folder = pathlib.Path.cwd()
    by_hand = run_command(["guild", "run", "--start", "aaa", "-y"], environ, folder)
    assert by_hand.exit_code == 0, by_hand
    scheduled = run_command(["guild", "run", "dask:scheduler", "run-once=yes", NO_DASHBOARD, "-y"], environ, folder)
    assert scheduled.exit_code == 0, scheduled
    assert statuses(user) == {"aaa": "completed", "bbb": "completed"}, scheduled
    one, other = _seen(user, "aaa"), _seen(user, "bbb")
    assert sorted(one) == sorted(other)
    assert one == other


def test_run_sees_nothing_of_the_scheduler_where_the_user_has_set_nothing(user: Sandbox, guild: Guild) -> None:
    a_project(user, SHOW, {"show.py": SHOW_SCRIPT})
    stage(guild, "show", "aaa", "bbb")
    guild("run --start aaa -y")
    guild(f"run dask:scheduler resources=gpu=1 run-once=yes {NO_DASHBOARD} -y")
    assert _seen(user, "aaa") == _seen(user, "bbb")


def _listening(process: psutil.Process) -> list[str]:
    connections = process.net_connections(kind="inet")
    return [connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN]


@pytest.mark.parametrize(("address", "expected"), [("no", []), ("0", ["127.0.0.1"]), ("0.0.0.0:0", ["0.0.0.0"])])
def test_nothing_listens_but_the_dashboard(user: Sandbox, guild: Guild, address: str, expected: list[str]) -> None:
    with guild.started(f"run dask:scheduler dashboard-address={address} -y") as scheduler:
        scheduler.wait_for_output("Waiting for staged runs")
        assert _listening(scheduler_process(user)) == expected
        assert [ip for process in user.processes() for ip in _listening(process)] == expected


def test_dashboard_takes_the_next_port_if_its_own_is_in_use(user: Sandbox, guild: Guild) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        finished = guild(f"run dask:scheduler dashboard-address={port} run-once=yes -y")
    assert f"Port {port} is in use" in finished.output
    assert f"Dashboard link: http://127.0.0.1:{port}/status" not in finished.output
    assert "Dashboard link: http://127.0.0.1:" in finished.output


def test_log_has_our_lines_and_no_other(user: Sandbox, guild: Guild) -> None:
    a_project(user, "quick:\n  exec: echo quick\n")
    stage(guild, "quick", "aaa", "bbb", "ccc")
    finished = guild("run dask:scheduler run-once=yes dashboard-address=0 workers=2 -y")
    strange = [line for line in finished.output.splitlines() if not line.startswith(("INFO: [guild] ", "quick"))]
    assert not strange


def test_debug_tells_all(user: Sandbox, guild: Guild) -> None:
    a_project(user, "quick:\n  exec: echo quick\n")
    stage(guild, "quick", "aaa")
    finished = guild(f"run dask:scheduler run-once=yes loglevel=debug {NO_DASHBOARD} -y")
    assert "DEBUG: [guild]" in finished.output
    assert "[distributed.scheduler]" in finished.output


@pytest.mark.parametrize("address", ["a..b:8787", f"{'a' * 70}.b:8787", "[::1]:8787"])
def test_address_that_is_none_is_answered_in_one_line(user: Sandbox, guild: Guild, address: str) -> None:
    finished = guild(f"run dask:scheduler dashboard-address={address} run-once=yes -y", exit_code=2)
    assert "invalid value dashboard-address=" in finished.output
    assert "Traceback" not in finished.output


def test_malformed_configuration_is_answered_in_one_line(user: Sandbox, guild: Guild) -> None:
    folder = user.home / ".config" / "dask"
    folder.mkdir(parents=True)
    (folder / "broken.yaml").write_text("guild-dask: [")
    finished = guild("run dask:scheduler run-once=yes -y", exit_code=2)
    assert "broken.yaml" in finished.output
    assert "Traceback" not in finished.output
