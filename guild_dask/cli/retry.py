"""`guild-dask retry`: stages runs again that failed, or that were terminated."""

from collections.abc import Collection

import click

from guild_dask.cli import common, run_list
from guild_dask.cli.run_list import ListedRun
from guild_dask.home import control, run_queue
from guild_dask.home.errors import HomeUnavailable
from guild_dask.home.status import Status
from guild_dask.monitor import formatting, schedulers

# The most runs that are shown before the question.
_SHOWN = 40


@click.command("retry")
@common.run_argument(nargs=-1, shows=(Status.ERROR, Status.TERMINATED))
@click.option("--failed", is_flag=True, help="All runs that failed.")
@click.option("--terminated", is_flag=True, help="All runs that were terminated.")
@run_list.since_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@common.json_option
def command(  # noqa: PLR0913  # one for each option
    *, run: tuple[str, ...], failed: bool, terminated: bool, since: float | None, yes: bool, as_json: bool
) -> None:
    """Stage runs again, each in its own directory.

    Name runs, or choose all that a scheduler has run and that failed or were terminated. It shows them and asks.
    Earlier attempts and their output are kept: `guild-dask logs RUN --attempt N` shows them. Retries of a run
    (dask-retries:N) are counted anew.
    """
    if not (run or failed or terminated):
        common.fail("name runs, or use --failed or --terminated")
    if as_json and not yes:
        common.fail("--json does not ask; use it with --yes")
    statuses = [*([Status.ERROR] if failed else []), *([Status.TERMINATED] if terminated else [])]
    runs = _chosen(run, statuses, since)
    if not runs:
        if as_json:
            common.print_json([])
        else:
            click.echo(run_list.none_text("run of a scheduler", statuses, since is not None))
        return
    if not yes:
        click.echo("\n".join(run_list.table("RUN", runs[:_SHOWN])))
        if len(runs) > _SHOWN:
            click.echo(f"... and {len(runs) - _SHOWN} more")
        if not click.confirm(f"Stage {len(runs)} run(s) again?"):
            raise click.exceptions.Exit(1)
    _stage([each.run.id for each in runs], as_json)


def _chosen(named: tuple[str, ...], statuses: Collection[Status], since: float | None) -> list[ListedRun]:
    """Returns the named runs, and those with the given statuses that a scheduler has run; the first one first."""
    runs = [run_list.listed(common.run_for(each)) for each in dict.fromkeys(named)]
    if statuses:
        of_schedulers = (each for each in run_list.all_runs() if each.facts)
        runs += reversed(run_list.chosen(of_schedulers, statuses, since))
    return list({each.run.id: each for each in runs}.values())


def _stage(run_ids: list[str], as_json: bool) -> None:
    home = common.home()
    try:
        problems = run_queue.stage_ended(home, run_ids)
    except HomeUnavailable as e:
        common.fail(str(e))
    staged = [run_id for run_id in run_ids if run_id not in problems]
    for run_id in staged:
        try:
            control.report_changed(home, run_id)
        except OSError:
            break  # schedulers find them at their next poll
    if as_json:
        common.print_json([{"run": each, "staged": each in staged, "text": problems.get(each, "")} for each in run_ids])
    else:
        _show(staged, problems)
    if problems:
        raise click.exceptions.Exit(1)


def _show(staged: list[str], problems: dict[str, str]) -> None:
    for run_id, problem in problems.items():
        click.echo(f"Run {formatting.short(run_id)}: {problem}", err=True)
    if staged:
        hint = "" if schedulers.known_alive(common.home()) else " Start a scheduler: guild run dask:scheduler"
        click.echo(f"Staged {len(staged)} run(s) again.{hint}")
