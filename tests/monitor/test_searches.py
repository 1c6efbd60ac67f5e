"""Searches for observers: what is published, what the charts draw, and what a real browser shows."""

import contextlib
import json
import math
import os
import pathlib
import re
from typing import Any

import pytest

from guild_dask.home import layout, trials
from guild_dask.home.search_journal import SearchJournal
from guild_dask.home.trials import Trial, TrialState
from guild_dask.monitor import importances, search_results, searches
from guild_dask.monitor.page.rows import Rows
from guild_dask.monitor.page.search_cells import SearchCells
from guild_dask.monitor.report import page
from guild_dask.monitor.report.history import history_for
from guild_dask.monitor.report.searches import reported_searches
from guild_dask.monitor.searches import SearchPublisher
from guild_dask.plan.objectives import Objective
from guild_dask.plan.search_ends import TrialsUsed, UnknownEnd
from guild_dask.scheduler.search.evaluation import evaluation_command
from tests.monitor.test_page import EVIL, get, served
from tests.monitor.test_report import WORKER, ended, workers
from tests.support.browser import browser, complaints
from tests.support.sandbox import wait_until
from tests.support.searches import BATCH, SPACE, START, GivenTrial, a_search, some_trials, trial_id

LOSS = Objective("loss")
ACCURACY = Objective("accuracy", is_maximized=True)


def trial(number: int, *values: float, state: TrialState = TrialState.COMPLETED, point: Any = None) -> Trial:
    given = values or None
    return Trial(
        str(number), number, point or {}, 0.0, state, given, ({1: 1.0, 2: 0.5},), (), number * 10.0, number * 10.0 + 8
    )


def test_best_trials_come_first_and_those_without_a_value_never() -> None:
    found = [trial(1, 3.0), trial(2, 1.0), trial(3, 0.1, state=TrialState.PRUNED), trial(4, math.nan), trial(5)]
    assert [each.number for each in search_results.best(found, [LOSS])] == [2, 1]


def test_pareto_set_is_what_no_other_trial_dominates() -> None:
    found = [trial(1, 1.0, 0.5), trial(2, 2.0, 0.9), trial(3, 2.0, 0.8), trial(4, 0.5, 0.1), trial(5, 3.0, 0.9)]
    assert [each.number for each in search_results.best(found, [LOSS, ACCURACY])] == [4, 1, 2]


def test_time_left_is_shared_by_the_trials_in_flight() -> None:
    # Trials take 8 s; two run, one of them for 4 s, and six more are to come.
    running = [Trial(name, 9, {}, 0.0, TrialState.RUNNING, started=at) for name, at in (("a", 96.0), ("b", 100.0))]
    found = [trial(1, 1.0), trial(2, 1.0), *running]
    assert search_results.seconds_left(found, 10, now=100.0) == (4 + 8 + 6 * 8) / 2
    assert search_results.seconds_left(found, 10, now=100.0, ends_at=103.0) == 3 + 8
    assert search_results.seconds_left(running, 10, now=100.0) is None


def test_axes_are_logarithmic_or_of_choices_as_the_user_typed() -> None:
    points = [{"lr": 1e-4, "act": "relu"}, {"lr": 1e-2, "act": "tanh"}, {"lr": 1e-3, "act": "relu"}]
    found = [trial(number, float(number), point=point) for number, point in enumerate(points, 1)]
    drawing = search_results.drawing_for(found, [LOSS], {"lr": "loguniform[1e-5:1]", "act": ["tanh", "relu"]})
    assert [axis.name for axis in drawing.axes] == ["lr", "act", "loss"]
    assert [each.places for each in drawing.trials] == [(0.0, 1.0, 0.0), (1.0, 0.0, 0.5), (0.5, 1.0, 1.0)]
    assert drawing.axes[1].marks == ((0.0, "tanh"), (1.0, "relu"))


def test_best_so_far_has_a_step_for_each_improvement() -> None:
    found = [trial(1, 0.5), trial(2, 0.7), trial(3, 0.6), trial(4, 0.9, state=TrialState.PRUNED)]
    high = search_results.drawing_for(found, [ACCURACY], {})
    assert [value for _, value in high.best_so_far] == [0.5, 0.7]
    assert [each.run for each in high.trials if each.is_best] == ["2"]


def test_large_search_is_drawn_by_its_best_and_latest_trials() -> None:
    found = [trial(number, 0.1 if number == 5 else 1.0) for number in range(1, 1001)]
    drawing = search_results.drawing_for(found, [LOSS], {})
    numbers = [each.number for each in drawing.trials]
    assert len(numbers) == search_results.MOST_DRAWN
    assert {5, 1000} < set(numbers)
    assert drawing.left_out == 1000 - len(numbers)


def test_curve_is_thinned_and_keeps_its_end() -> None:
    long = Trial("a", 1, {}, 0.0, TrialState.RUNNING, (1.0,), ({step: float(step) for step in range(1000)},))
    curve = search_results.drawing_for([long], [LOSS], {}).trials[0].curve
    assert len(curve) <= 64
    assert curve[-1] == (999, 999.0)


def test_search_is_published_with_counts_and_its_best_trials(tmp_path: pathlib.Path) -> None:
    a_search(tmp_path, some_trials(), SPACE)
    [found] = searches.shown(str(tmp_path), START)
    assert found.summary.counts == {
        "completed": 9, "pruned": 3, "failed": 0, "stopped": 0, "running": 0, "waiting": 0,
    }  # fmt: skip
    assert found.summary.best[0].run == trial_id(9)
    assert "act=relu" in found.summary.best[0].flags
    assert found.summary.ended == TrialsUsed(12)
    assert not found.is_at_work


@pytest.mark.parametrize(
    ("ended", "shown"),
    [
        ("it has had its trials", UnknownEnd("it has had its trials")),
        ({"kind": "Tired", "since": 3}, UnknownEnd("Tired (since=3)")),
        ("", None),  # it goes on
    ],
)
def test_end_that_another_version_has_recorded_is_shown_as_it_is(
    tmp_path: pathlib.Path, ended: Any, shown: UnknownEnd | None
) -> None:
    a_search(tmp_path, some_trials(2), SPACE, is_over=False)
    file = layout.searches_folder(str(tmp_path)) / f"{BATCH}.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "ended": ended}))
    [found] = searches.shown(str(tmp_path), START)
    assert found.summary.ended == shown
    with contextlib.closing(SearchCells(str(tmp_path), evaluation_command)) as cells:
        assert cells.data("", "")["searches"][0]["ended"] == str(shown or "")
    if shown:
        SearchJournal(layout.run_dir(str(tmp_path), BATCH)).add("ended", why=ended)
        assert trials.search(str(tmp_path), BATCH).log.ended == shown


def test_size_of_what_is_published_does_not_depend_on_the_number_of_trials(tmp_path: pathlib.Path) -> None:
    a_search(tmp_path / "one", some_trials(12), SPACE)
    a_search(tmp_path / "other", some_trials(30), SPACE)
    sizes = [
        (layout.searches_folder(str(tmp_path / name)) / f"{BATCH}.json").stat().st_size for name in ("one", "other")
    ]
    assert sizes[1] < sizes[0] * 1.5


def test_deleted_search_and_unreadable_file_are_left_out(tmp_path: pathlib.Path) -> None:
    a_search(tmp_path, some_trials(2), SPACE)
    folder = layout.searches_folder(str(tmp_path))
    (folder / f"{'c' * 32}.json").write_text((folder / f"{BATCH}.json").read_text())
    assert [each.summary.batch for each in searches.shown(str(tmp_path), START)] == [BATCH]
    (folder / f"{BATCH}.json").write_text("{")
    assert searches.shown(str(tmp_path), START) == []


def test_search_is_at_work_while_its_process_lives(tmp_path: pathlib.Path) -> None:
    a_search(tmp_path, some_trials(2), SPACE, is_over=False)
    run = tmp_path / "runs" / BATCH / ".guild"
    (run / "attrs" / "host").write_text(os.uname().nodename)
    assert [each.is_cut_short for each in searches.shown(str(tmp_path), START)] == [True]
    # It was restarted: Guild keeps the exit status of before, and shows it as completed.
    (run / "LOCK").write_text(str(os.getpid()))
    [found] = searches.shown(str(tmp_path), START)
    assert found.is_at_work
    assert not found.is_cut_short
    # Another host's process cannot be seen; what it publishes can.
    (run / "attrs" / "host").write_text("elsewhere")
    assert searches.shown(str(tmp_path), found.summary.at + 60)[0].is_at_work
    assert not searches.shown(str(tmp_path), found.summary.at + 600)[0].is_at_work


# The page


def test_charts_are_sent_once_and_again_when_they_change(tmp_path: pathlib.Path) -> None:
    a_search(tmp_path, some_trials(5), SPACE)
    with contextlib.closing(SearchCells(str(tmp_path), evaluation_command)) as cells:
        _check_sent_once(cells)


def _check_sent_once(cells: SearchCells) -> None:
    first = cells.data("", "")
    assert first["search"]["batch"] == BATCH
    assert len(first["search"]["drawing"]["trials"]) == 5
    assert cells.data(BATCH, first["search"]["stamp"])["search"]["same"]
    assert "drawing" in cells.data(BATCH, "another")["search"]


def test_charts_are_those_of_the_objectives_that_a_restart_names(tmp_path: pathlib.Path) -> None:
    given = [each._replace(scalars={"size": 7.0 + number}) for number, each in enumerate(some_trials())]
    a_search(tmp_path, given, SPACE)
    with contextlib.closing(SearchCells(str(tmp_path), evaluation_command)) as cells:

        def shown() -> Any:
            return cells.data(BATCH, "")["search"]

        wait_until(lambda: shown()["importances"]["shares"], describe=shown)
        assert shown()["drawing"]["trials"][0]["values"] != (7.0,)
        (tmp_path / "runs" / BATCH / ".guild" / "attrs" / "objective").write_text("size")
        journal = SearchJournal(layout.run_dir(str(tmp_path), BATCH))
        journal.add("started", host="here", pid=1, objectives="size")
        SearchPublisher(str(tmp_path), BATCH).publish([], journal.log)
        again = shown()
        assert again["drawing"]["trials"][0]["values"] == (7.0,)
        assert again["importances"]["why"] == "being evaluated"
        wait_until(lambda: shown()["importances"]["shares"], describe=shown)


def test_page_without_a_search_has_none(tmp_path: pathlib.Path) -> None:
    rows = Rows(str(tmp_path / "runs"), lambda: None)
    with served(rows) as link:
        assert get(f"{link}/search") == {"searches": [], "search": None}


def evaluated(home: str, batch: str) -> importances.Importances:
    return importances.PendingImportances(evaluation_command(home, batch)).result(120)


def test_importances_are_evaluated_in_a_process_of_its_own(tmp_path: pathlib.Path) -> None:
    a_search(tmp_path, some_trials(24), SPACE)
    found = evaluated(str(tmp_path), BATCH)
    assert next(iter(found.shares)) == "lr", found
    assert math.isclose(sum(found.shares.values()), 1.0, abs_tol=1e-6)


def test_without_optuna_there_are_no_importances_but_a_word(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "optuna.py").write_text("raise ImportError('there is none')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    a_search(tmp_path, some_trials(1), SPACE)
    assert "Optuna is not installed (there is none); install it" in evaluated(str(tmp_path), BATCH).why


def test_evaluation_that_is_not_json_is_reported(tmp_path: pathlib.Path) -> None:
    # No such batch: the process says why.
    assert evaluated(str(tmp_path), "none").why
    assert importances.importances_for_output(b"Traceback").why == "the evaluation failed"


def test_browser_shows_a_search_in_wide_narrow_and_dark_windows(tmp_path: pathlib.Path) -> None:
    named = [GivenTrial({**each.point, EVIL: EVIL}, each.losses, each.end) for each in some_trials(10)]
    a_search(tmp_path, named, {**SPACE, EVIL: [EVIL, "b"]})
    rows = Rows(str(tmp_path / "runs"), lambda: None)
    with served(rows) as link, browser() as opened:
        opened.get(link)
        wait_until(lambda: opened.execute_script("return Boolean(search) && drawnTrials.get('curves').length === 10"))
        assert opened.execute_script("return drawnTrials.get('parallel').length") == 10
        assert "8 completed, 2 pruned of 50 trials" in opened.find_element("id", "found").text
        assert EVIL in opened.find_element("id", "best").text
        assert opened.title == "Guild runs"
        dark = {"name": "prefers-color-scheme", "value": "dark"}
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [dark]})
        narrow = {"width": 500, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", narrow)
        wait_until(lambda: opened.execute_script("return $('parallel').querySelector('canvas').clientWidth < 500"))
        assert opened.execute_script("return document.documentElement.scrollWidth") <= 500
        assert complaints(opened) == []


def test_page_data_has_no_infinite_numbers(tmp_path: pathlib.Path) -> None:
    a_search(tmp_path, [GivenTrial({"lr": 0.1}, [math.inf]), GivenTrial({"lr": 0.2}, [math.nan])], {"lr": "[0.1:0.5]"})
    with contextlib.closing(SearchCells(str(tmp_path), evaluation_command)) as cells:
        data = cells.data("", "")
    json.dumps(data, allow_nan=False)


# The report


def test_report_has_the_search_of_its_runs_and_escapes_text(tmp_path: pathlib.Path) -> None:
    evil = "</script><script>alert(1)</script>"
    given = [GivenTrial({**each.point, evil: evil}, each.losses, each.end) for each in some_trials(8)]
    a_search(tmp_path, given, {**SPACE, evil: [evil, "b"]})
    scheduler = tmp_path / "runs" / ("s" * 32)
    scheduler.mkdir()
    # The evaluation gets no time, which is said.
    [found] = reported_searches(str(scheduler), [trial_id(1)], evaluation_command, patience=0.0)
    assert found.counts["pruned"] == 2
    history = history_for([workers(100.0, WORKER), ended(110.0, trial_id(1), 10.0)], 120.0)
    assert history
    text = page.page(history, {}, "title", {}, [found])
    assert "It is over: it has had 8 trial(s)." in text
    titles = re.findall("<h2>(.*?)</h2>", text)
    assert titles[:5] == [
        f"Search {BATCH[:8]}: dask:tpe of train",
        "Best trials",
        "Best loss over time",
        "Flags and results",
        "loss by step; pruned trials are pale",
    ]
    assert "No importances: the evaluation took longer than 0 s" in text
    assert "<script>alert" not in text
    assert "alert(1)" in text, "it is shown as text"


def test_report_of_a_search_that_was_deleted_is_without_it(tmp_path: pathlib.Path) -> None:
    a_search(tmp_path, some_trials(1), SPACE)
    attributes = tmp_path / "runs" / trial_id(1) / ".guild" / "attrs"
    (attributes / trials.ATTRIBUTE).write_text(json.dumps({"batch": "d" * 32}))
    assert reported_searches(str(tmp_path / "runs" / ("s" * 32)), [trial_id(1)], evaluation_command, patience=0.0) == []
