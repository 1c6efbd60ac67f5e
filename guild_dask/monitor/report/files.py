"""Reads the history of a scheduler from its run directory, and writes its report."""

import time
from collections.abc import Iterable

from guild_dask.home import layout, run_view
from guild_dask.monitor import journal, schedulers
from guild_dask.monitor.importances import CommandFor
from guild_dask.monitor.report.ended_scheduler import ended_scheduler_for, ends_of_outlived
from guild_dask.monitor.report.history import History, Span, history_for
from guild_dask.monitor.report.run_facts import facts_of
from guild_dask.monitor.report.searches import PATIENCE, reported_searches


def history_of(run_dir: str) -> History | None:
    """Returns the history of a scheduler, or None if its run directory has no events."""
    # Check first whether it is alive: if it ends in between, its last event is already written.
    lives = schedulers.is_alive(layout.home_of_run(run_dir), layout.run_id(run_dir))
    events = journal.read(layout.events(run_dir))
    after = ended_scheduler_for(run_dir, events) if events and not lives else None
    outlived = ends_of_outlived(run_dir, events) if events and lives else ()
    return history_for(events, time.time(), after, outlived)


def names_of(runs_dir: str, spans: Iterable[Span]) -> dict[str, str]:
    """Returns the operation and label of each run that still exists, by id."""
    ids = {span.run.run for span in spans}
    views = (run_view.view(layout.run_in(runs_dir, run_id)) for run_id in ids)
    return {view.id: view.name for view in views if view.operation}


def write_report(run_dir: str, path: str, evaluation: CommandFor, patience: float = PATIENCE) -> bool:
    """Writes the report of a scheduler as HTML; returns False if there is nothing to report.

    `evaluation` is the command that evaluates the importances of a search; they are left out if that takes longer than
    `patience`, in seconds.
    """
    history = history_of(run_dir)
    if history is None:
        return False
    runs_dir = layout.runs_dir_of(run_dir)
    facts = facts_of(runs_dir, history.spans, history.left)
    # Before Bokeh is loaded, which takes a while: the importances of searches are evaluated meanwhile.
    found = reported_searches(run_dir, facts, evaluation, patience)
    from guild_dask.monitor.report import page

    names = names_of(runs_dir, page.latest(history).spans)
    title = f"Dask scheduler {layout.run_id(run_dir)[:8]}"
    page.write(page.page(history, names, title, facts, found), path)
    return True
