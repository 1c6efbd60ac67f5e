"""The charts of a report, drawn by Bokeh."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.models import ColumnDataSource, DatetimeTickFormatter, FactorRange, HoverTool, Range1d
from bokeh.plotting import figure

from guild_dask.home.outcome import text_for_end
from guild_dask.home.run_info import CPU, MEMORY
from guild_dask.monitor import formatting
from guild_dask.monitor.report.history import History, Span, Use
from guild_dask.monitor.run_states import state_for
from guild_dask.plan import resources
from guild_dask.plan.resources import format_amounts
from guild_dask.plan.units import format_size, unit_of

# Colours that can be seen on a white and on a dark page.
TEXT = "#7a818c"
USED = "#1f88d8"
_GRID_ALPHA = 0.25

# Units of an axis with durations; one is used if three of it are shown.
_UNITS_OF_TIME = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))

# With more lanes than this, their names do not fit.
_MOST_NAMED = 40


def _source(history: History, names: Mapping[str, str]) -> ColumnDataSource:
    spans = history.spans
    return ColumnDataSource(
        {
            "lane": [f"{span.run.worker} {span.lane + 1}" for span in spans],
            "start": [moment(span.start) for span in spans],
            "stop": [moment(span.stop) for span in spans],
            "colour": [state_for(span.run.end).colour for span in spans],
            "run": [formatting.short(span.run.run) for span in spans],
            "name": [names.get(span.run.run) or span.run.operation for span in spans],
            "end": [text_for_end(span.run.end) for span in spans],
            "took": [formatting.duration(span.run.ran) for span in spans],
            "waited": [formatting.duration(span.run.waited) for span in spans],
            "requests": [format_amounts(span.run.requests) or "-" for span in spans],
        }
    )


def _hover() -> HoverTool:
    # Bokeh escapes the values of columns.
    rows = [
        ("run", "@run"),
        ("", "@name"),
        ("", "@end"),
        ("took", "@took"),
        ("waited", "@waited"),
        ("requested", "@requests"),
    ]
    return HoverTool(tooltips=rows)


def blank(height: int, **options: Any) -> Any:
    """Returns a chart without content, for a white and a dark page."""
    chart = figure(
        sizing_mode="stretch_width",
        height=height,
        toolbar_location="above",
        tools="pan,xwheel_zoom,box_zoom,reset",
        **options,
    )
    # The page shows through, so that the charts are dark where it is.
    chart.background_fill_color = chart.border_fill_color = chart.outline_line_color = None
    chart.grid.grid_line_color = TEXT
    chart.grid.grid_line_alpha = _GRID_ALPHA
    for axis in chart.axis:
        axis.major_label_text_color = axis.axis_label_text_color = TEXT
        axis.axis_line_color = axis.major_tick_line_color = axis.minor_tick_line_color = TEXT
    chart.toolbar.logo = None
    chart.toolbar.autohide = True
    chart.min_border_left = 60
    chart.min_border_right = 10
    return chart


def moment(at: float) -> float:
    """Returns a time in milliseconds for Bokeh, which shows UTC, shifted to local time."""
    return (at + time.localtime(at).tm_gmtoff) * 1000


def unit(history: History, name: str) -> tuple[int, str]:
    return next((unit_of(worker.total[name]) for worker in history.workers if name in worker.total), (1, ""))


def show_times(chart: Any) -> None:
    """Makes the axis of a chart show times of day."""
    seconds, minutes, days = "%H:%M:%S", "%H:%M", "%b %d"
    chart.xaxis.formatter = DatetimeTickFormatter(
        milliseconds=seconds,
        seconds=seconds,
        minsec=seconds,
        minutes=minutes,
        hourmin=minutes,
        hours=minutes,
        days=days,
    )


def gantt(history: History, names: Mapping[str, str], times: Range1d) -> Any:
    lanes = sorted({(span.run.worker, span.lane) for span in history.spans}, reverse=True)
    height = min(900, 80 + max(6 if len(lanes) > _MOST_NAMED else 22, 6) * len(lanes))
    lanes_named = [f"{worker} {lane + 1}" for worker, lane in lanes]
    chart = blank(height, y_range=FactorRange(factors=lanes_named), x_range=times, x_axis_type="datetime")
    chart.hbar(
        y="lane", left="start", right="stop", height=0.8, color="colour", line_color=None,
        source=_source(history, names),
    )  # fmt: skip
    chart.add_tools(_hover())
    if len(lanes) > _MOST_NAMED:
        chart.yaxis.major_label_text_font_size = "0pt"
    show_times(chart)
    return chart


def use(use: Use, factor: int, times: Range1d) -> Any:
    chart = blank(150, x_axis_type="datetime", x_range=times)
    at = [moment(each) for each in use.times for _ in (0, 1)][1:]
    used, total = ([value / factor for value in values for _ in (0, 1)][:-1] for values in (use.used, use.total))
    chart.varea(x=at, y1=[0.0] * len(at), y2=used, color=USED, alpha=0.6)
    chart.line(at, total, color=TEXT, line_dash="dashed")
    chart.y_range.start = 0
    show_times(chart)
    return chart


def waits(history: History, names: Mapping[str, str], times: Range1d) -> Any:
    seconds, unit = next(
        (each for each in _UNITS_OF_TIME if max(history.waits, default=0.0) >= 3 * each[0]), _UNITS_OF_TIME[-1]
    )
    chart = blank(220, x_axis_type="datetime", x_range=times, x_axis_label="started at", y_axis_label=f"{unit} waited")
    source = _source(history, names)
    source.data["wait"] = [span.run.waited / seconds for span in history.spans]
    chart.scatter("start", "wait", size=6, color="colour", alpha=0.7, source=source)
    chart.add_tools(_hover())
    chart.y_range.start = 0
    show_times(chart)
    return chart


def requested(history: History, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns charts of requested against used CPUs and memory, or of the use alone; None without a record of it."""
    known = [span for span in history.spans if MEMORY in span.run.used and span.run.ran > 0]
    if not known:
        return {"Requested against used": None}
    charts = {}
    for title, name, column, unit in (
        ("Memory", resources.MEMORY, "memory", "GB"),
        ("CPUs", resources.CPU, "cpus", "CPUs, mean"),
    ):
        spans = [span for span in known if span.run.requests.get(name)]
        if spans:
            charts[f"{title}: requested against used"] = _against(_uses(spans, names), column, unit)
    return charts or {"CPUs and memory used": _used(_uses(known, names))}


def _uses(spans: Sequence[Span], names: Mapping[str, str]) -> ColumnDataSource:
    return ColumnDataSource(
        {
            "cpus": [span.run.used.get(CPU, 0.0) / span.run.ran for span in spans],
            "memory": [span.run.used[MEMORY] / 1e9 for span in spans],
            "size": [format_size(span.run.used[MEMORY]) for span in spans],
            "requested cpus": [float(span.run.requests.get(resources.CPU, 0.0)) for span in spans],
            "requested memory": [float(span.run.requests.get(resources.MEMORY, 0.0)) / 1e9 for span in spans],
            "colour": [state_for(span.run.end).colour for span in spans],
            "run": [formatting.short(span.run.run) for span in spans],
            "name": [names.get(span.run.run) or span.run.operation for span in spans],
            "requests": [format_amounts(span.run.requests) or "nothing" for span in spans],
        }
    )


def _hover_over_uses() -> HoverTool:
    rows = [
        ("run", "@run"),
        ("", "@name"),
        ("requested", "@requests"),
        ("CPUs used", "@cpus{0.00}"),
        ("memory", "@size"),
    ]
    return HoverTool(tooltips=rows)


def _against(source: ColumnDataSource, what: str, unit: str) -> Any:
    """Returns a chart of requested (x) against used (y) amounts; on the dashed line, both are equal."""
    chart = blank(300, x_axis_label=f"requested ({unit})", y_axis_label=f"used ({unit})")
    most = max(source.data[f"requested {what}"])
    chart.line([0, most], [0, most], color=TEXT, line_dash="dashed")
    chart.scatter(f"requested {what}", what, size=8, color="colour", alpha=0.7, source=source)
    chart.add_tools(_hover_over_uses())
    chart.x_range.start = chart.y_range.start = 0
    return chart


def _used(source: ColumnDataSource) -> Any:
    chart = blank(260, x_axis_label="CPUs used (mean)", y_axis_label="most memory used (GB)")
    chart.scatter("cpus", "memory", size=8, color="colour", alpha=0.7, source=source)
    chart.add_tools(_hover_over_uses())
    chart.x_range.start = chart.y_range.start = 0
    return chart
