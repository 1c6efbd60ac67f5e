"""`guild-dask report`: what a scheduler did."""

import os

import click

from guild_dask.cli import common
from guild_dask.monitor import formatting, journal
from guild_dask.monitor.report import files, summary
from guild_dask.monitor.report.history import History
from guild_dask.monitor.state import as_data

# The most rows of a table; the JSON has all of them.
_SHOWN = 20


@click.command("report")
@click.argument("run", metavar="[SCHEDULER]", required=False)
@click.option("--html", "html_file", metavar="FILE", help="Write a self-contained page with charts to FILE.")
@common.json_option
def command(run: str | None, html_file: str | None, as_json: bool) -> None:
    """Summarize what a scheduler did.

    SCHEDULER is the id of a scheduler's run, or the beginning of one; the default is the latest. The page shows runs on
    workers, the use of slots and resources over time, waiting times, and what runs used. A scheduler writes it to its
    run directory when it ends.
    """
    run_dir = common.run_for(run).dir if run else _latest()
    history = files.history_of(run_dir)
    if history is None:
        common.fail(f"run {formatting.short(os.path.basename(run_dir))} is not a run of a scheduler, or has no events")
    if html_file:
        _write(run_dir, html_file)
    elif as_json:
        common.print_json(_data(run_dir, history))
    else:
        click.echo("\n".join(_lines(run_dir, history)))


def _latest() -> str:
    folder = common.runs_dir()
    names = os.listdir(folder) if os.path.isdir(folder) else []
    journals = [path for name in names if os.path.exists(path := os.path.join(folder, name, journal.NAME))]
    if not journals:
        common.fail("no scheduler has worked on this Guild home yet, or its run was deleted")
    return os.path.dirname(max(journals, key=os.path.getmtime))


def _write(run_dir: str, html_file: str) -> None:
    try:
        files.write_report(run_dir, html_file)
    except OSError as e:
        common.fail(f"cannot write {html_file}: {e.strerror or e}")
    click.echo(f"Wrote {html_file}")


def _lines(run_dir: str, history: History) -> list[str]:
    lines = [common.heading(f"Scheduler {formatting.short(os.path.basename(run_dir))}")]
    lines += [summary.headline(history), summary.waiting(history), *summary.uses(history)]
    rows = summary.operations(history)
    if rows:
        lines += ["", *common.table([name.upper() for name in summary.OPERATION_COLUMNS], rows, wide=(0, 6, 5))]
    names = files.names_of(os.path.dirname(run_dir), history.unfinished[:_SHOWN])
    for columns, rows, count, wide in (
        (summary.UNFINISHED_COLUMNS, summary.unfinished(history, names, _SHOWN), len(history.unfinished), (1, 2, 5)),
        (summary.LEFT_COLUMNS, summary.left(history, _SHOWN), len(history.left), (1,)),
    ):
        lines += ["", *common.table([name.upper() for name in columns], rows, wide=wide)] if rows else []
        lines += [f"... and {count - _SHOWN} more"] if count > _SHOWN else []
    return lines


def _data(run_dir: str, history: History) -> dict[str, object]:
    return {
        "scheduler": os.path.basename(run_dir),
        "started": history.start,
        "stopped": history.stop if history.is_over else None,
        "killed": history.is_killed,
        "ends": dict(history.ends),
        "mean_use": {use.name: round(use.mean_share, 4) for use in history.uses},
        "left_staged": {run: str(why or "") for run, why in history.left.items()},
        "runs": [as_data(span.run, for_people=True) for span in history.spans],
    }
