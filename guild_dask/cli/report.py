"""`guild-dask report`: what a scheduler did."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from guild_dask.cli import common, run_list
from guild_dask.cli.run_table import table_of
from guild_dask.cli.status_tables import ShownRuns
from guild_dask.home import layout, run_output, trials
from guild_dask.home.lookup import names_of_runs
from guild_dask.home.outcome import End
from guild_dask.monitor import formatting, journal, results
from guild_dask.monitor.report import files, summary
from guild_dask.monitor.report.history import History
from guild_dask.monitor.report.searches import reported_searches
from guild_dask.monitor.state import EndedRun, as_data
from guild_dask.plan.reasons import AnyReason
from guild_dask.scheduler.search.evaluation import evaluation_command

# The most rows of a table; the JSON has all of them.
_SHOWN = 20

# Seconds to wait for the importances of a search.
_PATIENCE = 120.0

# The most completed runs whose scalars are read to find the best.
_MOST_READ = 1000


def _schedulers(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [
        layout.run_id(each)
        for each in _journals(layout.runs_dir(common.completion_home(ctx)))
        if layout.run_id(each).startswith(incomplete)
    ]


@click.command("report")
@click.argument("run", metavar="[SCHEDULER]", required=False, shell_complete=_schedulers)
@click.option("--list", "show_list", is_flag=True, help="List the schedulers that worked on this Guild home.")
@click.option("--html", "html_file", metavar="FILE", help="Write a self-contained page with charts to FILE.")
@common.json_option
def command(run: str | None, show_list: bool, html_file: str | None, as_json: bool) -> None:
    """Summarize what a scheduler did: failures first, then results, the best first.

    SCHEDULER is the id of a scheduler's run, or the beginning of one; the default is the last one that ran something.
    The page shows runs on workers, the use of slots and resources over time, waiting times, and what runs used. A
    scheduler writes it to its run directory when it ends.
    """
    if show_list:
        _show_list(as_json)
        return
    run_dir = common.run_for(run).dir if run else _latest()
    history = files.history_of(run_dir)
    if history is None:
        common.fail(f"run {formatting.short(layout.run_id(run_dir))} is not a run of a scheduler, or has no events")
    if html_file:
        _write(run_dir, html_file)
    elif as_json:
        common.print_json(_data(run_dir, history))
    else:
        click.echo("\n".join(_lines(run_dir, history)))


def _journals(folder: str) -> list[str]:
    """Returns the directories of schedulers, the latest first."""
    run_dirs = (layout.run_in(folder, name) for name in names_of_runs(folder))
    found = [run_dir for run_dir in run_dirs if os.path.exists(layout.events(run_dir))]
    return sorted(found, key=lambda run_dir: os.path.getmtime(layout.events(run_dir)), reverse=True)


def _latest() -> str:
    """Returns the directory of the last scheduler that ran something, or else of the last one."""
    found = _journals(common.runs_dir())
    if not found:
        common.fail("no scheduler has worked on this Guild home yet, or its run was deleted")
    return next((each for each in found if _has_run_something(each)), found[0])


def _has_run_something(run_dir: str) -> bool:
    return any(event["event"] == "started" for event in journal.read(layout.events(run_dir)))


def _show_list(as_json: bool) -> None:
    found = [(each, files.history_of(each)) for each in _journals(common.runs_dir())]
    known = [(run_dir, history) for run_dir, history in found if history]
    if as_json:
        common.print_json([_data(run_dir, history, with_runs=False) for run_dir, history in known])
        return
    if not known:
        click.echo("No scheduler has worked on this Guild home yet.")
        return
    columns = {
        "SCHEDULER": [formatting.short(layout.run_id(run_dir)) for run_dir, _ in known],
        "STARTED": [time.strftime("%Y-%m-%d %H:%M", time.localtime(history.start)) for _, history in known],
        "WORKED": [formatting.duration(history.worked) for _, history in known],
        "RUNS": [summary.ends(history) for _, history in known],
        "NOW": ["" if history.is_over else "at work" for _, history in known],
    }
    click.echo("\n".join(table_of(columns)))


def _write(run_dir: str, html_file: str) -> None:
    try:
        files.write_report(run_dir, html_file, evaluation_command, _PATIENCE)
    except OSError as e:
        common.fail(f"cannot write {html_file}: {e.strerror or e}")
    click.echo(f"Wrote {html_file}")


def _lines(run_dir: str, history: History) -> list[str]:
    lines = [common.heading(f"Scheduler {formatting.short(layout.run_id(run_dir))}")]
    lines += [summary.headline(history), summary.waiting(history), *summary.uses(history)]
    lines += summary.warm_starts(history)
    runs_dir = layout.runs_dir_of(run_dir)
    failed = [span.run for span in history.unfinished if span.run.is_failure]
    others = [span.run for span in history.unfinished if not span.run.is_failure]
    completed = [span.run for span in history.spans if span.run.end == End.COMPLETED.value]
    left = dict(list(history.left.items())[:_SHOWN])
    listed = (*failed[:_SHOWN], *others[:_SHOWN], *completed[:_MOST_READ])
    shown = ShownRuns(runs_dir, {**dict.fromkeys(left, ""), **{run.run: run.operation for run in listed}})
    for table, count in (
        (_ended("FAILED", failed[:_SHOWN], shown, runs_dir), len(failed)),
        (_results(completed[:_MOST_READ], shown, runs_dir), len(completed)),
        (_ended("NOT COMPLETED", others[:_SHOWN], shown), len(others)),
        (_left(left, shown), len(history.left)),
        (_rows(summary.OPERATION_COLUMNS, summary.operations(history), (0, 6, 5)), 0),
    ):
        lines += ["", *table] if table else []
        lines += [f"... and {count - _SHOWN} more"] if count > _SHOWN else []
    return lines + (["", *common.wrapped(shown.common_text)] if shown.common_text else [])


def _rows(columns: Sequence[str], rows: Sequence[Sequence[str]], wide: Sequence[int]) -> list[str]:
    return common.table([name.upper() for name in columns], rows, wide=wide) if rows else []


def _ended(title: str, runs: Sequence[EndedRun], shown: ShownRuns, runs_dir: str | None = None) -> list[str]:
    """Returns a table of attempts that did not complete; with the last line of output, if `runs_dir` is given."""
    if not runs:
        return []
    columns = {
        title: [formatting.short(run.run) for run in runs],
        **shown.cells(run.run for run in runs),
        "ATTEMPT": [str(run.attempt) if run.attempt > 1 else "" for run in runs],
        "AFTER": [formatting.duration(run.ran) for run in runs],
        "HOW": [shown.ending(run).text for run in runs],
        "LAST LINE": [_last_line(runs_dir, run) if runs_dir else "" for run in runs],
    }
    return table_of(columns, shown.flags(run.run for run in runs), beneath=("LAST LINE", "HOW"))


def _left(runs: Mapping[str, AnyReason | None], shown: ShownRuns) -> list[str]:
    """Returns a table of runs that were left staged."""
    if not runs:
        return []
    columns = {
        "LEFT STAGED": [formatting.short(run) for run in runs],
        **shown.cells(runs),
        "WHY": [summary.why_left(why) for why in runs.values()],
    }
    return table_of(columns, shown.flags(runs), beneath=("WHY",))


def _last_line(runs_dir: str, run: EndedRun) -> str:
    return run_output.last_line(run_output.path_for(layout.run_in(runs_dir, run.run), run.attempt))


def _results(runs: Sequence[EndedRun], shown: ShownRuns, runs_dir: str) -> list[str]:
    """Returns a table of completed runs with their scalars, the best first."""
    if not runs:
        return []
    found = [(run, run_list.results_in(layout.run_in(runs_dir, run.run))) for run in runs]
    names, spare = results.columns_for([scalars for _, scalars in found], run_list.MOST_SCALARS)
    best = (results.best_first(found, names[0]) if names else found)[:_SHOWN]
    columns = {
        "COMPLETED": [formatting.short(run.run) for run, _ in best],
        **shown.cells(run.run for run, _ in best),
        **{name: [results.text_for(scalars.get(name)) for _, scalars in best] for name in names},
        "TOOK": [formatting.duration(run.ran) for run, _ in best],
    }
    return table_of(columns, shown.flags(run.run for run, _ in best), spare=spare[::-1])


def _data(run_dir: str, history: History, with_runs: bool = True) -> dict[str, Any]:
    home, runs_dir = common.home(), layout.runs_dir_of(run_dir)
    data = {
        "scheduler": layout.run_id(run_dir),
        "started": history.start,
        "stopped": history.stop if history.is_over else None,
        "seconds_worked": round(history.worked, 3),
        "killed": history.is_killed,
        "ends": dict(history.ends),
        "mean_use": {use.name: round(use.mean_share, 4) for use in history.uses},
        "warm_starts": {name: asdict(starts) for name, starts in history.warm_starts().items()},
        "left_staged": {run: str(why or "") for run, why in history.left.items()},
    }
    if with_runs:
        data["runs"] = [
            {
                **as_data(span.run, for_people=True),
                "how": trials.with_search(span.run.ending, layout.run_in(runs_dir, span.run.run)).text,
                "last_line": _last_line(runs_dir, span.run),
                **run_list.details(home, span.run.run),
            }
            for span in history.spans
        ]
        runs = (span.run.run for span in history.spans)
        found = reported_searches(run_dir, runs, evaluation_command, _PATIENCE)
        data["searches"] = [each.as_data() for each in found]
    return data
