"""The charts of a search in a report, drawn by Bokeh."""

from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.models import ColumnDataSource, FactorRange, FixedTicker, HoverTool, Range1d
from bokeh.models.annotations import Label

from guild_dask.home.trials import TrialState
from guild_dask.monitor import formatting
from guild_dask.monitor.report.charts import TEXT, USED, blank, moment, show_times
from guild_dask.monitor.run_states import state_for
from guild_dask.monitor.search_results import Axis, Drawing, DrawnTrial

_COMPLETED = state_for("completed").colour
_RUNNING = state_for("running").colour
_PALE = 0.25

# Room above and below the axes of parallel coordinates, for their names and marks.
_MARGIN = 0.12


def charts_for(drawing: Drawing, shares: Mapping[str, float]) -> dict[str, Any]:
    """Returns the charts of a search by title; those without content are left out."""
    first = drawing.objectives[0]
    completed = [each for each in drawing.trials if _is_completed(each) and None not in each.values and each.ended]
    curves = [each for each in drawing.trials if len(each.curve) > 1]
    found: dict[str, Any] = {}
    if completed and len(drawing.objectives) > 1:
        found[f"Pareto set: {drawing.objectives[1]} against {first}"] = _pareto(drawing, completed)
    elif completed:
        found[f"Best {first} over time"] = _best_over_time(drawing, completed)
    if drawing.trials:
        found["Flags and results"] = _parallel(drawing)
    if curves:
        found[f"{first} by step; pruned trials are pale"] = _curves(curves, first)
    if shares:
        found["Importances of flags"] = _importances(shares)
    return found


def _is_completed(trial: DrawnTrial) -> bool:
    return trial.state == TrialState.COMPLETED.value


def _colour(trial: DrawnTrial) -> str:
    if trial.is_best:
        return USED
    if _is_completed(trial):
        return _COMPLETED
    return _RUNNING if trial.state == TrialState.RUNNING.value else TEXT


def _alpha(trial: DrawnTrial) -> float:
    """Returns how strong a line is: good trials stand out, and those that did not complete are pale."""
    if trial.is_best:
        return 1.0
    return 0.2 + 0.6 * trial.goodness**2 if _is_completed(trial) else _PALE


def _about(trials: Sequence[DrawnTrial]) -> dict[str, list[Any]]:
    """Returns the columns that the pointer shows. Bokeh escapes them."""
    return {
        "run": [formatting.short(each.run) for each in trials],
        "number": [each.number for each in trials],
        "state": [each.state for each in trials],
        "text": [each.text for each in trials],
        "colour": [_colour(each) for each in trials],
        "alpha": [_alpha(each) for each in trials],
        "width": [2.5 if each.is_best else 1.0 for each in trials],
        "size": [9 if each.is_best else 6 for each in trials],
    }


def _hover() -> HoverTool:
    return HoverTool(tooltips=[("trial", "@number"), ("run", "@run"), ("", "@state"), ("", "@text")])


def _best_over_time(drawing: Drawing, completed: Sequence[DrawnTrial]) -> Any:
    chart = blank(260, x_axis_type="datetime", y_axis_label=drawing.objectives[0])
    times = [moment(each.ended or 0.0) for each in completed]
    data = {**_about(completed), "at": times, "value": [each.values[0] for each in completed]}
    chart.scatter("at", "value", size="size", color="colour", alpha=0.6, source=ColumnDataSource(data))
    if drawing.best_so_far:
        at = [*(moment(each) for each, _ in drawing.best_so_far), max(times)]
        best = [value for _, value in drawing.best_so_far]
        chart.step(at, [*best, best[-1]], mode="after", color=USED, line_width=2)
    chart.add_tools(_hover())
    show_times(chart)
    return chart


def _pareto(drawing: Drawing, completed: Sequence[DrawnTrial]) -> Any:
    chart = blank(320, x_axis_label=drawing.objectives[0], y_axis_label=drawing.objectives[1])
    data = {
        **_about(completed),
        "x": [each.values[0] for each in completed],
        "y": [each.values[1] for each in completed],
    }
    chart.scatter("x", "y", size="size", color="colour", alpha=0.7, source=ColumnDataSource(data))
    chart.add_tools(_hover())
    return chart


def _parallel(drawing: Drawing) -> Any:
    """Returns parallel coordinates: a line for each trial, from axis to axis; the best ones are drawn last."""
    count = len(drawing.axes)
    across, along = Range1d(start=-0.15, end=count - 0.5), Range1d(start=-_MARGIN, end=1 + _MARGIN)
    chart = blank(320, x_range=across, y_range=along)
    ordered = sorted(drawing.trials, key=lambda each: (_is_completed(each), each.goodness))
    nan = float("nan")
    data = {
        **_about(ordered),
        "xs": [list(range(count)) for _ in ordered],
        "ys": [[nan if place is None else place for place in each.places] for each in ordered],
    }
    source = ColumnDataSource(data)
    chart.multi_line("xs", "ys", color="colour", alpha="alpha", line_width="width", source=source)
    chart.add_tools(_hover())
    chart.yaxis.visible = False
    chart.grid.grid_line_color = None
    chart.xaxis.ticker = FixedTicker(ticks=list(range(count)))
    chart.xaxis.major_label_overrides = {place: axis.name for place, axis in enumerate(drawing.axes)}
    for place, axis in enumerate(drawing.axes):
        chart.line([place, place], [0, 1], color=TEXT)
        _add_marks(chart, place, axis)
    return chart


def _add_marks(chart: Any, place: int, axis: Axis) -> None:
    last = -1.0
    for at, text in axis.marks:
        if at - last < 0.05:  # marks of many choices would overlap
            continue
        last = at
        label = Label(x=place, y=at, text=f" {formatting.cut(text, 16)} ", x_offset=4, y_offset=-6)
        # On a ground of its own, in a light and a dark window: all lines of a choice meet beside its name.
        label.text_color = "white"
        label.background_fill_color = TEXT
        label.background_fill_alpha = 0.85
        label.text_font_size = "12px"
        chart.add_layout(label)


def _curves(trials: Sequence[DrawnTrial], name: str) -> Any:
    chart = blank(320, x_axis_label="step", y_axis_label=name)
    ordered = sorted(trials, key=lambda each: (_is_completed(each), each.goodness))
    data = {
        **_about(ordered),
        "xs": [[step for step, _ in each.curve] for each in ordered],
        "ys": [[value for _, value in each.curve] for each in ordered],
    }
    source = ColumnDataSource(data)
    chart.multi_line("xs", "ys", color="colour", alpha="alpha", line_width="width", source=source)
    chart.add_tools(_hover())
    return chart


def _importances(shares: Mapping[str, float]) -> Any:
    names = list(shares)[::-1]
    chart = blank(60 + 26 * len(names), y_range=FactorRange(factors=names), x_axis_label="share")
    data = {"name": names, "share": [shares[name] for name in names]}
    chart.hbar(y="name", right="share", height=0.7, color=USED, line_color=None, source=ColumnDataSource(data))
    chart.x_range.start = 0
    return chart
