"""The report as one self-contained HTML file, with charts by Bokeh."""

import bisect
import html
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bokeh.embed import components
from bokeh.models import Range1d
from bokeh.resources import Resources

from guild_dask.host import files
from guild_dask.monitor.report import charts as drawing
from guild_dask.monitor.report import summary
from guild_dask.monitor.report.history import SLOTS, History, Use

# The most runs in the charts, the latest ones: more would be illegible and make the page slow.
MOST_DRAWN = 5000

# The most rows of a table.
MOST_LISTED = 200

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1000px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em; margin-bottom: 0 } h2 { font-size: 1.15em; margin: 1.6em 0 0.4em }
table { border-collapse: collapse } th, td { text-align: left; padding: 0.2em 1.2em 0.2em 0 }
th { font-weight: 600; border-bottom: 1px solid #bbb } .key span { margin-right: 1.2em }
.key i { display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.4em }
"""


def write(history: History, names: Mapping[str, str], title: str, path: str) -> None:
    """Writes the report to a file, atomically; `names` has the operation and label of runs."""
    files.write(path, page(history, names, title), f"{os.path.basename(path)}.draft")


def page(history: History, names: Mapping[str, str], title: str) -> str:
    """Returns the report as HTML, with the text of runs escaped."""
    whole, history = history, latest(history)
    left_out = len(whole.spans) - len(history.spans)
    # All charts over time share one range, and move together.
    times = Range1d(start=drawing.moment(history.start), end=drawing.moment(max(history.stop, history.start + 1)))
    charts = {"Runs on workers": drawing.gantt(history, names, times)} if history.spans else {}
    for use in history.uses:
        factor, unit = drawing.unit(history, use.name)
        name = "slots" if use.name == SLOTS else f"{use.name} ({unit})" if unit else use.name
        charts[f"Use of {name}"] = drawing.use(use, factor, times)
    if history.spans:
        charts["Waiting times"] = drawing.waits(history, names, times)
        charts |= drawing.requested(history, names)
    script, parts = components([chart for chart in charts.values() if chart is not None])
    # Only Bokeh's drawing component: the file is a quarter of the size with all of it.
    code = Resources(mode="inline", components=["bokeh"]).render()
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>',
            f"<style>{_STYLE}</style>{code}{script}</head><body>",
            *_head(whole, title, left_out),
            *_sections(charts, list(parts)),
            *_tables(whole, names),
            "</body></html>",
        ]
    )


def latest(history: History) -> History:
    """Returns a history with the latest runs only, as many as the charts show."""
    if len(history.spans) <= MOST_DRAWN:
        return history
    spans = history.spans[-MOST_DRAWN:]
    start = min(span.start for span in spans)
    return replace(history, start=start, spans=spans, uses=tuple(_since(use, start) for use in history.uses))


def _since(use: Use, start: float) -> Use:
    """Returns the use after a time."""
    first = max(0, bisect.bisect_right(use.times, start) - 1)
    times = (max(start, use.times[first]), *use.times[first + 1 :])
    return Use(use.name, times, use.used[first:], use.total[first:])


def _head(history: History, title: str, left_out: int) -> list[str]:
    began = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(history.start))
    lines = [summary.headline(history), summary.waiting(history), "; ".join(summary.uses(history))]
    if left_out:
        lines.append(f"The charts show the last {len(history.spans) - left_out} runs.")
    colours = ((drawing.colour(end), html.escape(summary.end_text(end))) for end in history.ends)
    key = "".join(f'<span><i style="background:{colour}"></i>{name}</span>' for colour, name in colours)
    return [
        f"<h1>{html.escape(title)}</h1><p>Started {html.escape(began)}.",
        *(f"<br>{html.escape(line)}" for line in lines if line),
        f'</p><p class="key">{key}</p>',
    ]


def _sections(charts: Mapping[str, Any], parts: list[str]) -> list[str]:
    lines = []
    for title, chart in charts.items():
        body = parts.pop(0) if chart is not None else "<p>There is no record of what runs used.</p>"
        lines.append(f"<h2>{html.escape(title)}</h2>{body}")
    return lines


def _table(title: str, columns: Iterable[str], rows: Sequence[tuple[str, ...]], count: int | None = None) -> list[str]:
    """Returns a table, and the number of rows that it leaves out; nothing without rows."""
    if not rows:
        return []
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = ["<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    more = f"<p>... and {count - len(rows)} more</p>" if count is not None and count > len(rows) else ""
    return [f"<h2>{html.escape(title)}</h2>", f"<table><tr>{head}</tr>", *body, f"</table>{more}"]


def _tables(history: History, names: Mapping[str, str]) -> list[str]:
    unfinished = summary.unfinished(history, names, MOST_LISTED)
    left = summary.left(history, MOST_LISTED)
    return [
        *_table("Operations", summary.OPERATION_COLUMNS, summary.operations(history)),
        *_table("Runs that did not complete", summary.UNFINISHED_COLUMNS, unfinished, len(history.unfinished)),
        *_table("Runs left staged", summary.LEFT_COLUMNS, left, len(history.left)),
    ]
