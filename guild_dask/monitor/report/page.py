"""A story as one HTML file that needs nothing else: charts by Bokeh, with its code inside."""

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
from guild_dask.monitor.report.story import RUNS, Story, Use

NAME = "report.html"

# Of a long life, the last so many runs are drawn: more could not be told apart, and would make the page slow.
MOST_DRAWN = 5000

# How many runs a table has at most.
MOST_LISTED = 200

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1000px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em; margin-bottom: 0 } h2 { font-size: 1.15em; margin: 1.6em 0 0.4em }
table { border-collapse: collapse } th, td { text-align: left; padding: 0.2em 1.2em 0.2em 0 }
th { font-weight: 600; border-bottom: 1px solid #bbb } .key span { margin-right: 1.2em }
.key i { display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.4em }
"""


def write(story: Story, names: Mapping[str, str], title: str, path: str) -> None:
    """Writes the report to a file, as a whole or not at all; names are what runs are called beside their ids."""
    files.write(path, page(story, names, title), f"{os.path.basename(path)}.draft")


def page(story: Story, names: Mapping[str, str], title: str) -> str:
    """Returns the report as HTML. What comes from runs is text in it, and never markup."""
    whole, story = story, latest(story)
    left_out = len(whole.spans) - len(story.spans)
    # All charts over time show the same time, and move together.
    times = Range1d(start=drawing.moment(story.start), end=drawing.moment(max(story.stop, story.start + 1)))
    charts = {"Runs on workers": drawing.gantt(story, names, times)} if story.spans else {}
    for use in story.uses:
        factor, unit = drawing.unit(story, use.name)
        name = "places for runs" if use.name == RUNS else f"{use.name} ({unit})" if unit else use.name
        charts[f"Use of {name}"] = drawing.use(use, factor, times)
    if story.spans:
        charts["Waiting times"] = drawing.waits(story, names, times)
        charts |= drawing.asked(story, names)
    script, parts = components([chart for chart in charts.values() if chart is not None])
    # Only the part of Bokeh that draws: the file is a quarter of what it would be with all of it.
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


def latest(story: Story) -> Story:
    """Returns a story with no more in it than can be drawn."""
    if len(story.spans) <= MOST_DRAWN:
        return story
    spans = story.spans[-MOST_DRAWN:]
    start = min(span.start for span in spans)
    return replace(story, start=start, spans=spans, uses=tuple(_since(use, start) for use in story.uses))


def _since(use: Use, start: float) -> Use:
    """Returns the use from a time on."""
    first = max(0, bisect.bisect_right(use.times, start) - 1)
    times = (max(start, use.times[first]), *use.times[first + 1 :])
    return Use(use.name, times, use.used[first:], use.total[first:])


def _head(story: Story, title: str, left_out: int) -> list[str]:
    began = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(story.start))
    lines = [summary.headline(story), summary.waiting(story), "; ".join(summary.uses(story))]
    if left_out:
        lines.append(f"The charts show the last {len(story.spans) - left_out} runs.")
    key = "".join(
        f'<span><i style="background:{drawing.colour(end)}"></i>{html.escape(end)}</span>' for end in story.ends
    )
    return [
        f"<h1>{html.escape(title)}</h1><p>Began {html.escape(began)}.",
        *(f"<br>{html.escape(line)}" for line in lines if line),
        f'</p><p class="key">{key}</p>',
    ]


def _sections(charts: Mapping[str, Any], parts: list[str]) -> list[str]:
    lines = []
    for title, chart in charts.items():
        body = parts.pop(0) if chart is not None else "<p>Nothing is known of what runs used.</p>"
        lines.append(f"<h2>{html.escape(title)}</h2>{body}")
    return lines


def _table(title: str, columns: Iterable[str], rows: Sequence[tuple[str, ...]], count: int | None = None) -> list[str]:
    """Returns a table, and how many rows there are beside those in it; nothing if it has none."""
    if not rows:
        return []
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = ["<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    more = f"<p>... and {count - len(rows)} more</p>" if count is not None and count > len(rows) else ""
    return [f"<h2>{html.escape(title)}</h2>", f"<table><tr>{head}</tr>", *body, f"</table>{more}"]


def _tables(story: Story, names: Mapping[str, str]) -> list[str]:
    unfinished = summary.unfinished(story, names, MOST_LISTED)
    left = summary.left(story, MOST_LISTED)
    return [
        *_table("Operations", summary.OPERATION_COLUMNS, summary.operations(story)),
        *_table("Runs that did not complete", summary.UNFINISHED_COLUMNS, unfinished, len(story.unfinished)),
        *_table("Runs that were left staged", summary.LEFT_COLUMNS, left, len(story.left)),
    ]
