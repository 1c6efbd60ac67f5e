"""Several schedulers and Guild's own queues on one Guild home: each run starts once."""

import contextlib
import pathlib

from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, stage, statuses

NOTE = """
note:
  exec: sh -c 'echo $RUN_ID >> $GUILD_HOME/journal; sleep 0.2'
"""


def test_two_schedulers_and_a_queue_start_each_run_once(user: Sandbox, guild: Guild) -> None:
    a_project(user, NOTE)
    ids = [f"run{number:02}" for number in range(12)]
    with contextlib.ExitStack() as running:
        schedulers = [
            running.enter_context(guild.started(f"run dask:scheduler workers=2 poll-interval=0.2 {NO_DASHBOARD} -y"))
            for _ in range(2)
        ]
        running.enter_context(guild.started("run queue poll-interval=1 -y"))
        stage(guild, "note", *ids)
        wait_until(lambda: set(statuses(user).values()) == {"completed"}, describe=lambda: statuses(user))
    assert sorted(_journal(user)) == ids
    for scheduler in schedulers:
        assert "WARNING" not in scheduler.output


HOLD = """
hold:
  exec: sh -c 'until [ -e $GUILD_HOME/go ]; do sleep 0.1; done'
"""


def test_announced_run_that_another_scheduler_starts_is_logged_by_both(user: Sandbox, guild: Guild) -> None:
    # The first log says that it starts bbb, which waits for its slot. An hour between polls: bbb has ended meanwhile.
    a_project(user, HOLD + NOTE)
    stage(guild, "hold", "aaa")
    stage(guild, "note", "bbb")
    first = f"run dask:scheduler --run-id first workers=1 poll-interval=3600 run-once=yes {NO_DASHBOARD} -y"
    with guild.started(first) as scheduler:
        scheduler.wait_for_output("Starting staged run bbb")
        second = guild(f"run dask:scheduler --run-id second workers=1 run-once=yes {NO_DASHBOARD} -y").output
        assert {run: statuses(user)[run] for run in ("aaa", "bbb")} == {"aaa": "running", "bbb": "completed"}
        (user.guild_home / "go").touch()
        scheduler.wait()
        log = scheduler.output
    assert log.count("Run bbb was taken by scheduler second\n") == 1
    assert "1 run(s) completed, 0 failed, 0 left staged" in log
    assert second.count("Starting staged run bbb") == 1
    assert "was taken" not in second


def test_announced_run_that_a_user_starts_is_logged(user: Sandbox, guild: Guild) -> None:
    # A scheduler has run it before, which its record still says.
    a_project(user, HOLD + NOTE)
    stage(guild, "note", "bbb")
    guild(f"run dask:scheduler --run-id before run-once=yes {NO_DASHBOARD} -y")
    stage(guild, "hold", "aaa")
    guild("run --restart bbb --stage -y")
    with guild.started(f"run dask:scheduler workers=1 poll-interval=0.5 {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("Starting staged run bbb")
        guild("run --start bbb -y")
        scheduler.wait_for_output("Run bbb was taken by a Guild queue or a user\n")


def _journal(user: Sandbox) -> list[str]:
    return (user.guild_home / "journal").read_text().split()


def test_staged_run_is_noticed_without_waiting_for_the_next_poll(user: Sandbox, guild: Guild) -> None:
    # An hour between looks: what starts now was told by the operating system.
    a_project(user, NOTE)
    with guild.started(f"run dask:scheduler poll-interval=3600 {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("Waiting for staged runs")
        stage(guild, "note", "aaa", "bbb")
        wait_until(lambda: set(statuses(user).values()) == {"completed"}, describe=lambda: statuses(user))


def test_restaged_old_run_is_found_by_the_regular_look(user: Sandbox, guild: Guild) -> None:
    a_project(user, NOTE)
    guild("run note --run-id aaa -y")
    with guild.started(f"run dask:scheduler poll-interval=0.5 {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("Waiting for staged runs")
        guild("run --restart aaa --stage -y")
        wait_until(lambda: _journal(user) == ["aaa", "aaa"], describe=lambda: _journal(user))


def test_many_staged_at_once_are_all_seen(user: Sandbox, guild: Guild) -> None:
    folder = a_project(user, NOTE)
    stage(guild, "note", "aaa")
    with guild.started(f"run dask:scheduler workers=4 poll-interval=3600 {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("Starting staged run aaa")
        (folder / "many.sh").write_text(
            "for i in 1 2 3 4 5 6; do guild run note --run-id run$i --stage -y & done; wait"
        )
        _run_script(folder)
        wait_until(lambda: list(statuses(user).values()) == ["completed"] * 7, describe=lambda: statuses(user))
    assert len(_journal(user)) == 7


def _run_script(folder: pathlib.Path) -> None:
    import os

    from tests.support.sandbox import run_command

    finished = run_command(["sh", "many.sh"], os.environ, folder)
    assert finished.exit_code == 0, finished


def test_asking_for_nothing_of_something_unknown_is_asking_for_nothing(user: Sandbox, guild: Guild) -> None:
    a_project(user, NOTE)
    stage(guild, "note", "aaa", options="--tag dask:gpu=0")
    guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y")
    assert statuses(user) == {"aaa": "completed"}
