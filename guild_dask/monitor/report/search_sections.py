"""The part of a report about searches: a sentence, the best trials, and charts, for each."""

import html
from collections.abc import Sequence

from bokeh.embed import components

from guild_dask.monitor import formatting, results, search_results
from guild_dask.monitor.report import search_charts
from guild_dask.monitor.report.searches import ReportedSearch
from guild_dask.monitor.report.tables import Cell, table
from guild_dask.plan.objectives import text_for

# The most of the best trials that are listed.
_MOST_LISTED = 10


def sections(searches: Sequence[ReportedSearch]) -> tuple[str, list[str]]:
    """Returns the script of all charts, and the HTML; both are empty without a search."""
    charts = [search_charts.charts_for(each.drawing, each.importances.shares) for each in searches]
    made = [chart for each in charts for chart in each.values()]
    if not searches:
        return "", []
    script, parts = components(made) if made else ("", ())
    ahead = iter(parts)
    lines: list[str] = []
    for search, own in zip(searches, charts, strict=True):
        lines += _head(search)
        lines += _best(search)
        lines += [f"<h2>{html.escape(title)}</h2>{next(ahead)}" for title in own]
        if search.importances.why:
            lines.append(f'<p class="note">No importances: {html.escape(search.importances.why)}</p>')
    return script, lines


def _head(reported: ReportedSearch) -> list[str]:
    search = reported.search
    counts = ", ".join(f"{count} {name}" for name, count in reported.counts.items() if count) or "no trial"
    ended = f" It is over: {search.log.ended}." if search.log.ended else ""
    partial = "" if reported.is_complete else " Not all trials could be read in time."
    title = f"Search {formatting.short(search.batch)}: {search.optimizer} of {search.operation}"
    text = f"{text_for(search.objectives)}: {counts} of {search.max_trials} trials.{ended}{partial}"
    return [f"<h2>{html.escape(title)}</h2>", f"<p>{html.escape(text)}</p>"]


def _best(reported: ReportedSearch) -> list[str]:
    search, shown = reported.search, reported.best[:_MOST_LISTED]
    names = list(dict.fromkeys(name for trial in shown for name in trial.point))
    rows = [
        [
            Cell(formatting.short(trial.id)),
            *(Cell(results.text_for(value), "number") for value in trial.values or ()),
            *(Cell(search_results.short_value(trial.point[name]) if name in trial.point else "") for name in names),
            Cell(formatting.duration(trial.ended - trial.started) if trial.ended and trial.started else ""),
        ]
        for trial in shown
    ]
    title = "Pareto set" if len(search.objectives) > 1 else "Best trials"
    columns = ("run", *map(str, search.objectives), *names, "took")
    return table(title, columns, rows, len(reported.best))
