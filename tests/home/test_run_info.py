"""Where a run ran is in the run, and Guild copes with that."""

import pathlib
import re
import sys

import pytest
import yaml

from guild_dask.home import process_start, run_info
from guild_dask.home.process_start import ProcessStart
from tests.support.sandbox import Guild, Sandbox, run_command, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, stage, statuses

OPERATIONS = """
busy: {exec: 'python -c "b = bytearray(80_000_000); [i for i in range(10**7)]"'}
nap: {exec: 'sleep 60'}
"""
SCHEDULER = f"run dask:scheduler resources='gpu=1 mem=1GB' run-once=yes {NO_DASHBOARD} --run-id sss -y"


@pytest.fixture
def ran(user: Sandbox, guild: Guild) -> pathlib.Path:
    """The directory of a run that a scheduler has run."""
    a_project(user, OPERATIONS)
    stage(guild, "busy", "aaa", options="--tag 'dask:gpu=1 mem=100MB'")
    guild(SCHEDULER)
    return user.guild_home / "runs" / "aaa"


def attribute(run_dir: pathlib.Path) -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load((run_dir / ".guild" / "attrs" / "dask").read_text())
    return found


def test_run_says_where_it_ran_and_what_it_used(ran: pathlib.Path, guild: Guild) -> None:
    facts = attribute(ran)
    assert (facts["scheduler"], facts["worker"], facts["attempt"]) == ("sss", "local", 1)
    assert facts["requested"] == "gpu=1 mem=100MB"
    assert isinstance(facts["waited_seconds"], float)
    used = run_info.recorded(str(ran))[0]
    assert used["cpu_seconds"] > 0
    assert 80e6 < used["max_memory"] < 2e9
    shown = guild("runs info aaa").output
    assert re.search(r"dask:\s+attempt: 1\s+cpu_seconds: ", shown), shown
    assert "  requested: gpu=1 mem=100MB\n" in shown
    assert "  worker: local\n" in shown


def test_guild_copes_with_it(ran: pathlib.Path, guild: Guild, user: Sandbox) -> None:
    assert "aaa" in guild("compare --csv -").output
    guild(f"export {user.root / 'exported'} aaa -y")
    assert attribute(user.root / "exported" / "aaa")["worker"] == "local"
    guild("run --restart aaa -y")
    assert attribute(ran)["worker"] == "local"
    assert statuses(user)["aaa"] == "completed"


def test_running_run_says_where_it_is(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa")
    with guild.started(SCHEDULER):
        run_dir = user.guild_home / "runs" / "aaa"
        wait_until(lambda: statuses(user)["aaa"] == "running")
        assert attribute(run_dir)["worker"] == "local"
        assert run_info.recorded(str(run_dir))[0] == {}


def test_run_that_never_started_says_nothing(user: Sandbox, guild: Guild) -> None:
    a_project(user, "late: {exec: 'true', requires: [{operation: prepare}]}\nprepare: {exec: 'true'}")
    stage(guild, "late", "aaa")
    assert "could not be started" in guild(SCHEDULER).output
    assert not (user.guild_home / "runs" / "aaa" / ".guild" / "attrs" / "dask").exists()


def test_text_is_yaml_whatever_names_are_like() -> None:
    facts = {"worker": "a: b # c\n", "host": "höst", "attempt": 2, "waited_seconds": 0.5}
    assert yaml.safe_load(run_info.text_for(facts)) == facts


def test_use_is_that_of_the_children_of_the_process(tmp_path: pathlib.Path) -> None:
    (tmp_path / ".guild" / "attrs").mkdir(parents=True)
    code = (
        "import subprocess, sys; from guild_dask.home import run_info as w; w.write('.', 'worker: x\\n');"
        "subprocess.run([sys.executable, '-c', 'bytearray(90_000_000)']); w.add_end('.')"
    )
    assert run_command([sys.executable, "-c", code], {}, tmp_path).exit_code == 0
    assert run_info.recorded(str(tmp_path))[0]["max_memory"] > 90e6
    assert run_info.recorded(str(tmp_path / "none"))[0] == {}


@pytest.mark.parametrize(
    "start", [ProcessStart("cold"), ProcessStart("warm", 0.012, 0.31, 2.5), ProcessStart("warm", 0.012, 0.31)]
)
def test_start_of_the_process_is_recorded(tmp_path: pathlib.Path, start: ProcessStart) -> None:
    (tmp_path / ".guild" / "attrs").mkdir(parents=True)
    run_info.write(str(tmp_path), "")
    run_info.add(str(tmp_path), process_start.facts_for(start))
    assert run_info.recorded(str(tmp_path))[1] == start
