"""`guild-dask best`: the best trials of a search, and how a command finds the search that a user means."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from guild_dask.cli import common
from guild_dask.cli.run_table import table_of
from guild_dask.cli.status_tables import cut_short_text
from guild_dask.home import search_journal, trials
from guild_dask.home.run_scalars import shortest
from guild_dask.home.trials import RecordedSearch, Trial
from guild_dask.monitor import formatting, results, search_results, searches
from guild_dask.monitor.searches import PublishedSearch
from guild_dask.plan.objectives import BadObjective, text_for
from guild_dask.plan.search_ends import data_for_people

# The most trials that are shown without -n.
_SHOWN = 10


def _searches(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [batch for batch in searches.published(common.completion_home(ctx)) if batch.startswith(incomplete)]


def batch_argument(required: bool) -> Callable[[common.F], common.F]:
    """Adds the argument BATCH to a command; a shell completes it with searches."""
    metavar = "BATCH" if required else "[BATCH]"
    return click.argument("batch", metavar=metavar, required=required, shell_complete=_searches)


def found_search(batch: str | None, with_curves: bool = False) -> tuple[RecordedSearch, list[Trial]]:
    """Returns a search, the newest by default, with all its trials; exits with an error if there is none."""
    home = common.home()
    try:
        if batch is None:
            known = trials.batches(home)
            if not known:
                common.fail(
                    "there is no search on this Guild home: guild run OPERATION --optimizer dask:tpe starts one"
                )
            run_id = known[-1]
        else:
            run = common.run_for(batch)
            run_id = run.id if search_journal.exists(run.dir) else trials.batch_of(run.dir) or ""
            if not run_id:
                common.fail(f"run {formatting.short(run.id)} is neither a search that has begun nor a trial of one")
        search = trials.search(home, run_id)
        reader = trials.TrialReader(home, run_id, search.objectives, with_curves, is_view=True)
        return search, reader.read(search.log)
    except (OSError, BadObjective, ValueError) as e:
        common.fail(f"cannot read the search: {e}")


@click.command("best")
@batch_argument(required=False)
@click.option("-n", "--trials", "most", type=click.IntRange(min=1), default=_SHOWN, metavar="N", show_default=True,
              help="Show so many trials.")  # fmt: skip
@common.json_option
def command(batch: str | None, most: int, as_json: bool) -> None:
    """Show the best trials of a search, with their flags.

    With several objectives, these are the Pareto set: the trials that no other one beats in all objectives. BATCH is
    the run of a search, or of one of its trials; the default is the newest search.
    """
    search, found = found_search(batch)
    current = searches.with_trials(common.home(), search, found, time.time())
    best = search_results.best(found, search.objectives)
    if as_json:
        common.print_json(_data(search, current, best[:most]))
        return
    click.echo("\n".join(_lines(search, current, best, most)), color=common.is_coloured())


def _lines(search: RecordedSearch, current: PublishedSearch, best: Sequence[Trial], most: int) -> list[str]:
    title = (
        f"Search {formatting.short(search.batch)}: {search.optimizer} of {search.operation or 'a deleted operation'}"
    )
    lines = [common.heading(title), *common.wrapped(f"{text_for(search.objectives)}: {counts_text(current.summary)}")]
    if current.is_cut_short:
        lines += common.wrapped(f"The search was {cut_short_text(search.batch)}")
    if not best:
        return [*lines, "No trial has completed with a value yet."]
    shown = best[:most]
    names = list(dict.fromkeys(name for trial in shown for name in trial.point))
    columns = {
        "TRIAL": [formatting.short(trial.id) for trial in shown],
        "#": [str(trial.number) for trial in shown],
        **{str(each): [results.text_for((trial.values or ())[place]) for trial in shown]
           for place, each in enumerate(search.objectives)},
        **{_free(name, search): [_shown(trial, name) for trial in shown] for name in names},
        "TOOK": [formatting.duration(trial.ended - trial.started) if trial.ended and trial.started else "-"
                 for trial in shown],
    }  # fmt: skip
    lines += ["", *table_of(columns, spare=("TOOK", "#"))]
    if len(search.objectives) > 1:
        lines.append(f"Pareto set: {len(best)} trial(s) that no other one beats in all objectives")
    if len(best) > len(shown):
        lines.append(f"... and {len(best) - len(shown)} more; -n {len(best)} shows them")
    return lines


def _free(name: str, search: RecordedSearch) -> str:
    """Returns the title of a flag's column: a flag may be called as an objective or another column is."""
    taken = {"TRIAL", "#", "TOOK", *map(str, search.objectives)}
    return f"{name} (flag)" if name in taken else name


def _shown(trial: Trial, name: str) -> str:
    return search_results.short_value(trial.point[name]) if name in trial.point else "-"


def counts_text(summary: searches.Summary) -> str:
    """Returns how many trials ended how, of how many: `12 completed, 3 pruned, 4 running of 50 trials`."""
    parts = [f"{count} {name}" for name, count in summary.counts.items() if count or name == "completed"]
    return f"{', '.join(parts)} of {summary.max_trials} trials"


def _data(search: RecordedSearch, current: PublishedSearch, best: Sequence[Trial]) -> dict[str, Any]:
    return {
        "search": search.batch,
        "status": search.status.value,
        "optimizer": search.optimizer,
        "operation": search.operation,
        "objectives": [{"scalar": str(each), "direction": each.direction} for each in search.objectives],
        "max_trials": search.max_trials,
        "counts": dict(current.summary.counts),
        "ended": data_for_people(search.log.ended),
        "is_at_work": current.is_at_work,
        "is_cut_short": current.is_cut_short,
        "best": [
            {
                "run": trial.id,
                "number": trial.number,
                "values": [shortest(value) if math.isfinite(value) else str(value) for value in trial.values or ()],
                "flags": dict(trial.point),
                "started": trial.started,
                "ended": trial.ended,
            }
            for trial in best
        ],
    }
