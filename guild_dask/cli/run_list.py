"""Runs of a Guild home as the commands list them: chosen by result and time, with flags, labels and scalars."""

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from guild_dask.cli import common
from guild_dask.cli.run_table import table_of
from guild_dask.home import attempts, layout, run_directory, run_info, run_view, trials
from guild_dask.home.lookup import names_of_runs
from guild_dask.home.outcome import End, Ending
from guild_dask.home.run_scalars import read_scalars
from guild_dask.home.run_view import RunView
from guild_dask.home.status import ENDED, Status, end_for
from guild_dask.monitor import formatting, results
from guild_dask.monitor.flag_columns import columns_for, own_label
from guild_dask.plan.units import ACCEPTED_DURATIONS, duration_for_text

# The most bytes that are read of a run's event files, and the most scalars in a table.
_MOST_READ = 1_000_000
MOST_SCALARS = 3


@dataclass(frozen=True)
class ListedRun:
    """A run, with what a table or --json shows of it."""

    run: RunView
    flags: Mapping[str, Any]
    label: str
    changed: float  # when it was staged, started or ended last, in seconds since the epoch
    facts: Mapping[str, Any]  # where a scheduler ran it, and how it ended
    exit_status: int | None
    has_trials: bool = False  # it is a batch or a search

    @property
    def how(self) -> str:
        """Returns how a run ended; empty if it completed, or has not ended."""
        end = end_for(self.run.status, self.facts)
        if end not in (End.FAILED, End.TERMINATED):
            return ""
        cause, excess = run_info.cause_in(self.facts)
        ending = Ending(end.value, self.exit_status, cause, excess)
        return trials.with_search(ending, self.run.dir).how or "its process died"


def listed(run: RunView) -> ListedRun:
    """Returns a run with its flags, its label and how it ended."""
    flags = run_view.flags(run.dir)
    facts = run_directory.known_attribute(run.dir, run_info.NAME)
    has_ended = run.status in ENDED
    times = [run_directory.recorded_seconds(run.dir, name) for name in (*(["stopped"] if has_ended else []), "started")]
    changed = next((each for each in times if each is not None), 0.0)
    label = own_label(run.label, run.tags, flags)
    status = run_directory.exit_status(run.dir) if has_ended else None
    return ListedRun(
        run, flags, label, changed, facts if isinstance(facts, dict) else {}, status, run_directory.has_trials(run.dir)
    )


def all_runs() -> Iterable[ListedRun]:
    """Yields all runs of the Guild home but schedulers and queues."""
    folder = common.runs_dir()
    for name in names_of_runs(folder):
        run_dir = layout.run_in(folder, name)
        if os.path.isdir(layout.guild_dir(run_dir)) and not run_directory.is_queue(run_dir):
            yield listed(common.as_claimed(run_view.view(run_dir)))


def since_option(function: common.F) -> common.F:
    """Adds the option --since to a command."""
    text = "Only runs that changed in that time, such as 12h or 2d."
    return click.option("--since", metavar="TIME", help=text, callback=_seconds)(function)


def _seconds(_ctx: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    seconds = duration_for_text(text)
    if seconds is None:
        raise click.BadParameter(f"{text!r} is not a time; use {ACCEPTED_DURATIONS}")
    return seconds


def chosen(runs: Iterable[ListedRun], statuses: Collection[Status], since: float | None) -> list[ListedRun]:
    """Returns the runs with one of the statuses, or with any if none is given, the latest first."""
    after = 0.0 if since is None else time.time() - since
    found = (each for each in runs if (not statuses or each.run.status in statuses) and each.changed >= after)
    return sorted(found, key=lambda each: (-each.changed, each.run.id))


def none_text(subject: str, statuses: Collection[Status], is_since: bool) -> str:
    """Returns, as a sentence, that there is no run like those that were asked for: `No run has failed.`."""
    if not statuses and not is_since:
        return f"There are no {subject}s."
    what = " or ".join(_ARE[status] for status in statuses) or "has changed"
    return f"No {subject} {what}{' in that time' if is_since else ''}."


_ARE = {
    Status.ERROR: "has failed",
    Status.TERMINATED: "was terminated",
    Status.COMPLETED: "has completed",
    Status.RUNNING: "is running",
    Status.STAGED: "is staged",
}


def scalars_of(run: ListedRun) -> dict[str, float]:
    """Returns the last values of a run's scalars; none for a run that is staged again, whose scalars are old."""
    return {} if run.run.status in (Status.STAGED, Status.PENDING) else _last_scalars(run.run.dir)


def _last_scalars(run_dir: str) -> dict[str, float]:
    return {name: scalar.last for name, scalar in read_scalars(run_dir, _MOST_READ).items()}


def results_in(run_dir: str) -> dict[str, float]:
    """Returns the last values of the scalars in a run directory; none of a batch or a search, which has no results."""
    return {} if run_directory.has_trials(run_dir) else _last_scalars(run_dir)


def table(title: str, runs: Sequence[ListedRun], has_scalars: bool = False) -> list[str]:
    """Returns the lines of a table of runs: what tells them apart, their results, and how they ended."""
    columns = columns_for([(each.run.operation, each.flags) for each in runs])
    scalars = [scalars_of(each) if has_scalars and not each.has_trials else {} for each in runs]
    shown, spare = results.columns_for(scalars, MOST_SCALARS)
    is_one_operation = len(columns.common) == 1 and len(runs) > 1
    now = time.time()
    headings = {
        title: [formatting.short(each.run.id) for each in runs],
        "OPERATION": ["" if is_one_operation else each.run.operation for each in runs],
        "LABEL": [each.label for each in runs],
        "FLAGS": [columns.text(number) for number in range(len(runs))],
        "STATUS": [each.run.status.value for each in runs],
        **{name: [results.text_for(each.get(name)) for each in scalars] for name in shown},
        "WHEN": [f"{formatting.duration(now - each.changed)} ago" if each.changed else "-" for each in runs],
        "HOW": [each.how for each in runs],
    }
    lines = table_of(headings, columns.own, beneath=("HOW",), spare=spare[::-1])
    texts = [f"All are runs of {runs[0].run.operation}" if is_one_operation else "", columns.common_text]
    return lines + common.wrapped(": ".join(text for text in texts if text))


def details(home: str, run_id: str) -> dict[str, Any]:
    """Returns what --json of other commands has of a run: nothing if the run was deleted."""
    run_dir = layout.run_dir(home, run_id)
    if not os.path.isdir(run_dir):
        return {}
    found = data(listed(run_view.view(run_dir)))
    return {name: found[name] for name in ("label", "flags", "tags", "scalars", "attempts")}


def data(run: ListedRun) -> dict[str, Any]:
    """Returns a run as data for --json."""
    try:
        past = attempts.past(run.run.dir)
    except OSError:
        past = ()
    return {
        "run": run.run.id,
        "operation": run.run.operation,
        "status": run.run.status.value,
        "label": run.label,
        "flags": dict(run.flags),
        "tags": list(run.run.tags),
        "scalars": scalars_of(run),
        "changed": run.changed,
        "exit_status": run.exit_status,
        "how": run.how,
        "attempts": [
            {
                "number": each.number,
                "cause": each.cause.value if each.cause else None,
                "exit_status": each.exit_status,
                "host": each.host,
                "ended": each.ended,
            }
            for each in past
        ],
    }
