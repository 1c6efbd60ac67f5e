"""Ctrl-C in a terminal: the first drains, the second ends runs. Other signals and `guild stop` are in test_stopping."""

import os
import pathlib

from tests.support.sandbox import Guild, Sandbox, run_command, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, stage, statuses
from tests.support.terminals import CTRL_C, InTerminal

OPERATIONS = """
hold: {exec: 'sh -c "echo holding; until [ -e $GUILD_HOME/go ]; do sleep 0.1; done; echo loss: 0.25"'}
"""
SCHEDULER = ("guild", "run", "dask:scheduler", "workers=1", NO_DASHBOARD, "-y")


def test_first_interrupt_drains_and_says_so(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "hold", "aaa", "bbb")
    with InTerminal(SCHEDULER) as shown:
        shown.wait_for("holding")
        shown.press(CTRL_C)
        shown.wait_for("1 run is running: press Ctrl-C again to end it, or wait")
        (pathlib.Path(user.guild_home) / "go").touch()
        assert shown.wait() == 0
        assert "Run aaa completed in" in shown.text
        assert "(loss=0.25)" in shown.text
        assert "1 run(s) completed, 0 failed, 1 left staged" in shown.text
    assert statuses(user) == {"aaa": "completed", "bbb": "staged"}


def test_second_interrupt_ends_runs(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "hold", "aaa", "bbb")
    with InTerminal(SCHEDULER) as shown:
        shown.wait_for("holding")
        shown.press(CTRL_C)
        shown.wait_for("press Ctrl-C again")
        shown.press(CTRL_C)
        shown.wait()
        assert "Ending 1 run(s)" in shown.text
        assert "1 terminated, 1 left staged" in shown.text
    assert statuses(user) == {"aaa": "terminated", "bbb": "staged"}


def test_interrupt_without_running_runs_stops_at_once(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    with InTerminal(SCHEDULER) as shown:
        shown.wait_for("Waiting for staged runs")
        shown.press(CTRL_C)
        assert shown.wait() == 0
        assert "Worked for" in shown.text


def test_drain_of_an_interrupt_can_be_taken_back(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "hold", "aaa")
    with InTerminal(SCHEDULER) as shown:
        shown.wait_for("holding")
        shown.press(CTRL_C)
        shown.wait_for("press Ctrl-C again")
        assert run_command("guild-dask resume", os.environ, os.getcwd()).exit_code == 0
        shown.wait_for("Resumed")
        (pathlib.Path(user.guild_home) / "go").touch()
        stage(guild, "hold", "bbb")
        wait_until(lambda: statuses(user) == {"aaa": "completed", "bbb": "completed"}, describe=lambda: statuses(user))
