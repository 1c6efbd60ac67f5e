"""The report as one self-contained HTML file, with charts by Bokeh."""

import bisect
import html
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bokeh.embed import components
from bokeh.models import Range1d
from bokeh.resources import Resources

from guild_dask.home.outcome import End
from guild_dask.host import files
from guild_dask.monitor import formatting, results
from guild_dask.monitor.flag_columns import columns_for
from guild_dask.monitor.report import charts as drawing
from guild_dask.monitor.report import summary
from guild_dask.monitor.report.history import SLOTS, History, Span, Use
from guild_dask.monitor.report.run_facts import NO_FACTS, RunFacts
from guild_dask.monitor.report.search_sections import sections
from guild_dask.monitor.report.searches import ReportedSearch
from guild_dask.monitor.report.tables import LINE, Cell, dot, table
from guild_dask.monitor.run_states import STATES, WAITING, state_for
from guild_dask.plan.reasons import AnyReason

# The most runs in the charts, the latest ones: more would be illegible and make the page slow.
MOST_DRAWN = 5000

# The most rows of a table.
MOST_LISTED = 200

# The most scalars that have a column.
_MOST_SCALARS = 6

_STYLE = """
:root { --back: #fff; --text: #222; --soft: #5a5f6b; --line: #c4c8d0; color-scheme: light dark }
@media (prefers-color-scheme: dark) {
  :root { --back: #16181d; --text: #e4e6ea; --soft: #a3abb5; --line: #444b58 }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 1240px;
  margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em; margin-bottom: 0 } h2 { font-size: 1.15em; margin: 1.6em 0 0.4em }
.table { overflow: auto; max-height: 34em } table { border-collapse: collapse }
th, td { text-align: left; padding: 0.2em 1.2em 0.2em 0; vertical-align: top; white-space: nowrap }
th { font-weight: 600; position: sticky; top: 0; background: var(--back); box-shadow: inset 0 -1px var(--line) }
tr + tr td { border-top: 1px solid #8882 }
.number { text-align: right; font-variant-numeric: tabular-nums } .note { color: var(--soft); margin: 0.2em 0 }
.line, .text { white-space: normal; overflow-wrap: anywhere } .text { min-width: 8em }
.line { font-family: ui-monospace, monospace; font-size: 0.9em }
tr + tr.below td { border: 0; padding: 0 0 0.4em 1.2em }
.key span { margin-right: 1.2em; display: inline-block } .key b { font-weight: 400; color: var(--soft) }
.key i, td i { display: inline-block; width: 0.7em; height: 0.7em; border-radius: 50%; margin-right: 0.45em }
@media print { .table { max-height: none } }
/* In a narrow window, a row is a paragraph, and each cell says its column. */
@media (max-width: 700px) {
  .table { max-height: 80vh } table, tbody { display: block } th, td:empty { display: none }
  tr { display: block; padding: 0.3em 0 } tr + tr { border-top: 1px solid #8884 } tr + tr td { border: 0 }
  td { display: inline-block; white-space: normal; padding: 0 0.8em 0 0 } td:first-child { font-weight: 600 }
  td[data-name]::before { content: attr(data-name) " "; color: var(--soft) }
  tr + tr.below { border: 0; padding: 0 } .below td:first-child { font-weight: 400; padding: 0 }
}
"""


def write(text: str, path: str) -> None:
    """Writes the report to a file, atomically."""
    files.write(path, text, f"{os.path.basename(path)}.draft")


def page(
    history: History,
    names: Mapping[str, str],
    title: str,
    facts: Mapping[str, RunFacts] | None = None,
    searches: Sequence[ReportedSearch] = (),
) -> str:
    """Returns the report as HTML, with the text of runs escaped.

    `names` has the operation and label of runs for the charts, and `facts` what the tables say about single runs.
    """
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
    runs = _runs(whole, names, facts or {})
    search_script, search_lines = sections(searches)  # at last, since it waits for the importances
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(title)}</title>",
            f"<style>{_STYLE}</style>{code}{script}{search_script}</head><body>",
            *_head(whole, title, left_out),
            *search_lines,
            *runs,
            *_sections(charts, list(parts)),
            *table("Operations", summary.OPERATION_COLUMNS, _last_as_text(summary.operations(whole))),
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
    lines += summary.warm_starts(history)
    if left_out:
        lines.append(f"The charts show the last {len(history.spans) - left_out} runs.")
    order = list(STATES)
    ends = sorted(history.ends, key=lambda end: (order.index(end) if end in order else len(order), end))
    states = [(end, state_for(end)) for end in ends]
    key = "".join(
        f"<span>{dot(end)}{html.escape(state.text)} <b>{html.escape(state.meaning)}</b></span> "
        for end, state in states
    )
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


def _runs(history: History, names: Mapping[str, str], facts: Mapping[str, RunFacts]) -> list[str]:
    """Returns the tables of runs: failures first, then results, then others that did not complete."""
    failed = [span for span in history.unfinished if span.run.is_failure]
    others = [span for span in history.unfinished if not span.run.is_failure]
    completed = [span for span in history.spans if span.run.end == End.COMPLETED.value]
    left = dict(list(history.left.items())[:MOST_LISTED])
    operations = {
        span.run.run: span.run.operation for span in (*failed[:MOST_LISTED], *others[:MOST_LISTED], *completed)
    }
    identity = _Identity({**dict.fromkeys(left, ""), **operations}, names, facts)
    return [
        *([f'<p class="note">{html.escape(identity.note)}</p>'] if identity.note else []),
        *_unfinished("Failed runs", failed, identity, facts),
        *_results(completed, identity, facts),
        *_unfinished("Other attempts that did not complete", others, identity, facts),
        *_left(left, identity, len(history.left)),
    ]


def _last_as_text(rows: Sequence[Sequence[str]]) -> list[list[str | Cell]]:
    """Returns rows whose last cell is a text, which may take several lines."""
    return [[*row[:-1], Cell(row[-1], "text")] for row in rows]


class _Identity:
    """What tells runs apart: operation, label, and the flags that differ."""

    def __init__(self, operations: Mapping[str, str], names: Mapping[str, str], facts: Mapping[str, RunFacts]) -> None:
        """Takes the operation of each run as far as it is known without facts."""
        self._names = names
        self._facts = facts
        self._operations = {run: name or facts.get(run, NO_FACTS).operation for run, name in operations.items()}
        self._numbers = {run: number for number, run in enumerate(operations)}
        self._flags = columns_for([(name, facts.get(run, NO_FACTS).flags) for run, name in self._operations.items()])
        self.columns = ("run", "operation", "label", *self._flags.shared_names)
        self.note = self._flags.common_text

    def cells(self, run: str, state: str) -> list[str | Cell]:
        """Returns the cells of a run, with the colour of a state."""
        found, number = self._facts.get(run), self._numbers[run]
        # Without facts about the run, its name has the label and the flags.
        operation = self._operations[run] if found else self._names.get(run) or self._operations[run]
        flags = [self._flags.own[number].get(name, "") for name in self._flags.shared_names]
        return [
            Cell(formatting.short(run), state=state),
            operation,
            found.label if found else "",
            *flags,
        ]

    def rest(self, run: str) -> str:
        """Returns the flags of a run that have no column."""
        return self._flags.rest(self._numbers[run])


def _unfinished(title: str, spans: Sequence[Span], identity: _Identity, facts: Mapping[str, RunFacts]) -> list[str]:
    shown = spans[:MOST_LISTED]
    several = len({span.run.worker for span in shown}) > 1
    rows = [
        [
            *identity.cells(span.run.run, span.run.end),
            span.run.worker if several else "",
            str(span.run.attempt) if span.run.attempt > 1 else "",
            formatting.duration(span.run.ran),
            Cell(span.run.ending.text, "text"),
            identity.rest(span.run.run),
            Cell(facts.get(span.run.run, NO_FACTS).last_lines.get(span.run.attempt, ""), LINE),
        ]
        for span in shown
    ]
    columns = (*identity.columns, "worker", "attempt", "after", "end", "flags", "last line of output")
    return table(title, columns, rows, len(spans))


def _left(runs: Mapping[str, AnyReason | None], identity: _Identity, count: int) -> list[str]:
    rows = [
        [*identity.cells(run, WAITING), Cell(summary.why_left(why), "text"), identity.rest(run)]
        for run, why in runs.items()
    ]
    return table("Runs left staged", (*identity.columns, "why", "flags"), rows, count)


def _results(spans: Sequence[Span], identity: _Identity, facts: Mapping[str, RunFacts]) -> list[str]:
    found = [(span, facts.get(span.run.run, NO_FACTS).scalars) for span in spans]
    scalars = results.by_importance({name for _, values in found for name in values})
    ordered = results.best_first(found, scalars[0]) if scalars else found[::-1]
    shown = ordered[:MOST_LISTED]
    rows = [
        [
            *identity.cells(span.run.run, span.run.end),
            *(
                Cell(results.text_for(values[name]) if name in values else "", "number")
                for name in scalars[:_MOST_SCALARS]
            ),
            formatting.duration(span.run.ran),
            identity.rest(span.run.run),
        ]
        for span, values in shown
    ]
    order = f"{'highest' if results.is_high_good(scalars[0]) else 'lowest'} {scalars[0]} first" if scalars else ""
    columns = (*identity.columns, *scalars[:_MOST_SCALARS], "took", "flags")
    return table("Completed runs", columns, rows, len(spans), order)
