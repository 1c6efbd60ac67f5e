"""`guild-dask runs`: runs with their labels, flags, scalars and results."""

import click

from guild_dask.cli import common, run_list
from guild_dask.home.status import Status

# The most runs that are shown without --all.
_SHOWN = 20


@click.command("runs")
@click.option("--failed", is_flag=True, help="Only runs that failed.")
@click.option("--terminated", is_flag=True, help="Only runs that were terminated.")
@click.option("--completed", is_flag=True, help="Only runs that completed.")
@click.option("--running", is_flag=True, help="Only runs that are running.")
@click.option("--staged", is_flag=True, help="Only runs that are staged.")
@run_list.since_option
@click.option("-a", "--all", "show_all", is_flag=True, help=f"Show all runs, not only the latest {_SHOWN}.")
@common.json_option
def command(  # noqa: PLR0913  # an option for each status
    *,
    failed: bool,
    terminated: bool,
    completed: bool,
    running: bool,
    staged: bool,
    since: float | None,
    show_all: bool,
    as_json: bool,
) -> None:
    """Show runs with their labels, flags, scalars and results, the latest first.

    Flags that all runs have in common are shown once, below the table. --json has all flags, scalars and attempts.
    """
    given = {
        Status.ERROR: failed,
        Status.TERMINATED: terminated,
        Status.COMPLETED: completed,
        Status.RUNNING: running,
        Status.STAGED: staged,
    }
    statuses = [status for status, is_wanted in given.items() if is_wanted]
    runs = run_list.chosen(run_list.all_runs(), statuses, since)
    shown = runs if show_all else runs[:_SHOWN]
    if as_json:
        common.print_json([run_list.data(run) for run in shown])
        return
    if not runs:
        click.echo(run_list.none_text("run", statuses, since is not None))
        return
    click.echo("\n".join(run_list.table("RUN", shown, has_scalars=True)))
    if len(runs) > len(shown):
        click.echo(f"... and {len(runs) - len(shown)} more; --all shows them")
