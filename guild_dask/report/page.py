"""A story as one HTML file that needs nothing else: charts by Bokeh, with its code inside."""

import bisect
import html
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bokeh.embed import components
from bokeh.models import ColumnDataSource, DatetimeTickFormatter, FactorRange, HoverTool, Range1d
from bokeh.plotting import figure
from bokeh.resources import Resources

from guild_dask import shown
from guild_dask.report import summary
from guild_dask.report.story import RUNS, Story, Use
from guild_dask.resources import format_amounts
from guild_dask.whereabouts import CPU, MEMORY

NAME = "report.html"

# Each end has a colour that tells it apart for the colour-blind, too.
COLOURS = {
    "completed": "#4477aa",
    "running": "#66ccee",
    "failed": "#ee6677",
    "could not start": "#aa3377",
    "gone": "#aa3377",
    "terminated": "#bbbbbb",
    "staged again": "#ccbb44",
}
_OTHER = "#ccbb44"

_WIDTH = 1000

# Of a long life, the last so many runs are drawn: more could not be told apart, and would make the page slow.
MOST_DRAWN = 5000

# More lanes than this are too thin to be told apart by their names.
_MOST_NAMED = 40

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1000px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em; margin-bottom: 0 } h2 { font-size: 1.15em; margin: 1.6em 0 0.4em }
table { border-collapse: collapse } th, td { text-align: left; padding: 0.2em 1.2em 0.2em 0 }
th { font-weight: 600; border-bottom: 1px solid #bbb } .key span { margin-right: 1.2em }
.key i { display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.4em }
"""


def write(story: Story, names: Mapping[str, str], title: str, path: str) -> None:
    """Writes the report to a file, as a whole or not at all; names are what runs are called beside their ids."""
    draft = f"{path}.draft"
    with open(draft, "w", encoding="utf-8") as f:
        f.write(page(story, names, title))
    os.replace(draft, path)


def page(story: Story, names: Mapping[str, str], title: str) -> str:
    """Returns the report as HTML. What comes from runs is text in it, and never markup."""
    whole, story = story, latest(story)
    left_out = len(whole.spans) - len(story.spans)
    # All charts over time show the same time, and move together.
    times = Range1d(start=_time(story.start), end=_time(max(story.stop, story.start + 1)))
    charts = {"Runs on workers": _gantt(story, names, times)} if story.spans else {}
    for use in story.uses:
        factor, unit = _unit(story, use.name)
        name = "places for runs" if use.name == RUNS else f"{use.name} ({unit})" if unit else use.name
        charts[f"Use of {name}"] = _use(use, factor, times)
    if story.spans:
        charts["Waiting times"] = _waits(story, names, times)
        charts["Asked against used"] = _asked(story, names)
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
            *_operations(whole),
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
    key = "".join(f'<span><i style="background:{_colour(end)}"></i>{html.escape(end)}</span>' for end in story.ends)
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


def _operations(story: Story) -> list[str]:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in summary.OPERATION_COLUMNS)
    rows = [
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in summary.operations(story)
    ]
    return ["<h2>Operations</h2>", f"<table><tr>{head}</tr>", *rows, "</table>"]


def _colour(end: str) -> str:
    return COLOURS.get(end, _OTHER)


def _source(story: Story, names: Mapping[str, str]) -> ColumnDataSource:
    spans = story.spans
    return ColumnDataSource(
        {
            "lane": [f"{span.run.worker} {span.lane + 1}" for span in spans],
            "start": [_time(span.start) for span in spans],
            "stop": [_time(span.stop) for span in spans],
            "colour": [_colour(span.run.end) for span in spans],
            "run": [shown.short(span.run.run) for span in spans],
            "name": [names.get(span.run.run) or span.run.operation for span in spans],
            "end": [span.run.end for span in spans],
            "took": [shown.duration(span.stop - span.start) for span in spans],
            "waited": [shown.duration(span.run.waited) for span in spans],
            "wait": [span.run.waited for span in spans],
            "asks": [format_amounts(span.run.asks) or "-" for span in spans],
        }
    )


def _hover() -> HoverTool:
    # Bokeh shows values of columns as text, unless told otherwise.
    rows = [("run", "@run"), ("", "@name"), ("", "@end"), ("took", "@took"), ("waited", "@waited"), ("asked", "@asks")]
    return HoverTool(tooltips=rows)


def _figure(height: int, **options: Any) -> Any:
    chart = figure(
        width=_WIDTH, height=height, toolbar_location="right", tools="pan,xwheel_zoom,box_zoom,reset", **options
    )
    chart.xgrid.grid_line_color = "#eeeeee"
    chart.ygrid.grid_line_color = "#eeeeee"
    chart.outline_line_color = None
    chart.toolbar.logo = None
    chart.min_border_left = 90
    return chart


def _time(at: float) -> float:
    """Returns a time as Bokeh wants it, which shows all times as if we were in Greenwich."""
    return (at + time.localtime(at).tm_gmtoff) * 1000


def _unit(story: Story, name: str) -> tuple[int, str]:
    return next((shown.unit_of(worker.total[name]) for worker in story.workers if name in worker.total), (1, ""))


def _times(chart: Any) -> None:
    seconds, minutes, days = "%H:%M:%S", "%H:%M", "%Y-%m-%d"
    chart.xaxis.formatter = DatetimeTickFormatter(
        milliseconds=seconds,
        seconds=seconds,
        minsec=seconds,
        minutes=minutes,
        hourmin=minutes,
        hours=minutes,
        days=days,
    )


def _gantt(story: Story, names: Mapping[str, str], times: Range1d) -> Any:
    lanes = sorted({(span.run.worker, span.lane) for span in story.spans}, reverse=True)
    height = min(900, 80 + max(6 if len(lanes) > _MOST_NAMED else 22, 6) * len(lanes))
    lanes_named = [f"{worker} {lane + 1}" for worker, lane in lanes]
    chart = _figure(height, y_range=FactorRange(factors=lanes_named), x_range=times, x_axis_type="datetime")
    chart.hbar(
        y="lane", left="start", right="stop", height=0.8, color="colour", line_color="white", line_width=0.5,
        source=_source(story, names),
    )  # fmt: skip
    chart.add_tools(_hover())
    if len(lanes) > _MOST_NAMED:
        chart.yaxis.major_label_text_font_size = "0pt"
    _times(chart)
    return chart


def _use(use: Use, factor: int, times: Range1d) -> Any:
    chart = _figure(150, x_axis_type="datetime", x_range=times)
    at = [_time(each) for each in use.times for _ in (0, 1)][1:]
    used, total = ([value / factor for value in values for _ in (0, 1)][:-1] for values in (use.used, use.total))
    chart.varea(x=at, y1=[0.0] * len(at), y2=used, color="#4477aa", alpha=0.6)
    chart.line(at, total, color="#222222", line_dash="dashed")
    chart.y_range.start = 0
    _times(chart)
    return chart


def _waits(story: Story, names: Mapping[str, str], times: Range1d) -> Any:
    chart = _figure(
        220, x_axis_type="datetime", x_range=times, x_axis_label="started at", y_axis_label="seconds waited"
    )
    chart.scatter("start", "wait", size=6, color="colour", alpha=0.7, source=_source(story, names))
    chart.add_tools(_hover())
    chart.y_range.start = 0
    _times(chart)
    return chart


def _asked(story: Story, names: Mapping[str, str]) -> Any:
    """Returns the memory and CPUs that runs used, or None if nothing is known of them."""
    known = [span for span in story.spans if MEMORY in span.run.used and span.run.ran > 0]
    if not known:
        return None
    source = ColumnDataSource(
        {
            "cpus": [span.run.used.get(CPU, 0.0) / span.run.ran for span in known],
            "memory": [span.run.used[MEMORY] / 1e9 for span in known],
            "size": [shown.size(span.run.used[MEMORY]) for span in known],
            "colour": [_colour(span.run.end) for span in known],
            "run": [shown.short(span.run.run) for span in known],
            "name": [names.get(span.run.run) or span.run.operation for span in known],
            "asks": [format_amounts(span.run.asks) or "nothing" for span in known],
        }
    )
    chart = _figure(260, x_axis_label="CPUs used (mean)", y_axis_label="most memory used (GB)")
    chart.scatter("cpus", "memory", size=8, color="colour", alpha=0.7, source=source)
    rows = [("run", "@run"), ("", "@name"), ("asked for", "@asks"), ("CPUs used", "@cpus{0.00}"), ("memory", "@size")]
    chart.add_tools(HoverTool(tooltips=rows))
    chart.x_range.start = chart.y_range.start = 0
    return chart
