"""What a report says about single runs, read from their directories: labels, flags, results, and last lines."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from guild_dask.home import layout, run_directory, run_output, run_view
from guild_dask.home.outcome import End
from guild_dask.home.run_scalars import read_scalars
from guild_dask.monitor import formatting
from guild_dask.monitor.flag_columns import own_label
from guild_dask.monitor.report.history import Span

# The most runs that are read, those that were left staged, and the most bytes of the event files of each.
_MOST_RUNS = 500
_MOST_LEFT = 200
_MOST_BYTES = 1_000_000

# The most characters of a last line.
_LONGEST = 300


@dataclass(frozen=True)
class RunFacts:
    """One run, as far as it still exists."""

    operation: str = ""
    label: str = ""
    flags: Mapping[str, Any] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)  # of a completed run: the last values
    last_lines: Mapping[int, str] = field(default_factory=dict)  # of attempts that did not complete: the last of output


NO_FACTS = RunFacts()


def facts_of(runs_dir: str, spans: Iterable[Span], left: Iterable[str] = ()) -> dict[str, RunFacts]:
    """Returns the facts about the runs of the last spans, and about the first runs that were left staged, by run id."""
    attempts: dict[str, list[Span]] = {}
    for span in reversed(list(spans)):
        if span.run.run in attempts or len(attempts) < _MOST_RUNS:
            attempts.setdefault(span.run.run, []).append(span)
    for run in itertools.islice(left, _MOST_LEFT):
        attempts.setdefault(run, [])
    return {run: _facts(layout.run_in(runs_dir, run), each) for run, each in attempts.items()}


def _facts(run_dir: str, attempts: Iterable[Span]) -> RunFacts:
    ends = {span.run.attempt: span.run.end for span in attempts}
    view, flags = run_view.view(run_dir), run_view.flags(run_dir)
    is_completed = End.COMPLETED.value in ends.values()
    has_results = is_completed and not run_directory.has_trials(run_dir)
    found = read_scalars(run_dir, _MOST_BYTES) if has_results else {}
    return RunFacts(
        view.operation,
        own_label(view.label, view.tags, flags),
        flags,
        {name: scalar.last for name, scalar in found.items()},
        {number: _last_line(run_dir, number) for number, end in ends.items() if end != End.COMPLETED.value},
    )


def _last_line(run_dir: str, attempt: int) -> str:
    line = run_output.last_line(run_output.path_for(run_dir, attempt))
    return formatting.cut(formatting.one_line(line), _LONGEST)
