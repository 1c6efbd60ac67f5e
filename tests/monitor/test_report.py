"""The report of a scheduler: its history, as text and as a page."""

import html
import pathlib
import re
import time
from typing import Any

import pytest

from guild_dask.monitor.page.rows import Rows
from guild_dask.monitor.report import charts, files, page, summary
from guild_dask.monitor.report.history import SLOTS, EndedScheduler, History, history_for
from guild_dask.monitor.report.run_facts import RunFacts
from guild_dask.monitor.run_states import state_for
from guild_dask.scheduler.search.evaluation import evaluation_command
from tests.support.browser import browser, complaints
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, scheduler_process, stage, statuses

# Shows that it runs, and ends when the file `go` exists; with code 77, when `end` does, too.
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
        "requests": {"mem": "8GB"},
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


def test_runs_in_a_lane_do_not_overlap() -> None:
    history = history_for(EVENTS, 0.0)
    assert history
    assert [(span.run.run, span.start, span.stop, span.lane) for span in history.spans] == [
        ("aaa", 100.0, 110.0, 0),
        ("bbb", 100.0, 120.0, 1),
        ("ccc", 110.0, 120.0, 0),
    ]
    assert history.ends == {"completed": 2, "failed": 1}


def warm_start(seconds: float, preload: float = 0.0) -> dict[str, Any]:
    return {"kind": "warm", "seconds": seconds, "fresh": 0.31, "preload": preload}


def test_report_says_what_warm_starts_saved() -> None:
    events = [
        ended(110.0, "aaa", 1.0, start={"kind": "cold"}),
        ended(111.0, "bbb", 1.0, start=warm_start(0.01)),
        ended(112.0, "ccc", 1.0, start=warm_start(0.012)),
        ended(113.0, "ddd", 1.0, start=warm_start(0.5)),  # on a machine that was busy, which saved nothing
        ended(113.0, "eee", 1.0),  # by an older guild-dask
        ended(114.0, "fff", 1.0, operation="test", start=warm_start(0.01, preload=2.0)),
        ended(114.0, "ggg", 1.0, operation="other", start={"kind": "cold"}),
    ]
    history = history_for(events, 120.0)
    assert history
    preloaded = "and up to 2 s by preloaded modules where runs import them"
    assert summary.warm_starts(history) == [
        f"test: 1 of 1 started warm, in 10 ms instead of 0.31 s (medians): 0.3 s saved, {preloaded}",
        "train: 3 of 4 started warm, in 12 ms instead of 0.31 s (medians): 0.6 s saved",
    ]


def test_use_of_each_resource_follows_from_starts_and_ends() -> None:
    history = history_for(EVENTS, 0.0)
    assert history
    runs, memory = history.uses
    assert (runs.name, memory.name) == (SLOTS, "mem")
    assert list(zip(runs.times, runs.used, runs.total, strict=True)) == [
        (100.0, 0.0, 0.0),
        (100.0, 2.0, 2.0),
        (110.0, 2.0, 2.0),
        (120.0, 0.0, 2.0),
        (140.0, 0.0, 2.0),
    ]
    assert runs.mean_share == 0.5
    assert memory.mean_share == 0.125


def test_scheduler_at_work_has_a_history() -> None:
    history = history_for(EVENTS[:5], 130.0)
    assert history
    assert not history.is_over
    assert summary.headline(history) == "The scheduler has worked for 30 s: 1 completed, 2 running."
    assert [(span.run.run, span.run.end, span.stop) for span in history.spans[1:]] == [
        ("bbb", "running", 130.0),
        ("ccc", "running", 130.0),
    ]


def test_history_of_a_killed_scheduler_ends_at_its_last_heartbeat() -> None:
    # Its last event was at 110, its last heartbeat at 125, and one of its runs continued until 150.
    history = history_for(EVENTS[:5], 2000.0, EndedScheduler(125.0, [ended(150.0, "bbb", 50.0, "failed", exit_code=3)]))
    assert history
    assert history.is_killed
    assert [(span.run.run, span.run.end, span.stop, span.run.ran) for span in history.spans[1:]] == [
        ("bbb", "failed", 125.0, 50.0),
        ("ccc", "running", 125.0, 1890.0),
    ]
    assert {use.times[-1] for use in history.uses} == {125.0}
    assert summary.headline(history) == (
        "The scheduler worked for 25 s, and was killed or lost with its host: 1 completed, 1 failed, 1 running."
    )
    (span,) = history.unfinished
    assert (span.run.operation, span.run.worker, span.run.attempt) == ("train", "local", 1)
    assert (span.run.run, span.run.ran, span.run.ending.text) == ("bbb", 50.0, "failed: exit code 3")
    text = page.page(history, {}, "title")
    assert "was killed or lost with its host" in text


AGAIN = [
    {"event": "began", "at": 1000.0, "last_heartbeat": 130.0},
    workers(1000.0, WORKER),
    started(1000.0, "ddd"),
    ended(1010.0, "ddd", 10.0),
    {"event": "stopped", "at": 1020.0},
]


@pytest.mark.parametrize(
    ("first", "stop"),
    [
        (EVENTS, 140.0),  # it was stopped
        (EVENTS[:-1], 130.0),  # it was killed after its last heartbeat
    ],
)
def test_time_between_two_processes_of_a_scheduler_is_no_work(first: list[dict[str, Any]], stop: float) -> None:
    history = history_for([*first, *AGAIN], 2000.0)
    assert history
    assert history.pauses == ((stop, 1000.0),)
    assert history.worked == (stop - 100.0) + 20.0
    assert summary.headline(history).startswith(f"The scheduler worked for {stop - 80:.0f} s: 3 completed")
    runs = history.uses[0]
    used = 2 * 20.0 + 10.0
    assert runs.mean_share == pytest.approx(used / (2 * history.worked))
    assert not history.is_killed


def test_run_that_outlives_its_process_uses_a_slot_until_that_ends() -> None:
    # It started at 100 and ended at 150, when nobody worked for the scheduler, which had been killed at 130.
    outlived = ended(150.0, "bbb", 50.0)
    history = history_for([*EVENTS[:5], *AGAIN[:3]], 1005.0, outlived=[outlived])
    assert history
    assert not history.is_over
    spans = {span.run.run: (span.run.end, span.start, span.stop) for span in history.spans}
    assert spans["bbb"] == ("completed", 100.0, 130.0)
    assert spans["ddd"] == ("running", 1000.0, 1005.0)
    assert history.worked == 35.0


def test_scheduler_that_was_stopped_and_killed_later_was_killed() -> None:
    history = history_for([*EVENTS, *AGAIN[:-1]], 2000.0, EndedScheduler(1015.0))
    assert history
    assert history.is_killed
    assert history.worked == 55.0


@pytest.mark.parametrize("event", [{"event": "ended", "at": 105.0}, {"event": "workers", "at": 1, "workers": 3}])
def test_unreadable_event_is_left_out(event: dict[str, Any]) -> None:
    whole, with_more = history_for(EVENTS, 0.0), history_for([EVENTS[0], event, *EVENTS[1:]], 0.0)
    assert whole
    assert with_more
    assert whole.spans == with_more.spans
    assert history_for([], 0.0) is None


def test_summary_has_what_was_requested_and_used() -> None:
    used: dict[str, Any] = {"used": {"cpu_seconds": "15", "max_memory": "2500000000"}}
    history = history_for([EVENTS[0], ended(110.0, "aaa", 10.0, "completed", **used), EVENTS[-1]], 0.0)
    assert history
    assert summary.operations(history) == [("train", "1", "10 s", "1 s", "1.5", "2.5GB", "mem=8GB")]
    assert summary.headline(history) == "The scheduler worked for 40 s: 1 completed."


def test_runs_that_did_not_complete_or_start_are_listed_with_the_reason() -> None:
    why = "it ran for 3s, its time limit"
    events = [
        *EVENTS[:-1],
        started(120.0, "ddd"),
        ended(123.0, "ddd", 3.0, "terminated", exit_code=-15, why=why),
        {"event": "stopped", "at": 140.0, "left": {"eee": "requests gpu=7, largest worker has gpu=1", "fff": ""}},
    ]
    history = history_for(events, 0.0)
    assert history
    (limited, failed) = [span.run for span in history.unfinished]
    assert (limited.run, limited.worker, limited.attempt, limited.ran) == ("ddd", "local", 1, 3.0)
    assert limited.ending.text == f"terminated: {why}"
    assert (failed.run, failed.ending.text) == ("bbb", "failed")
    assert [(run, summary.why_left(reason)) for run, reason in history.left.items()] == [
        ("eee", "requests gpu=7, largest worker has gpu=1"),
        ("fff", "was waiting"),
    ]
    text = page.page(history, {"ddd": "train lr=<1>"}, "title")
    assert cells_of(text, "Failed runs")[1] == [
        "ddd", "train lr=&lt;1&gt;", "3 s", f"terminated: {why}",
    ]  # fmt: skip
    assert cells_of(text, "Runs left staged")[1] == ["eee", "requests gpu=7, largest worker has gpu=1"]


def test_use_is_at_most_the_capacity_when_a_worker_is_lost() -> None:
    events = [workers(100.0, WORKER), started(100.0, "aaa"), workers(110.0), ended(120.0, "aaa", 20.0)]
    history = history_for(events, 120.0)
    assert history
    assert history.uses[0].mean_share == 0.5
    assert all(use.mean_share <= 1 for use in history.uses)


@pytest.mark.parametrize(
    ("requests", "titles"),
    [
        ({"mem": "8GB", "cpu": "4"}, ["Memory: requested against used", "CPUs: requested against used"]),
        ({"mem": "8GB"}, ["Memory: requested against used"]),
        ({"gpu": "1"}, ["CPUs and memory used"]),
    ],
)
def test_requested_amounts_are_drawn_against_used_ones(requests: dict[str, str], titles: list[str]) -> None:
    used = {"cpu_seconds": "5", "max_memory": "1GB"}
    history = history_for([workers(100.0, WORKER), ended(110.0, "aaa", 10.0, requests=requests, used=used)], 120.0)
    assert history
    drawn = charts.requested(history, {})
    assert list(drawn) == titles
    assert all(drawn.values())


@pytest.mark.parametrize(
    ("cause", "who"),
    [
        ("stopped", "it was stopped"),
        ("scheduler-stopped", "its scheduler was stopped"),
        ("", "it was stopped"),
    ],
)
def test_stopped_run_says_what_stopped_it(cause: str, who: str) -> None:
    events = [EVENTS[0], ended(110.0, "aaa", 10.0, "terminated", exit_code=-15, cause=cause), EVENTS[-1]]
    history = history_for(events, 0.0)
    assert history
    text = page.page(history, {}, "title")
    assert cells_of(text, "Other attempts that did not complete")[1][-1] == html.escape(f"terminated: {who}")
    rows = Rows("/nowhere", lambda: None)
    rows.ended(history.spans[0].run)
    assert rows.data(0)["rows"][0]["how"] == who


def test_page_is_self_contained_and_escapes_text_of_runs() -> None:
    evil = "</script><script>alert(1)</script>"
    history = history_for([*EVENTS[:-1], ended(130.0, "ddd", 1.0, operation=evil), EVENTS[-1]], 0.0)
    assert history
    text = page.page(history, {"aaa": evil, "ddd": evil}, evil)
    assert "<script>alert" not in text
    assert "alert(1)" in text, "it is shown as text"
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=", text)


def results_of_a_night() -> tuple[History, dict[str, RunFacts]]:
    """Returns a history with two completed runs and a failed one, and what their directories say."""
    history = history_for(EVENTS, 0.0)
    assert history
    return history, {
        "aaa": RunFacts("train", "baseline", {"lr": 0.1, "epochs": 20}, {"loss": 0.5, "val_acc": 0.6}),
        "ccc": RunFacts("train", "", {"lr": 0.2, "epochs": 20}, {"loss": 0.9, "val_acc": 0.8}),
        "bbb": RunFacts("train", "", {"lr": 0.3, "epochs": 20}, {}, {1: "ValueError: <lr> is too high"}),
    }


def cells_of(text: str, title: str) -> list[list[str]]:
    """Returns the cells of a table, without markup; the first row is the head."""
    table = text.split(f"<h2>{title}</h2>")[1].split("</table>", maxsplit=1)[0]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>.*?</tr>", table, re.S)]
    return [[re.sub("<[^>]+>", "", cell) for cell in row] for row in rows]


def test_page_has_failures_first_and_the_best_results_next() -> None:
    history, facts = results_of_a_night()
    text = page.page(history, {}, "night", facts)
    titles = re.findall("<h2>(.*?)</h2>", text)
    assert titles[:3] == ["Failed runs", "Completed runs", "Runs on workers"]
    assert cells_of(text, "Failed runs") == [
        ["run", "operation", "lr", "after", "end"],
        ["bbb", "train", "0.3", "20 s", "failed"],
    ]
    assert '<td class="line" colspan="5">ValueError: &lt;lr&gt; is too high</td>' in text, "the last line of its output"
    assert cells_of(text, "Completed runs") == [
        ["run", "operation", "label", "lr", "val_acc", "loss", "took"],
        ["ccc", "train", "", "0.2", "0.8", "0.9", "10 s"],
        ["aaa", "train", "baseline", "0.1", "0.6", "0.5", "10 s"],
    ]
    assert "highest val_acc first</p>" in text
    assert "epochs=20 for all</p><h2>" in text.replace("\n", "")
    assert f'background:{state_for("failed").colour}"></i>failed <b>ended with an error</b>' in text


def test_browser_shows_the_report_in_a_narrow_and_dark_window(tmp_path: pathlib.Path) -> None:
    history, facts = results_of_a_night()
    page.write(page.page(history, {}, "night", facts), str(tmp_path / "report.html"))
    with browser(1000, 900) as opened:
        dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
        size = {"width": 500, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        opened.get(f"file://{tmp_path}/report.html")
        count = "return document.querySelectorAll('.bk-Figure').length"
        wait_until(lambda: opened.execute_script(count) >= 4, describe=lambda: complaints(opened))
        assert opened.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 29)"
        assert opened.execute_script("return document.documentElement.scrollWidth") <= 500, "charts fit the window"
        fits = "return [...document.querySelectorAll('.table')].every((each) => each.scrollWidth <= each.clientWidth)"
        assert opened.execute_script(fits), "rows are stacked"
        assert not complaints(opened)


def test_charts_of_a_long_history_show_its_latest_runs() -> None:
    count = page.MOST_DRAWN + 1000
    events = [workers(0.0, WORKER)]
    for number in range(count):
        events.append(ended(number + 1.0, f"run-{number}", 1.0))
    history = history_for([*events, {"event": "stopped", "at": count + 1.0}], 0.0)
    assert history
    drawn = page.latest(history)
    assert [span.run.run for span in (drawn.spans[0], drawn.spans[-1])] == ["run-1000", f"run-{count - 1}"]
    assert drawn.uses[0].times[0] == drawn.start == 1000.0
    text = page.page(history, {}, "long")
    assert "The charts show the last 5000 runs." in text
    assert f"{count} completed" in text


def test_scheduler_leaves_a_report_that_can_be_written_again(user: Sandbox, guild: Guild) -> None:
    nap = "print('loss: 0.25')\nif __name__ == '__main__': import sys; sys.exit('no data' if 'bad' in sys.argv else 0)"
    a_project(user, "nap: {exec: 'python nap.py ${data}', flags: {data: good}}", {"nap.py": nap})
    stage(guild, "nap", "aaa", "bbb", options="--label first")
    stage(guild, "nap data=bad", "ccc")
    guild(f"run dask:scheduler workers=2 run-once=yes {NO_DASHBOARD} --run-id sss -y")
    run_dir = user.guild_home / "runs" / "sss"
    left = (run_dir / "report.html").read_text()
    assert cells_of(left, "Failed runs")[1][-1] == "failed: exit code 1"
    assert '<td class="line" colspan="5">no data</td>' in left
    assert {tuple(row[:5]) for row in cells_of(left, "Completed runs")[1:]} == {
        (run, "nap", "first", "good", "0.25") for run in ("aaa", "bbb")
    }
    assert "<h1>Dask scheduler sss</h1>" in left
    assert "Runs on workers" in left
    assert "2 completed" in left
    again = user.root / "again.html"
    assert files.write_report(str(run_dir), str(again), evaluation_command)
    assert "2 completed" in again.read_text()
    assert "report.html" in guild("ls sss").output


def test_report_of_a_killed_scheduler_has_the_ends_that_its_runs_recorded(user: Sandbox, guild: Guild) -> None:
    a_project(user, "late: {exec: 'sh late.sh ${code}', flags: {code: 0}}", {"late.sh": LATE})
    stage(guild, "late", "aaa")
    stage(guild, "late code=3", "bbb")
    stage(guild, "late code=77", "ccc")
    run_dir = str(user.guild_home / "runs" / "sss")
    with guild.started(f"run dask:scheduler workers=3 {NO_DASHBOARD} --run-id sss -y") as scheduler:
        wait_until(lambda: len(list(user.root.glob("here-*"))) == 3, describe=scheduler.so_far)
        at_work = files.history_of(run_dir)
        assert at_work
        assert (at_work.is_over, at_work.ends) == (False, {"running": 3})
        scheduler_process(user).kill()
        scheduler.wait()
    dead_at = time.time()
    (user.root / "go").touch()
    wait_until(lambda: statuses(user) == {"aaa": "completed", "bbb": "error", "ccc": "running", "sss": "terminated"})
    # A run is `error`, too, in the moment between the end of its process and the record of that.
    wait_until((user.guild_home / "runs" / "bbb" / ".guild" / "attrs" / "exit_status").exists)
    killed = files.history_of(run_dir)
    assert killed
    assert killed.stop <= dead_at
    assert killed.is_killed
    assert killed.ends == {"completed": 1, "failed": 1, "running": 1}
    (failed,) = killed.unfinished
    assert (failed.run.run, failed.run.exit_code) == ("bbb", 3)
    assert failed.run.ran > failed.stop - failed.start, "it continued when the scheduler was dead"
    (user.root / "end").touch()
    wait_until(lambda: statuses(user)["ccc"] == "error")
    # The next scheduler removes the heartbeat. The end of a run that is deleted or staged again is unknown.
    guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y")
    guild("runs rm aaa -y")
    guild("run --restart bbb --stage -y")
    later = files.history_of(run_dir)
    assert later
    assert later.stop <= dead_at
    assert later.ends == {"gone": 1, "staged-again": 1, "failed": 1}


def test_scheduler_without_runs_leaves_no_report(user: Sandbox, guild: Guild) -> None:
    guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} --run-id sss -y")
    assert not (user.guild_home / "runs" / "sss" / "report.html").exists()


def test_nothing_to_report_returns_false(tmp_path: pathlib.Path) -> None:
    assert not files.write_report(str(tmp_path), str(tmp_path / "out.html"), evaluation_command)
