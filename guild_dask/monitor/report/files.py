"""A scheduler's run directory to its story, and the report into it."""

import os
import time
from collections.abc import Iterable

from guild_dask.home import run_view
from guild_dask.monitor import journal, schedulers
from guild_dask.monitor.report.aftermath import aftermath_of
from guild_dask.monitor.report.story import Span, Story, story_for


def story_of(run_dir: str) -> Story | None:
    """Returns the story of a scheduler, or None if its run directory has none."""
    # Whether it lives is asked first: one that ends in between has said so by then.
    lives = schedulers.is_alive(os.path.dirname(os.path.dirname(run_dir)), os.path.basename(run_dir))
    events = journal.read(os.path.join(run_dir, journal.NAME))
    after = aftermath_of(run_dir, events) if events and not lives else None
    return story_for(events, time.time(), after)


def names_of(runs_dir: str, spans: Iterable[Span]) -> dict[str, str]:
    """Returns what runs are called, as far as they still exist."""
    ids = {span.run.run for span in spans}
    views = (run_view.view(os.path.join(runs_dir, run_id)) for run_id in ids)
    return {view.id: view.name for view in views if view.operation}


def write_report(run_dir: str, path: str) -> bool:
    """Writes the report of a scheduler as HTML; False if there is nothing to report."""
    story = story_of(run_dir)
    if story is None:
        return False
    from guild_dask.monitor.report import page

    names = names_of(os.path.dirname(run_dir), page.latest(story).spans)
    page.write(story, names, f"Dask scheduler {os.path.basename(run_dir)[:8]}", path)
    return True
