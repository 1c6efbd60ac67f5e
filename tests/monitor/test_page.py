"""The page of runs: its data, its HTTP responses, and what a real browser shows."""

import contextlib
import json
import os
import pathlib
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from guild_dask.monitor.page.book import MOST_ENDED, Rows, WaitingRow
from guild_dask.monitor.page.handlers import Route
from guild_dask.monitor.page.showing import show
from guild_dask.monitor.publisher import state_path
from guild_dask.monitor.state import EndedRun, RunningRun, State, WaitingKind, WorkerState
from guild_dask.plan.reasons import NoFreeSlot
from tests.support.browser import browser, complaints
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import a_project, stage, statuses

EVIL = '<script>document.title="taken"</script><img src=x onerror=document.title="taken">'
KIND = WaitingKind(1, {}, NoFreeSlot(2))


def state(*running: str, waiting: int = 0) -> State:
    return State(
        "s" * 32,
        "here",
        1,
        0.0,
        dashboard="http://127.0.0.1:1/status",
        workers=(WorkerState("local", "here", 2, len(running), {"gpu": 2.0}, {"gpu": 1.0}),),
        running=tuple(RunningRun(run, "train", "local", "here", 5.0, 1.0, 1) for run in running),
        waiting=waiting,
        kinds=(KIND,),
    )


def in_line(*runs: str) -> list[WaitingRow]:
    return [WaitingRow(run, 1.0, int(run[4:] or ord(run[0])), 0, {}) for run in runs]


def ended(run: str, at: float = 9.0) -> EndedRun:
    return EndedRun(run, "train", "completed", 0, "local", "here", at, 1.0, 1.0, 1)


def tried_again(run: str, attempt: int, at: float) -> EndedRun:
    return replace(ended(run, at), end="tried again", exit_code=None, attempt=attempt, cause="worker-died")


def a_run(runs_dir: pathlib.Path, run: str, output: str = "", tags: str = "[]", flags: str = "{}") -> None:
    attributes = runs_dir / run / ".guild" / "attrs"
    attributes.mkdir(parents=True)
    (attributes.parent / "opref").write_text("guildfile:/x 1 '' train\n")
    (attributes / "tags").write_text(tags)
    (attributes / "flags").write_text(flags)
    (attributes.parent / "output").write_text(output)


@contextlib.contextmanager
def served(rows: Rows) -> Iterator[str]:
    link, close = show(rows, lambda _routes, _first: None, lambda: ("127.0.0.1", 0))
    try:
        yield link
    finally:
        close()


def get(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        body = answer.read()
        return json.loads(body) if answer.headers["Content-Type"].startswith("application/json") else answer


def states(data: dict[str, Any]) -> dict[str, str]:
    return {row["run"]: row["state"] for row in data["rows"]}


def test_page_is_on_the_dashboard_where_pages_can_be_added(tmp_path: pathlib.Path) -> None:
    added: list[str] = []

    def add_pages(routes: Sequence[Route], first: str) -> str:
        added.extend(route for route, _, _ in routes)
        return f"http://127.0.0.1:8787/{first}"

    def no_address() -> tuple[str, int]:
        raise AssertionError("the page needs no port of its own")

    link, close = show(Rows(str(tmp_path), lambda: None), add_pages, no_address)
    close()
    assert link == "http://127.0.0.1:8787/guild"
    assert added


# The data


def test_first_request_wakes_the_loop_and_later_ones_do_not(tmp_path: pathlib.Path) -> None:
    woken: list[int] = []
    rows = Rows(str(tmp_path), lambda: woken.append(1))
    assert not rows.is_watched
    rows.data(0)
    rows.data(0)
    assert rows.is_watched
    assert len(woken) == 1


def test_only_changed_rows_are_sent_again(tmp_path: pathlib.Path) -> None:
    rows = Rows(str(tmp_path), lambda: None)
    rows.write(state("aaa", waiting=2), in_line("bbb", "ccc"))
    whole = rows.data(0)
    assert states(whole) == {"aaa": "running", "bbb": "waiting", "ccc": "waiting"}
    after_reading = rows.data(whole["version"])["version"]
    rows.ended(ended("aaa"))
    rows.write(state("bbb", waiting=1), in_line("ccc"))
    news = rows.data(after_reading)
    assert states(news) == {"aaa": "completed", "bbb": "running"}
    assert not news["whole"]
    rows.write(state("bbb"), [])
    assert rows.data(news["version"])["gone"] == ["ccc"]


def test_page_of_an_earlier_scheduler_gets_all_rows(tmp_path: pathlib.Path) -> None:
    rows = Rows(str(tmp_path), lambda: None)
    rows.ended(ended("aaa"))
    assert rows.data(123_456)["whole"]


def test_tags_that_change_while_a_run_waits_are_read_again(tmp_path: pathlib.Path) -> None:
    a_run(tmp_path, "bbb", tags="[dask:gpu=1]")
    rows = Rows(str(tmp_path), lambda: None)
    before = in_line("bbb")
    rows.write(state(waiting=1), before)
    assert [row["tags"] for row in rows.data(0)["rows"]] == ["dask:gpu=1"]
    (tmp_path / "bbb" / ".guild" / "attrs" / "tags").write_text("[dask:gpu=1, dask-priority:5]")
    rows.write(state(waiting=1), [replace(run, key=run.key - 5) for run in before])
    rows.data(0)
    assert [row["tags"] for row in rows.data(0)["rows"]] == ["dask:gpu=1 dask-priority:5"]


def test_first_response_waits_for_the_loop_to_write(tmp_path: pathlib.Path) -> None:
    rows = Rows(str(tmp_path), lambda: threading.Timer(0.1, lambda: rows.write(state("aaa"), [])).start())
    assert states(rows.data(0)) == {"aaa": "running"}


def test_run_that_is_tried_again_is_one_row(tmp_path: pathlib.Path) -> None:
    rows = Rows(str(tmp_path), lambda: None)
    rows.ended(ended("aaa"))
    rows.write(state("aaa"), [])
    assert states(rows.data(0)) == {"aaa": "running"}


def test_row_has_the_earlier_attempts(tmp_path: pathlib.Path) -> None:
    rows = Rows(str(tmp_path), lambda: None)
    rows.ended(tried_again("aaa", 1, 6.0))
    rows.write(state(), in_line("aaa"))
    rows.ended(tried_again("aaa", 2, 8.0))
    rows.write(state("aaa"), [])
    rows.ended(ended("aaa"))
    (row,) = rows.data(0)["rows"]
    assert row["state"] == "completed"
    assert [(each["attempt"], each["at"], each["why"]) for each in row["past"]] == [
        (1, 6.0, "its worker died"),
        (2, 8.0, "its worker died"),
    ]


def test_ended_runs_do_not_fill_the_memory(tmp_path: pathlib.Path) -> None:
    rows = Rows(str(tmp_path), lambda: None)
    for number in range(MOST_ENDED + 10):
        rows.ended(ended(f"run-{number}", float(number)))
    data = rows.data(0)
    assert len(data["rows"]) == MOST_ENDED
    assert "run-9" not in states(data)


# The HTTP responses


def test_server_serves_only_this_page_and_only_get(tmp_path: pathlib.Path) -> None:
    a_run(tmp_path, "aaa", "hello\n")
    (tmp_path / "secret").write_text("secret")
    rows = Rows(str(tmp_path), lambda: None)
    rows.ended(ended("aaa"))
    with served(rows) as url:
        page = get(url)
        assert "default-src 'none'; script-src 'self'" in page.headers["Content-Security-Policy"]
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        assert get(f"{url}/output?run=aaa")["text"] == "hello\n"
        for path in (
            "output?run=bbb",
            "output?run=../secret",
            "output?run=",
            "output?run=aaa/../../secret",
            "guild.py",
            "x",
        ):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(f"{url}/{path}")
        with pytest.raises(urllib.error.HTTPError, match="400"):
            get(f"{url}/data?since=x")
        for method in ("POST", "PUT", "DELETE"):
            with pytest.raises(urllib.error.HTTPError, match="405"):
                urllib.request.urlopen(urllib.request.Request(f"{url}/data", method=method))


def test_output_comes_in_pieces_of_whole_characters(tmp_path: pathlib.Path) -> None:
    text = "ä" * 150_001 + "end\n"
    a_run(tmp_path, "aaa", text)
    rows = Rows(str(tmp_path), lambda: None)
    rows.ended(ended("aaa"))
    with served(rows) as url:
        seen, place = "", 0
        while len(seen) < len(text):
            piece = get(f"{url}/output?run=aaa&from={place}")
            seen, place = seen + piece["text"], piece["next"]
        assert seen == text
        assert get(f"{url}/output?run=aaa&from=-1")["text"].endswith("end\n"), "without an offset, the end of it"


# In a browser


def texts(opened: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)"
    found: list[str] = opened.execute_script(script, selector)
    return found


def test_browser_shows_runs_of_a_scheduler_as_they_change(user: Sandbox, guild: Guild) -> None:
    go = user.root / "go"
    say = f"""
import os, time
print({EVIL!r}, flush=True)
while not os.path.exists({str(go)!r}):
    time.sleep(0.1)
print("went on")
"""
    a_project(user, "talk: {exec: 'python -u talk.py', flags: {text: ''}}", {"talk.py": say})
    guild(f"""run talk 'text={EVIL}' --tag '{EVIL}' --tag dask:gpu=1 --run-id aaa --stage -y""")
    stage(guild, "talk", "bbb", options="--tag dask:gpu=1")
    stage(guild, "talk", "ccc", options="--tag dask:gpu=7")
    command = "run dask:scheduler resources=gpu=1 workers=2 dashboard-address=0 poll-interval=1 --run-id sss -y"
    with browser() as opened, guild.started(command):
        wait_until(lambda: statuses(user)["aaa"] == "running")
        link = json.loads(state_path(str(user.guild_home), "sss").read_text())["page"]
        assert link.startswith("http://127.0.0.1:"), "it is local unless the user changes dashboard-address"
        opened.get(link.replace("/guild", "/status"))
        opened.find_element("link text", "Guild").click()
        wait_until(lambda: len(texts(opened, "#rows .row")) == 3, describe=lambda: texts(opened, "#rows .row"))
        wait_until(lambda: EVIL in "".join(texts(opened, "#rows .row")), describe=lambda: texts(opened, "#rows .row"))
        rows = texts(opened, "#rows .row")
        assert rows[0].startswith("runningaaatalk")
        assert rows[0].count(EVIL) == 2, "as text, in a flag and in a tag"
        assert "1. waits for gpu=1, 0 free" in rows[1]
        assert rows[2].startswith("impossible")
        assert "asks gpu=7, largest worker has gpu=1" in rows[2]
        assert texts(opened, ".worker b") == ["local"]
        opened.find_element("css selector", "#rows .row").click()
        wait_until(lambda: texts(opened, "#text") == [f"{EVIL}\n"], describe=lambda: texts(opened, "#text"))
        go.touch()
        wait_until(lambda: "went on" in texts(opened, "#text")[0], describe=lambda: texts(opened, "#text"))
        wait_until(
            lambda: "completed2" in "".join(texts(opened, "#tabs button")).replace(" ", ""),
            describe=lambda: texts(opened, "#tabs"),
        )
        assert opened.title == "Guild runs", "no text of a run was interpreted as markup"
        assert not opened.execute_script("return document.querySelectorAll('#rows script, #rows img, #text *').length")
        assert not [each for each in complaints(opened) if "/guild" in each and "favicon" not in each]
        _keep(opened, "page.png")


def _keep(opened: Any, name: str) -> None:
    """Saves a screenshot to the folder in the variable PICTURES, if it is set."""
    if os.environ.get("PICTURES"):
        opened.save_screenshot(os.path.join(os.environ["PICTURES"], name))


def some_rows(runs_dir: pathlib.Path, count: int) -> Rows:
    rows = Rows(str(runs_dir), lambda: None)
    rows.write(state("running", waiting=count), in_line(*(f"run-{number:05}" for number in range(count))))
    return rows


def redraw_seconds(opened: Any, url: str, count: int) -> float:
    """Returns the shortest time of a redraw with that many waiting runs and one running one."""
    opened.get(url)
    wait_until(
        lambda: str(count + 1) in "".join(texts(opened, "#tabs button")),
        describe=lambda: texts(opened, "#tabs button"),
    )
    script = "const t = performance.now(); show(); return (performance.now() - t) / 1000"
    return min(float(opened.execute_script(script)) for _ in range(5))


def test_browser_stays_quick_with_thousands_of_runs(tmp_path: pathlib.Path) -> None:
    with browser() as opened, served(some_rows(tmp_path, 500)) as few, served(some_rows(tmp_path, 5000)) as many:
        of_few, of_many = (redraw_seconds(opened, url, count) for url, count in ((few, 500), (many, 5000)))
        assert len(texts(opened, "#rows .row")) < 60, "only visible rows are in the document"
        opened.execute_script("document.getElementById('table').scrollTop = 1e9")
        wait_until(
            lambda: "run-04999"[:8] in texts(opened, "#rows .row")[-1], describe=lambda: texts(opened, "#rows .row")
        )
        print(f"a redraw of 5,000 runs takes {of_many:.3f} s")  # noqa: T201  # the figure in docs/views.md
        assert of_many < 40 * of_few, "the time is about linear in the number of runs"
        opened.find_element("id", "search").send_keys("run-04321")
        wait_until(lambda: len(texts(opened, "#rows .row")) == 1, describe=lambda: texts(opened, "#rows .row"))
        assert f"4322. {NoFreeSlot(2)}" in texts(opened, "#rows .row")[0]


def test_browser_shows_output_as_a_terminal_does(tmp_path: pathlib.Path) -> None:
    # Colours, and a progress bar that redraws itself with \r.
    a_run(tmp_path, "aaa", output="\x1b[1;31mred\x1b[0m <b>\r\n\x1b[2K 10%\r 50%\r100%\nepoch 2:  5%\repoch 2: 10%")
    rows = Rows(str(tmp_path), lambda: None)
    rows.ended(ended("aaa"))
    with served(rows) as url, browser() as opened:
        opened.get(f"{url}#aaa")
        expected = ["red <b>\n100%\nepoch 2: 10%"]
        wait_until(lambda: texts(opened, "#text") == expected, describe=lambda: texts(opened, "#text"))
        with open(tmp_path / "aaa" / ".guild" / "output", "a") as f:
            f.write("\repoch 2: 15%\ndone\n")
        expected = ["red <b>\n100%\nepoch 2: 15%\ndone\n"]
        wait_until(lambda: texts(opened, "#text") == expected, describe=lambda: texts(opened, "#text"))


def test_browser_shows_all_attempts_in_the_timeline(tmp_path: pathlib.Path) -> None:
    rows = Rows(str(tmp_path), lambda: None)
    now = float(int(time.time()))
    for attempt in (1, 2):
        rows.ended(tried_again("aaa", attempt, now - 9 + 3 * attempt))
    rows.ended(ended("aaa", now))
    rows.ended(tried_again("bbb", 1, now))
    with served(rows) as url, browser() as opened:
        opened.get(url)
        script = "return drawn.map((bar) => [bar.row.run, bar.stop, bar.kind, bar.hint])"
        expected = [
            ["aaa", now - 6, "past", "attempt 1: 1 s (its worker died)"],
            ["aaa", now - 3, "past", "attempt 2: 1 s (its worker died)"],
            ["aaa", now, "completed", "completed 1 s"],
            ["bbb", now, "past", "attempt 1: 1 s (its worker died)"],
        ]
        wait_until(
            lambda: sorted(opened.execute_script(script)) == expected, describe=lambda: opened.execute_script(script)
        )


def test_browser_shows_that_the_scheduler_is_gone(tmp_path: pathlib.Path) -> None:
    with browser() as opened:
        with served(Rows(str(tmp_path), lambda: None)) as url:
            opened.get(url)
            wait_until(lambda: "waiting for the scheduler" in texts(opened, "#summary")[0])
        wait_until(lambda: "No response from the scheduler" in texts(opened, "#trouble")[0])
