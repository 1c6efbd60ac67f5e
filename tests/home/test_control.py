"""Pause, resume and drain: what is asked, and what a scheduler does."""

import json
import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guild_dask.home import control, layout
from guild_dask.home.control import Control
from guild_dask.monitor.state import State, state_for_data
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, stage, statuses

HOLD = "hold:\n  exec: sh -c 'until [ -e {go} ]; do sleep 0.1; done'\nop:\n  exec: 'true'\n"
SCHEDULER = f"run dask:scheduler {NO_DASHBOARD} workers=1"


@pytest.fixture
def go(user: Sandbox) -> pathlib.Path:
    """The file that a run of `hold` waits for, in a project that has such an operation."""
    path = user.folder / "go"
    a_project(user, HOLD.format(go=path))
    return path


# What is asked


@pytest.fixture
def home(tmp_path: pathlib.Path) -> str:
    schedulers = tmp_path / "dask" / "schedulers"
    schedulers.mkdir(parents=True)
    for name in ("aaa", "bbb"):
        (schedulers / f"{name}.json").touch()
    return str(tmp_path)


def states(home: str) -> dict[str, Control]:
    return {name: control.state(home, name) for name in ("aaa", "bbb", "new")}


def test_nothing_is_asked_to_begin_with(tmp_path: pathlib.Path) -> None:
    assert control.state(str(tmp_path), "aaa") == Control()
    control.send(str(tmp_path), None, "resume")
    control.send(str(tmp_path), None, "drain")
    control.forget(str(tmp_path / "nowhere"), "aaa")


def test_one_scheduler_is_asked_to_pause(home: str) -> None:
    control.send(home, "aaa", "pause")
    assert states(home) == {"aaa": Control(is_paused=True), "bbb": Control(), "new": Control()}
    control.send(home, "bbb", "resume")
    assert control.state(home, "aaa").is_paused
    control.send(home, "aaa", "resume")
    assert control.state(home, "aaa") == Control()


def test_all_are_asked_to_pause_even_those_to_come(home: str) -> None:
    control.send(home, None, "pause")
    assert set(states(home).values()) == {Control(is_paused=True)}
    assert control.is_paused(home)
    # One of them alone cannot be let go, or the others' pause would mean little.
    control.send(home, "aaa", "resume")
    assert control.state(home, "aaa").is_paused
    control.send(home, None, "resume")
    assert set(states(home).values()) == {Control()}


def test_all_at_work_are_asked_to_drain_and_none_to_come(home: str) -> None:
    control.send(home, None, "drain")
    assert states(home) == {"aaa": Control(is_draining=True), "bbb": Control(is_draining=True), "new": Control()}


def test_resume_takes_a_drain_back(home: str) -> None:
    control.send(home, "aaa", "drain")
    control.send(home, "aaa", "resume")
    assert control.state(home, "aaa") == Control()


def test_scheduler_that_ends_leaves_what_was_asked_of_all(home: str) -> None:
    for scheduler in (None, "aaa"):
        control.send(home, scheduler, "pause")
    control.send(home, "aaa", "drain")
    control.forget(home, "aaa")
    assert control.state(home, "aaa") == Control(is_paused=True)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from([None, "aaa", "bbb"]), st.sampled_from(["pause", "resume", "drain"]))))
def test_the_last_word_counts(
    tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[str | None, control.Request]]
) -> None:
    home = str(tmp_path_factory.mktemp("home"))
    for scheduler, request in asked:
        control.send(home, scheduler, request)
        if request == "pause":
            assert control.state(home, scheduler or "any").is_paused
        elif request == "resume" and scheduler is None:
            assert states(home) == dict.fromkeys(("aaa", "bbb", "new"), Control())
        elif scheduler:
            assert control.state(home, scheduler).is_draining == (request == "drain")


# What a scheduler does


def test_paused_scheduler_lets_runs_go_on_and_starts_none(user: Sandbox, guild: Guild, go: pathlib.Path) -> None:
    # With the longest interval between looks: it hears of it at once.
    stage(guild, "hold", "aaa")
    stage(guild, "op", "bbb")
    with guild.started(f"{SCHEDULER} poll-interval=10000 -y") as scheduler:
        wait_until(lambda: statuses(user)["aaa"] == "running")
        control.send(str(user.guild_home), None, "pause")
        scheduler.wait_for_output("Paused: running runs go on, and none is started before 'guild-dask resume'")
        go.touch()
        wait_until(lambda: statuses(user)["aaa"] == "completed")
        stage(guild, "op", "ccc")
        assert statuses(user) == {"aaa": "completed", "bbb": "staged", "ccc": "staged"}
        assert "ccc" not in scheduler.output
        control.send(str(user.guild_home), None, "resume")
        wait_until(lambda: set(statuses(user).values()) == {"completed"}, describe=scheduler.so_far)
        assert scheduler.output.count("Resumed") == 1


def test_pause_of_the_home_outlives_schedulers_and_a_new_one_says_so(
    user: Sandbox, guild: Guild, go: pathlib.Path
) -> None:
    stage(guild, "op", "aaa")
    control.send(str(user.guild_home), None, "pause")
    with guild.started(f"{SCHEDULER} run-once=yes poll-interval=10000 -y") as scheduler:
        scheduler.wait_for_output("Paused: ")
        assert statuses(user) == {"aaa": "staged"}
        assert scheduler.is_running
        assert "Starting staged run" not in scheduler.output
        control.send(str(user.guild_home), None, "resume")
        assert scheduler.wait().exit_code == 0
    assert statuses(user) == {"aaa": "completed"}


def test_run_that_can_never_start_is_told_while_nothing_may_start(
    user: Sandbox, guild: Guild, go: pathlib.Path
) -> None:
    stage(guild, "op", "aaa")
    stage(guild, "op", "bbb", options="--tag dask:gpu=7")
    control.send(str(user.guild_home), None, "pause")
    with guild.started(f"{SCHEDULER} resources=gpu=1 poll-interval=10000 --run-id sss -y") as scheduler:
        scheduler.wait_for_output("Leaving run bbb staged (requests gpu=7, largest worker has gpu=1)")
        wait_until(lambda: _state(user, "sss").impossible == 1)
        assert _state(user, "sss").waiting == 2
        assert "aaa" not in scheduler.output


def _state(user: Sandbox, scheduler: str) -> State:
    found = state_for_data(json.loads(layout.scheduler_state(str(user.guild_home), scheduler).read_text()))
    assert found
    return found


def test_drained_scheduler_ends_with_its_runs_and_leaves_the_rest_staged(
    user: Sandbox, guild: Guild, go: pathlib.Path
) -> None:
    stage(guild, "hold", "aaa")
    stage(guild, "op", "bbb")
    with guild.started(f"{SCHEDULER} poll-interval=10000 -y") as scheduler:
        wait_until(lambda: statuses(user)["aaa"] == "running")
        control.send(str(user.guild_home), None, "drain")
        scheduler.wait_for_output("Draining: starting no more runs, and stopping when 1 running run(s) have ended")
        assert scheduler.is_running
        go.touch()
        assert scheduler.wait().exit_code == 0
    assert statuses(user) == {"aaa": "completed", "bbb": "staged"}
    assert not list(control.folder(str(user.guild_home)).iterdir())
    # It is not in the way of the next one.
    guild(f"{SCHEDULER} run-once=yes -y")
    assert statuses(user) == {"aaa": "completed", "bbb": "completed"}
