"""`guild-dask status`: schedulers, their workers, running, waiting and ended runs, and searches."""

import math
import os
import signal
import sys
import threading
import time
from typing import Any

import click

from guild_dask.cli import common, run_list, status_tables
from guild_dask.home import control, layout, run_view
from guild_dask.home.outcome import FAILURES, End
from guild_dask.monitor import estimate, formatting, schedulers, searches
from guild_dask.monitor.schedulers import Scheduler
from guild_dask.monitor.searches import PublishedSearch
from guild_dask.monitor.state import Phase, State, as_data
from guild_dask.plan import records
from guild_dask.plan.search_ends import data_for_people
from guild_dask.plan.troubles import text_for

# The most runs that a table shows without --all.
_SHOWN = 10

# The rows of a table in a small terminal with --watch, at least: several tables must fit.
_LEAST = 3

# Seconds between two refreshes of --watch, and without a heartbeat until the status shows that.
_PERIOD = 2.0
_SILENT = 90.0

# Seconds for reading the trials of searches that were cut short.
_READING = 0.5

_START_ONE = "Start a scheduler: guild run dask:scheduler"


@click.command("status")
@click.option("-w", "--watch", is_flag=True, help="Refresh every two seconds, until Ctrl-C.")
@click.option("-a", "--all", "show_all", is_flag=True, help="Show all runs, not only the first ten of each table.")
@common.json_option
def command(watch: bool, show_all: bool, as_json: bool) -> None:
    """Show schedulers, workers, running, waiting and ended runs, and searches.

    SLOTS and RESOURCES show used/total; a worker runs one run per slot. # is the position in the queue. STARTS is an
    estimate from the durations of earlier runs of the same operation.

    Staged runs that do not simply wait are HELD (they depend on other runs, or cannot start as they are), RETRYING
    (they wait for their next attempt) or impossible (no worker can ever run them).
    """
    home = common.home()
    if as_json:
        common.print_json(status_data(home, time.time()))
    elif watch:
        _watch(home, show_all)
    else:
        _print("\n".join(status_lines(home, time.time(), None if show_all else _SHOWN)))


def _print(text: str) -> None:
    click.echo(text, color=common.is_coloured())


def _watch(home: str, show_all: bool) -> None:
    """Prints the status periodically; on a terminal, each one replaces the last."""
    is_terminal = sys.stdout.isatty()
    stop = threading.Event()
    # A shell starts background jobs with SIGINT ignored; kill -INT must work for them, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        while True:
            height = os.get_terminal_size().lines if is_terminal else 0
            most = None if show_all else min(_SHOWN, max(_LEAST, height // 6)) if is_terminal else _SHOWN
            lines = status_lines(home, time.time(), most)
            if is_terminal:
                # Cursor to the top and hidden; erase the rest of each line, and then the rest of the screen.
                seen = lines if common.is_coloured() else [click.unstyle(line) for line in lines]
                seen = fitting(seen, height - 1)
                text = "\n".join(f"{line}\x1b[K" for line in seen)
                sys.stdout.write(f"\x1b[H\x1b[?25l{text}\n\x1b[J")
                sys.stdout.flush()
            else:
                _print("\n".join([*lines, ""]))
            stop.wait(_PERIOD)
    except KeyboardInterrupt:
        pass
    finally:
        if is_terminal:
            click.echo("\x1b[?25h", nl=False)


def fitting(lines: list[str], most: int) -> list[str]:
    """Returns the first lines that fit, and how many do not; a line that is too wide takes several rows."""
    rows = [max(1, math.ceil(formatting.width(click.unstyle(line)) / common.width())) for line in lines]
    if sum(rows) <= most:
        return lines
    kept = 0
    while kept < len(rows) and sum(rows[: kept + 1]) < most:
        kept += 1
    return [*lines[:kept], f"... {len(lines) - kept} more lines: the window is too small"]


def status_data(home: str, now: float) -> dict[str, Any]:
    """Returns the status as data for --json."""
    alive = schedulers.known_alive(home)
    data: dict[str, Any] = {"guild_home": home, "schedulers": [_scheduler_data(each, home, now) for each in alive]}
    left = [as_data(each, for_people=True) for each in schedulers.survivors(home, alive)]
    data["without_scheduler"] = [{**each, **run_list.details(home, each["run"])} for each in left]
    data["searches"] = [_search_data(each) for each in searches.shown(home, now, _READING)]
    if not alive:
        data["staged"] = run_view.count_staged(layout.runs_dir(home))
    return data


def _search_data(search: PublishedSearch) -> dict[str, Any]:
    data = {**records.data_for(search.summary), "ended": data_for_people(search.summary.ended)}
    return {**data, "is_at_work": search.is_at_work, "is_cut_short": search.is_cut_short}


def _scheduler_data(scheduler: Scheduler, home: str, now: float) -> dict[str, Any]:
    state = scheduler.state
    data: dict[str, Any] = {"scheduler": scheduler.id, "host": scheduler.process.host, "pid": scheduler.process.pid}
    if state:
        data |= as_data(state, for_people=True)
        data["seconds_left"] = estimate.seconds_left(state, now)
        data["estimates_are_least"] = estimate.is_least(state, now)
        starts = estimate.seconds_until_starts(state, now)
        for run, position, seconds in zip(data["first"], state.positions, starts, strict=True):
            run |= {"position": position, "starts_in": seconds}
        for name in ("running", "first", "ended"):
            data[name] = [{**run, **run_list.details(home, run["run"])} for run in data[name]]
        held = {run: {"why": why, **run_list.details(home, run)} for run, why in data["first_held"].items()}
        again = {run: {"starts_at": at, **run_list.details(home, run)} for run, at in data["retrying"].items()}
        data |= {"held_runs": held, "retrying_runs": again}
    return data


def status_lines(home: str, now: float, most: int | None) -> list[str]:
    """Returns the lines of the status, with at most `most` rows in each table."""
    alive = schedulers.known_alive(home)
    lines: list[str] = []
    for scheduler in alive:
        lines += [""] if lines else []
        lines += _scheduler_lines(scheduler, home, now, most)
    if not alive:
        count = run_view.count_staged(layout.runs_dir(home))
        lines.append(f"No scheduler is at work on {home}.")
        lines.append(f"{count} run(s) are staged. {_START_ONE if count else ''}".strip())
        if control.is_paused(home):
            text = "Schedulers are paused: they start no runs until 'guild-dask resume'."
            lines.append(click.style(text, fg="yellow"))
    left = status_tables.survivors(schedulers.survivors(home, alive), layout.runs_dir(home), now, most)
    found = status_tables.searches(searches.shown(home, now, _READING), most)
    return lines + (["", *found] if found else []) + (["", *left] if left else [])


def _scheduler_lines(scheduler: Scheduler, home: str, now: float, most: int | None) -> list[str]:
    state = scheduler.state
    where = f"on {scheduler.process.host} (pid {scheduler.process.pid})"
    if state is None:
        return [common.heading(f"Scheduler {formatting.short(scheduler.id)} {where}"), "It has just started."]
    title = f"Scheduler {formatting.short(scheduler.id)} {where}, for {formatting.duration(now - state.started)}"
    lines = [common.heading(title), *_counts(state, now)]
    if scheduler.silent > _SILENT:
        lines.append(click.style(f"Its last heartbeat was {formatting.duration(scheduler.silent)} ago.", fg="yellow"))
    if state.filter:
        lines += common.wrapped(f"It starts only runs that match {state.filter!r}.")
    if state.phase is not Phase.WORKING:
        lines.append(click.style(f"It is {state.phase.value}.", fg="yellow"))
    for trouble in state.troubles:
        lines += [click.style(line, fg="yellow") for line in common.wrapped(text_for(trouble))]
    if state.dashboard:
        lines.append(f"Dashboard: {state.dashboard}")
    if state.page:
        lines.append(f"Runs:      {state.page}")
    lines += ["", *status_tables.workers(state, most)]
    shown = status_tables.ShownRuns(layout.runs_dir(home), _shown_runs(state, most))
    by_end = {
        "FAILED": [run for run in state.ended if run.end in FAILURES],
        "TERMINATED": [run for run in state.ended if run.end == End.TERMINATED.value],
        "DELETED": [run for run in state.ended if run.end == End.GONE.value],
    }
    # What needs attention comes before the queue, which may be long.
    for lines_of in (
        status_tables.running(state, shown, now, most),
        *(status_tables.ended(title, runs, shown, now, most) for title, runs in by_end.items()),
        status_tables.impossible(state, shown, most),
        status_tables.held(state, shown, most),
        status_tables.retrying(state, shown, now, most),
        status_tables.waiting(state, shown, now, most),
    ):
        lines += ["", *lines_of] if lines_of else []
    return lines + (["", *common.wrapped(shown.common_text)] if shown.common_text else [])


def _shown_runs(state: State, most: int | None) -> dict[str, str]:
    """Returns the runs that tables with so many rows may show, each with its operation as far as the state has it."""
    first = [run for run, position in zip(state.first, state.positions, strict=True) if position is not None][:most]
    never = [run for run, position in zip(state.first, state.positions, strict=True) if position is None][:most]
    ended = [run for run in state.ended if run.end != End.COMPLETED.value]
    shown = dict.fromkeys((*list(state.first_held)[:most], *list(state.retrying)[:most]), "")
    shown |= {run.run: run.operation for run in (ended if most is None else ended[-3 * most :])}
    shown |= {run.run: run.operation for run in (*first, *never)}
    return shown | {run.run: run.operation for run in state.running[:most]}


def _counts(state: State, now: float) -> list[str]:
    """Returns how many runs are in which state, and when all are done; in two lines if one is too short."""
    parts = [f"{len(state.running)} running", f"{state.waiting - state.impossible} waiting"]
    parts += [f"{count} {name}" for name, count in state.not_queued.items()]
    parts.append(click.style(f"{state.completed} completed", fg="green" if state.completed else None))
    parts.append(click.style(f"{state.failed} failed", fg="red" if state.failed else None))
    if state.terminated:
        parts.append(f"{state.terminated} terminated")
    if state.deleted:
        parts.append(f"{state.deleted} deleted")
    left = estimate.seconds_left(state, now)
    done = formatting.about(left, "in ", estimate.is_least(state, now))
    counts = ", ".join(parts)
    line = counts if left is None else f"{counts}; all done {done}"
    is_whole = left is None or formatting.width(click.unstyle(line)) <= common.widest_table()
    return [line] if is_whole else [counts, f"All done {done}"]
