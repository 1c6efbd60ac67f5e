"""The page of runs: its data, its HTTP responses, and what a real browser shows."""

import contextlib
import json
import math
import os
import pathlib
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from guild.summary import SummaryWriter

from guild_dask.home import attempts, layout
from guild_dask.home.outcome import Cause
from guild_dask.monitor.flag_columns import columns_for
from guild_dask.monitor.page.handlers import Route
from guild_dask.monitor.page.rows import MOST_ENDED, Rows, WaitingRow
from guild_dask.monitor.page.search_cells import SearchCells
from guild_dask.monitor.page.server import show
from guild_dask.monitor.run_states import STATES
from guild_dask.monitor.state import EndedRun, RunningRun, State, WaitingKind, WorkerState
from guild_dask.plan.reasons import NoFreeSlot
from guild_dask.scheduler.search.evaluation import evaluation_command
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
    return replace(ended(run, at), end="retried", exit_code=None, attempt=attempt, cause="worker-died")


def a_run(runs_dir: pathlib.Path, run: str, output: str = "", **attributes: str) -> None:
    folder = runs_dir / run / ".guild"
    (folder / "attrs").mkdir(parents=True)
    (folder / "opref").write_text("guildfile:/x 1 '' train\n")
    (folder / "output").write_text(output)
    for name, text in {"tags": "[]", "flags": "{}", **attributes}.items():
        (folder / "attrs" / name).write_text(text)


def searches_of(rows: Rows) -> SearchCells:
    return SearchCells(rows.home, evaluation_command)


@contextlib.contextmanager
def served(rows: Rows) -> Iterator[str]:
    link, close = show(rows, searches_of(rows), lambda _routes, _first: None, lambda: ("127.0.0.1", 0))
    try:
        yield link
    finally:
        close()


def get(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        body = answer.read()
        return json.loads(body) if answer.headers["Content-Type"].startswith("application/json") else answer


def refusal(url: str, method: str = "GET") -> int | None:
    """Returns the status with which the server refuses a request, or None if it answers."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method)):
            return None
    except urllib.error.HTTPError as e:
        with e:  # it holds the connection
            return e.code


def states(data: dict[str, Any]) -> dict[str, str]:
    return {row["run"]: row["state"] for row in data["rows"]}


def test_page_is_on_the_dashboard_where_pages_can_be_added(tmp_path: pathlib.Path) -> None:
    added: list[str] = []

    def add_pages(routes: Sequence[Route], first: str) -> str:
        added.extend(route for route, _, _ in routes)
        return f"http://127.0.0.1:8787/{first}"

    def no_address() -> tuple[str, int]:
        raise AssertionError("the page needs no port of its own")

    rows = Rows(str(tmp_path), lambda: None)
    link, close = show(rows, searches_of(rows), add_pages, no_address)
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
    assert [(each["attempt"], each["at"], each["how"]) for each in row["past"]] == [
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


def test_row_has_flags_the_users_label_and_how_the_run_ended(tmp_path: pathlib.Path) -> None:
    a_run(
        tmp_path, "aaa", flags="{lr: 0.1, fast: yes}", label="dask:gpu=1 baseline fast=yes lr=0.1", tags="[dask:gpu=1]"
    )
    rows = Rows(str(tmp_path), lambda: None)
    rows.ended(replace(ended("aaa"), end="failed", exit_code=3))
    (row,) = rows.data(0)["rows"]
    assert (row["flags"], row["label"], row["tags"]) == ({"fast": "yes", "lr": "0.1"}, "baseline", "dask:gpu=1")
    assert row["how"] == "exit code 3"
    assert "why" not in row, "why it waits holds no exit code"


def test_state_says_what_ends_next(tmp_path: pathlib.Path) -> None:
    rows = Rows(str(tmp_path), lambda: None)
    start = time.time()
    now = replace(state("aaa", "bbb"), durations={"train": 1000.0}, expected={"bbb": 500.0})
    rows.write(replace(now, running=tuple(replace(run, since=start) for run in now.running)), [])
    found = rows.data(0)
    assert [each["run"] for each in found["state"]["next"]] == ["bbb", "aaa"]
    assert not found["state"]["is_least"]
    assert {each["name"] for each in found["states"]} > {"running", "impossible", "failed", "gone"}


def test_state_has_how_many_runs_are_retrying(tmp_path: pathlib.Path) -> None:
    rows = Rows(str(tmp_path), lambda: None)
    rows.write(replace(state(), retrying={"aaa": 9.0, "bbb": 99.0}), [])
    assert rows.data(0)["state"]["retrying"] == 2


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
            assert refusal(f"{url}/{path}") == 404
        assert refusal(f"{url}/data?since=x") == 400
        for method in ("POST", "PUT", "DELETE"):
            assert refusal(f"{url}/data", method) == 405


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


def write_scalars(folder: pathlib.Path, **values: Sequence[float]) -> None:
    with SummaryWriter(str(folder)) as writer:
        for name, points in values.items():
            for step, value in enumerate(points):
                writer.add_scalar(name, value, step)


def test_scalars_of_runs_on_the_page_are_served(tmp_path: pathlib.Path) -> None:
    a_run(tmp_path, "aaa")
    a_run(tmp_path, "other")
    write_scalars(tmp_path / "aaa" / ".guild", loss=[0.5, 0.25], acc=[math.nan])
    write_scalars(tmp_path / "other" / ".guild", loss=[0.1])
    rows = Rows(str(tmp_path), lambda: None)
    rows.ended(ended("aaa"))
    with served(rows) as url:
        found = get(f"{url}/scalars?runs=aaa,other,..%2Faaa,&curve=loss")
        assert list(found["runs"]) == ["aaa"], "a run that is not on the page is not read"
        assert found["runs"]["aaa"]["values"] == {"loss": 0.25, "acc": None}
        assert found["runs"]["aaa"]["curve"] == [0.5, 0.25]
        assert found["names"] == [{"name": "loss", "high": False}, {"name": "acc", "high": True}]
        assert found["partial"] == []


def test_output_of_earlier_attempts_is_served(tmp_path: pathlib.Path) -> None:
    a_run(tmp_path, "aaa", "first try\n")
    attempts.add(str(tmp_path / "aaa"), attempts.attempt_for(1, Cause.WORKER_DIED, None, "here"))
    (tmp_path / "aaa" / ".guild" / "output").write_text("second try\n")
    rows = Rows(str(tmp_path), lambda: None)
    rows.ended(ended("aaa"))
    with served(rows) as url:
        last = get(f"{url}/output?run=aaa")
        assert last["text"] == "second try\n"
        assert [(each["number"], each["how"]) for each in last["attempts"]] == [(1, "its worker died")]
        assert get(f"{url}/output?run=aaa&attempt=1")["text"] == "first try\n"
        assert get(f"{url}/output?run=aaa&attempt=7")["text"] == ""
        assert refusal(f"{url}/output?run=aaa&attempt=x") == 400


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
        link = json.loads(layout.scheduler_state(str(user.guild_home), "sss").read_text())["page"]
        assert link.startswith("http://127.0.0.1:"), "it is local unless the user changes dashboard-address"
        opened.get(link.replace("/guild?", "/status?"))  # Dask's own page, with the token
        opened.find_element("link text", "Guild").click()
        wait_until(lambda: len(texts(opened, "#rows .row")) == 3, describe=lambda: texts(opened, "#rows .row"))
        wait_until(lambda: EVIL in "".join(texts(opened, "#rows .row")), describe=lambda: texts(opened, "#rows .row"))
        rows = texts(opened, "#rows .row")
        assert rows[0].startswith("runningaaatalk")
        assert rows[0].count(EVIL) == 2, "as text, in a flag and in a tag"
        assert "1. waits for gpu=1, 0 free" in rows[1]
        assert rows[2].startswith("impossible")
        assert "requests gpu=7, largest worker has gpu=1" in rows[2]
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
            ["aaa", now - 6, "retried", "attempt 1: 1 s (its worker died)"],
            ["aaa", now - 3, "retried", "attempt 2: 1 s (its worker died)"],
            ["aaa", now, "completed", "completed 1 s"],
            ["bbb", now, "retried", "attempt 1: 1 s (its worker died)"],
        ]
        wait_until(
            lambda: sorted(opened.execute_script(script)) == expected, describe=lambda: opened.execute_script(script)
        )


def some_results(runs_dir: pathlib.Path) -> Rows:
    rows = Rows(str(runs_dir), lambda: None)
    now = time.time()
    for number, (lr, loss) in enumerate(((0.1, 0.5), (0.2, 0.3), (0.3, 0.4))):
        run = f"run-{number}"
        flags = f"{{lr: {lr}, epochs: 20, dropout: 0.1}}"
        a_run(runs_dir, run, f"output of {run}\n", flags=flags, label="baseline" if number == 1 else "")
        write_scalars(runs_dir / run / ".guild", loss=[0.9, loss], acc=[0.1, 1 - loss], lr=[lr])
        rows.ended(ended(run, now - 90_000 * (2 - number)))
    a_run(runs_dir, "run-3", flags="{lr: 0.4, epochs: 20, dropout: 0.1}")
    rows.write(replace(state("run-3"), started=now), [])
    return rows


def head(opened: Any) -> list[str]:
    return [text.strip(" ▲▼") for text in texts(opened, "#head > span")]


def shown_runs(opened: Any) -> list[str]:
    found: list[str] = opened.execute_script(
        "return [...document.querySelectorAll('#rows .row')].map((each) => each.dataset.run)"
    )
    return found


def wait_for(opened: Any, expected: Any, seen: Callable[[Any], Any]) -> None:
    wait_until(lambda: seen(opened) == expected, describe=lambda: (seen(opened), complaints(opened)))


def press(opened: Any, *keys: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(opened).send_keys(*keys).perform()


def test_browser_shows_results_and_what_tells_runs_apart(tmp_path: pathlib.Path) -> None:
    with served(some_results(tmp_path)) as url, browser(1400, 1000) as opened:
        opened.get(url)
        usual = ["state", "run", "operation", "label", "lr", "loss", "acc", "loss curve", "time"]
        wait_for(opened, usual, head)
        assert texts(opened, "#common") == ["dropout=0.1 epochs=20 for all"]
        assert shown_runs(opened) == ["run-3", "run-2", "run-1", "run-0"]
        assert len(texts(opened, "#rows svg.curve")) == 3
        # The best first, then reversed; runs without a value are the last.
        opened.find_element("css selector", "#head [data-column='s:loss']").click()
        wait_for(opened, ["run-1", "run-2", "run-0", "run-3"], shown_runs)
        opened.find_element("css selector", "#head [data-column='s:loss']").click()
        wait_for(opened, ["run-0", "run-2", "run-1", "run-3"], shown_runs)
        opened.find_element("css selector", "#head [data-column='s:acc']").click()
        wait_for(opened, ["run-1", "run-2", "run-0", "run-3"], shown_runs)
        # Columns that the user chooses are kept in the address.
        opened.find_element("css selector", "#columns summary").click()
        for name in ("s:lr", "f:epochs", "curve"):
            opened.find_element("css selector", f"#columns [name='{name}']").click()
        chosen = ["state", "run", "operation", "label", "lr", "epochs", "loss", "acc", "lr", "time"]
        wait_for(opened, chosen, head)
        opened.refresh()
        wait_for(opened, (chosen, ["run-1", "run-2", "run-0", "run-3"]), lambda each: (head(each), shown_runs(each)))
        # Labels are searched, and a search without a result says so.
        search = opened.find_element("id", "search")
        search.send_keys("BASELINE")
        wait_for(opened, ["run-1"], shown_runs)
        assert texts(opened, "#common") == [""], "a single run has nothing in common with others"
        search.send_keys("x")
        wait_for(opened, ["No run matches “BASELINEx”. show all runs"], lambda each: texts(each, "#empty"))
        opened.find_element("css selector", "#empty button").click()
        wait_for(opened, 4, lambda each: len(shown_runs(each)))
        for runs in some_flags():
            rows = [{"operation": operation, "flags": flags} for operation, flags in runs]
            script = "const f = flagColumns(arguments[0]); return [f.names, f.shared, commonText(f)]"
            expected = columns_for(runs)
            wanted = [list(expected.names), list(expected.shared_names), expected.common_text]
            assert opened.execute_script(script, rows) == wanted, "the rule of monitor/flag_columns.py"
        assert not complaints(opened)


def some_flags() -> list[list[tuple[str, dict[str, str]]]]:
    """Returns operations and flags of runs: a sweep, with a script that has the same flags, and other operations."""
    sweep = [("train", {"lr": lr, "seed": seed, "epochs": "20"}) for lr in ("0.1", "0.2") for seed in ("1", "2", "3")]
    script = ("train.py", {"lr": "0.3", "epochs": "20"})
    others = [("load", {"n": "9", "epochs": "3"}), ("load", {"n": "9"}), ("test", {"data": "dev"})]
    return [sweep, [*sweep, script], [*sweep, script, *others], others, [script], []]


def test_browser_is_used_with_the_keyboard_and_in_a_narrow_window(tmp_path: pathlib.Path) -> None:
    rows = some_results(tmp_path)
    attempts.add(str(tmp_path / "run-2"), attempts.attempt_for(1, Cause.WORKER_DIED, None, "here"))
    (tmp_path / "run-2" / ".guild" / "output").write_text("second try\n")
    with served(rows) as url, browser(1400, 1000) as opened:
        opened.get(url)
        wait_for(opened, 4, lambda each: len(shown_runs(each)))
        opened.execute_script("document.getElementById('table').focus()")
        press(opened, "\ue015", "\ue015", "\ue007")  # down, down, Enter
        wait_for(opened, ["second try\n"], lambda each: texts(each, "#text"))
        assert "run=run-2" in opened.current_url
        wait_for(opened, ["last attempt", "attempt 1: its worker died"], lambda each: texts(each, "#attempt option"))
        opened.find_element("css selector", "#attempt option:last-child").click()
        wait_for(opened, ["output of run-2\n"], lambda each: texts(each, "#text"))
        press(opened, "\ue00c")  # Esc
        assert not opened.find_element("id", "output").is_displayed()
        assert "run=" not in opened.current_url
        # The use of slots counts from the start of the scheduler, which is later than the first time that is shown.
        use = "state.started = rows.get('run-3').since = now() - 100; showUse(); return $('use').innerText"
        assert re.search(r"5[01] % on average", opened.execute_script(use)), opened.execute_script(use)
        # Over several days, the clock has dates.
        opened.execute_script("document.getElementById('span').value = '0'; showTimeline()")
        days = "Date.UTC(2026, 10, 17, 9) / 1000, Date.UTC(2026, 10, 18, 21) / 1000"
        ticks = f"return ticksFor({days}, 12).map((each) => each.text)"
        assert any("Nov 18" in text for text in opened.execute_script(ticks)), opened.execute_script(ticks)
        assert len(opened.execute_script(ticks)) <= 13
        assert texts(opened, "#legend dt") == [each.text for each in STATES.values()]
        # Each run takes two lines, and nothing is cut off at the right.
        size = {"width": 500, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wait_until(
            lambda: any("lr=0.2" in text for text in texts(opened, "#rows .second")[2:3]),
            describe=lambda: texts(opened, "#rows .row"),
        )
        assert opened.execute_script("return document.documentElement.scrollWidth") <= 500
        assert (
            opened.execute_script("const t = document.getElementById('table'); return t.scrollWidth - t.clientWidth")
            <= 0
        )
        assert any(text.startswith("completedrun-1loss 0.3") for text in texts(opened, "#rows .row"))
        _keep(opened, "narrow.png")
        assert not complaints(opened)


def test_browser_shows_that_the_scheduler_is_gone(tmp_path: pathlib.Path) -> None:
    with browser() as opened:
        with served(Rows(str(tmp_path), lambda: None)) as url:
            opened.get(url)
            wait_until(lambda: "waiting for the scheduler" in texts(opened, "#summary")[0])
        wait_until(lambda: "No response from the scheduler" in texts(opened, "#trouble")[0])
