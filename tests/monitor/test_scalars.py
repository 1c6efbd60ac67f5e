"""The scalars of a scheduler's own run, which Guild shows."""

import csv
import io
import pathlib

import pytest

from guild_dask.home import layout
from guild_dask.monitor.scalars import Tally
from guild_dask.monitor.state import EndedRun, State, WorkerState
from tests.support.sandbox import Guild, Sandbox
from tests.support.scheduling import NO_DASHBOARD, a_project, stage


def state(used: float, completed: int) -> State:
    workers = (WorkerState("w", "h", 4, 1, {"gpu": 2.0}, {"gpu": used}),)
    return State("s", "h", 1, 0.0, workers=workers, ends={"completed": completed, "failed": 1})


def test_use_is_the_mean_over_time() -> None:
    tally = Tally(100.0)
    tally.update(state(2.0, 0), 100.0)
    tally.update(state(0.0, 1), 110.0)
    tally.ended(EndedRun("a", "o", "completed", 0, "w", "h", 110.0, 10.0, 6.0, 1, {"gpu": 2.0}))
    tally.update(state(0.0, 1), 130.0)
    values = tally.values(state(0.0, 1))
    assert values["use_gpu"] == pytest.approx(1 / 3)
    assert values["use_runs"] == pytest.approx(10 / 120)
    assert (values["runs_completed"], values["runs_failed"], values["seconds_waited"]) == (1, 1, 6)


def test_run_between_two_updates_counts() -> None:
    tally = Tally(100.0)
    tally.update(state(0.0, 0), 100.0)
    tally.ended(EndedRun("a", "o", "completed", 0, "w", "h", 101.0, 0.5, 0.0, 1, {"gpu": 2.0}))
    tally.update(state(0.0, 1), 101.0)
    assert tally.values(state(0.0, 1))["use_gpu"] == pytest.approx(0.5)


def test_guild_shows_the_scalars_of_a_scheduler(user: Sandbox, guild: Guild) -> None:
    a_project(user, "nap: {exec: 'sleep 0.3'}\nbad: {exec: 'false'}")
    stage(guild, "nap", "aaa", "bbb", options="--tag dask:gpu=1")
    stage(guild, "bad", "ccc")
    guild(f"run dask:scheduler workers=2 resources=gpu=1 run-once=yes {NO_DASHBOARD} --run-id sss -y")
    table = guild("compare --csv - -Fo dask:scheduler --include-batch").output
    (row,) = csv.DictReader(io.StringIO(table[table.index("run,") :]))
    assert (float(row["runs_completed"]), float(row["runs_failed"])) == (2, 1)
    assert float(row["seconds_waited"]) > 0
    assert 0 < float(row["use_gpu"]) <= 1
    assert "sss" not in guild("compare --csv -").output, "it is not listed among the user's runs"


def test_scheduler_without_runs_has_none(user: Sandbox, guild: Guild) -> None:
    guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} --run-id sss -y")
    run_dir = layout.run_dir(str(user.guild_home), "sss")
    assert not pathlib.Path(layout.scheduler_scalars(run_dir)).exists()
