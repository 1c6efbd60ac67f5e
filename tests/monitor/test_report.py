"""What happened in a scheduler's life: the story that its events tell, as text and as a page."""

import pathlib
import re
import time
from typing import Any

import pytest

from guild_dask.monitor.report import charts, files, page, summary
from guild_dask.monitor.report.story import RUNS, Aftermath, story_for
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, scheduler_process, stage, statuses

# Says that it runs, and ends when it is let go; with code 77, later.
LATE = """
root=$GUILD_HOME/..
touch $root/here-$1
until [ -e $root/go ]; do sleep 0.05; done
until [ $1 != 77 ] || [ -e $root/end ]; do sleep 0.05; done
exit $1
"""

WORKER = {"name": "local", "host": "here", "slots": 2, "used_slots": 0, "total": {"mem": "64GB"}, "used": {}}


def workers(at: float, *present: dict[str, Any]) -> dict[str, Any]:
    return {"event": "workers", "at": at, "workers": list(present)}


def started(at: float, run: str, **facts: Any) -> dict[str, Any]:
    usual = {
        "operation": "train",
        "worker": "local",
        "host": "here",
        "waited": 1.0,
        "attempt": 1,
        "asks": {"mem": "8GB"},
    }
    return {"event": "started", "at": at, "run": run, **usual, **facts}


def ended(at: float, run: str, ran: float, end: str = "completed", **facts: Any) -> dict[str, Any]:
    return {**started(at, run), "event": "ended", "ran": ran, "end": end, "exit_code": 0, "used": {}, **facts}


EVENTS = [
    workers(100.0, WORKER),
    started(100.0, "aaa"),
    started(100.0, "bbb"),
    ended(110.0, "aaa", 10.0),
    started(110.0, "ccc"),
    ended(120.0, "bbb", 20.0, "failed"),
    ended(120.0, "ccc", 10.0),
    {"event": "stopped", "at": 140.0},
]


def test_runs_on_one_worker_have_lanes_in_which_none_overlaps() -> None:
    story = story_for(EVENTS, 0.0)
    assert story
    assert [(span.run.run, span.start, span.stop, span.lane) for span in story.spans] == [
        ("aaa", 100.0, 110.0, 0),
        ("bbb", 100.0, 120.0, 1),
        ("ccc", 110.0, 120.0, 0),
    ]
    assert story.ends == {"completed": 2, "failed": 1}


def test_use_of_each_resource_follows_from_starts_and_ends() -> None:
    story = story_for(EVENTS, 0.0)
    assert story
    runs, memory = story.uses
    assert (runs.name, memory.name) == (RUNS, "mem")
    assert list(zip(runs.times, runs.used, runs.total, strict=True)) == [
        (100.0, 0.0, 0.0),
        (100.0, 2.0, 2.0),
        (110.0, 2.0, 2.0),
        (120.0, 0.0, 2.0),
        (140.0, 0.0, 2.0),
    ]
    assert runs.mean_share == 0.5
    assert memory.mean_share == 0.125


def test_scheduler_at_work_has_a_story() -> None:
    story = story_for(EVENTS[:5], 130.0)
    assert story
    assert not story.is_over
    assert summary.headline(story) == "The scheduler has worked for 30 s: 1 completed, 2 running."
    assert [(span.run.run, span.run.end, span.stop) for span in story.spans[1:]] == [
        ("bbb", "running", 130.0),
        ("ccc", "running", 130.0),
    ]


def test_story_of_one_that_was_killed_ends_where_it_was_last_heard_of() -> None:
    # It said nothing after 110, its heart beat until 125, and one of its runs went on until 150.
    story = story_for(EVENTS[:5], 2000.0, Aftermath(125.0, [ended(150.0, "bbb", 50.0, "failed", exit_code=3)]))
    assert story
    assert story.is_killed
    assert [(span.run.run, span.run.end, span.stop, span.run.ran) for span in story.spans[1:]] == [
        ("bbb", "failed", 125.0, 50.0),
        ("ccc", "running", 125.0, 1890.0),
    ]
    assert {use.times[-1] for use in story.uses} == {125.0}
    assert summary.headline(story) == (
        "The scheduler worked for 25 s, and was killed or lost with its host: 1 completed, 1 failed, 1 running."
    )
    assert summary.unfinished(story, {}, 10) == [("bbb", "train", "local", "1", "50 s", "failed (exit 3)")]
    text = page.page(story, {}, "title")
    assert "was killed or lost with its host" in text


@pytest.mark.parametrize("event", [{"event": "ended", "at": 105.0}, {"event": "workers", "at": 1, "workers": 3}])
def test_event_that_says_nothing_is_left_out(event: dict[str, Any]) -> None:
    whole, with_more = story_for(EVENTS, 0.0), story_for([EVENTS[0], event, *EVENTS[1:]], 0.0)
    assert whole
    assert with_more
    assert whole.spans == with_more.spans
    assert story_for([], 0.0) is None


def test_summary_tells_what_was_asked_and_what_was_used() -> None:
    used: dict[str, Any] = {"used": {"cpu_seconds": "15", "max_memory": "2500000000"}}
    story = story_for([EVENTS[0], ended(110.0, "aaa", 10.0, "completed", **used), EVENTS[-1]], 0.0)
    assert story
    assert summary.operations(story) == [("train", "1", "10 s", "1 s", "1.5", "2.5 GB", "mem=8GB")]
    assert summary.headline(story) == "The scheduler worked for 40 s: 1 completed."


def test_runs_that_did_not_complete_are_listed_with_why_and_those_that_never_started() -> None:
    why = "it ran for 3s, its time limit"
    events = [
        *EVENTS[:-1],
        started(120.0, "ddd"),
        ended(123.0, "ddd", 3.0, "terminated", exit_code=-15, why=why),
        {"event": "stopped", "at": 140.0, "left": {"eee": "asks gpu=7, largest worker has gpu=1", "fff": ""}},
    ]
    story = story_for(events, 0.0)
    assert story
    (limited, failed) = summary.unfinished(story, {"ddd": "train lr=<1>"}, 10)
    assert limited == ("ddd", "train lr=<1>", "local", "1", "3 s", f"terminated: {why}")
    assert (failed[0], failed[-1]) == ("bbb", "failed")
    assert summary.left(story, 10) == [
        ("eee", "asks gpu=7, largest worker has gpu=1"),
        ("fff", "its turn had not come"),
    ]
    text = page.page(story, {"ddd": "train lr=<1>"}, "title")
    assert f"<td>terminated: {why}</td>" in text
    assert "<td>train lr=&lt;1&gt;</td>" in text
    assert "<td>asks gpu=7, largest worker has gpu=1</td>" in text


def test_no_more_than_all_of_a_resource_is_used_when_a_worker_is_lost() -> None:
    events = [workers(100.0, WORKER), started(100.0, "aaa"), workers(110.0), ended(120.0, "aaa", 20.0)]
    story = story_for(events, 120.0)
    assert story
    assert story.uses[0].mean_share == 0.5
    assert all(use.mean_share <= 1 for use in story.uses)


@pytest.mark.parametrize(
    ("asks", "titles"),
    [
        ({"mem": "8GB", "cpu": "4"}, ["Memory: asked against used", "CPUs: asked against used"]),
        ({"mem": "8GB"}, ["Memory: asked against used"]),
        ({"gpu": "1"}, ["CPUs and memory used"]),
    ],
)
def test_what_was_asked_for_is_drawn_against_what_was_used(asks: dict[str, str], titles: list[str]) -> None:
    used = {"cpu_seconds": "5", "max_memory": "1GB"}
    story = story_for([workers(100.0, WORKER), ended(110.0, "aaa", 10.0, asks=asks, used=used)], 120.0)
    assert story
    drawn = charts.asked(story, {})
    assert list(drawn) == titles
    assert all(drawn.values())


def test_page_needs_nothing_else_and_takes_no_text_for_markup() -> None:
    evil = "</script><script>alert(1)</script>"
    story = story_for([*EVENTS[:-1], ended(130.0, "ddd", 1.0, operation=evil), EVENTS[-1]], 0.0)
    assert story
    text = page.page(story, {"aaa": evil, "ddd": evil}, evil)
    assert "<script>alert" not in text
    assert "alert(1)" in text, "it is shown all the same"
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=", text)


def test_long_life_is_drawn_from_its_end() -> None:
    count = page.MOST_DRAWN + 1000
    events = [workers(0.0, WORKER)]
    for number in range(count):
        events.append(ended(number + 1.0, f"run-{number}", 1.0))
    story = story_for([*events, {"event": "stopped", "at": count + 1.0}], 0.0)
    assert story
    drawn = page.latest(story)
    assert [span.run.run for span in (drawn.spans[0], drawn.spans[-1])] == ["run-1000", f"run-{count - 1}"]
    assert drawn.uses[0].times[0] == drawn.start == 1000.0
    text = page.page(story, {}, "long")
    assert "The charts show the last 5000 runs." in text
    assert f"{count} completed" in text


def test_scheduler_leaves_a_report_that_can_be_written_again(user: Sandbox, guild: Guild) -> None:
    a_project(user, "nap: {exec: 'sleep 0.1'}")
    stage(guild, "nap", "aaa", "bbb")
    guild(f"run dask:scheduler workers=2 run-once=yes {NO_DASHBOARD} --run-id sss -y")
    run_dir = user.guild_home / "runs" / "sss"
    left = (run_dir / page.NAME).read_text()
    assert "<h1>Dask scheduler sss</h1>" in left
    assert "Runs on workers" in left
    assert "2 completed" in left
    again = user.root / "again.html"
    assert files.write_report(str(run_dir), str(again))
    assert "2 completed" in again.read_text()
    assert page.NAME in guild("ls sss").output


def test_report_of_a_killed_scheduler_tells_of_its_runs_what_they_say_themselves(user: Sandbox, guild: Guild) -> None:
    a_project(user, "late: {exec: 'sh late.sh ${code}', flags: {code: 0}}", {"late.sh": LATE})
    stage(guild, "late", "aaa")
    stage(guild, "late code=3", "bbb")
    stage(guild, "late code=77", "ccc")
    run_dir = str(user.guild_home / "runs" / "sss")
    with guild.started(f"run dask:scheduler workers=3 {NO_DASHBOARD} --run-id sss -y") as scheduler:
        wait_until(lambda: len(list(user.root.glob("here-*"))) == 3, describe=scheduler.so_far)
        at_work = files.story_of(run_dir)
        assert at_work
        assert (at_work.is_over, at_work.ends) == (False, {"running": 3})
        scheduler_process(user).kill()
        scheduler.wait()
    dead_at = time.time()
    (user.root / "go").touch()
    wait_until(lambda: statuses(user) == {"aaa": "completed", "bbb": "error", "ccc": "running", "sss": "terminated"})
    killed = files.story_of(run_dir)
    assert killed
    assert killed.stop <= dead_at
    assert killed.is_killed
    assert killed.ends == {"completed": 1, "failed": 1, "running": 1}
    (failed,) = killed.unfinished
    assert (failed.run.run, failed.run.exit_code) == ("bbb", 3)
    assert failed.run.ran > failed.stop - failed.start, "it went on when the scheduler was dead"
    (user.root / "end").touch()
    wait_until(lambda: statuses(user)["ccc"] == "error")
    # The next one removes the heartbeat. A run that is deleted or staged again has no end that anybody knows.
    guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y")
    guild("runs rm aaa -y")
    guild("run --restart bbb --stage -y")
    later = files.story_of(run_dir)
    assert later
    assert later.stop <= dead_at
    assert later.ends == {"gone": 1, "staged again": 1, "failed": 1}


def test_scheduler_that_ran_nothing_leaves_none(user: Sandbox, guild: Guild) -> None:
    guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} --run-id sss -y")
    assert not (user.guild_home / "runs" / "sss" / page.NAME).exists()


def test_nothing_to_report_is_told(tmp_path: pathlib.Path) -> None:
    assert not files.write_report(str(tmp_path), str(tmp_path / "out.html"))
