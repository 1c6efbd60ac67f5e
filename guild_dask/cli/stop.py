"""`guild-dask stop`: ends runs that a scheduler has started, on whichever host they are."""

import click

from guild_dask.cli import common, stopping
from guild_dask.home.run_view import RunView
from guild_dask.monitor import formatting


@click.command("stop")
@common.run_argument(nargs=-1, required=True)
@common.json_option
def command(run: tuple[str, ...], as_json: bool) -> None:
    """Stop runs that a scheduler has started.

    The operation is asked to end (SIGTERM), and all that it started after it; what is still there after ten seconds is
    killed. The run ends as `terminated`, and the scheduler goes on with the next one.
    """
    home = common.home()
    results = [(found, *_stop(home, found)) for found in [common.run_for(each) for each in dict.fromkeys(run)]]
    if as_json:
        common.print_json([{"run": found.id, "stopped": done, "text": text} for found, done, text in results])
    else:
        for found, done, text in results:
            click.echo(f"Run {formatting.short(found.id)}: {text}", err=not done)
    if not all(done for _, done, _ in results):
        raise click.exceptions.Exit(1)


def _stop(home: str, run: RunView) -> tuple[bool, str]:
    if run.status == "staged":
        return False, "it has not started; 'guild runs delete' takes it out of the queue"
    if run.status not in ("running", "pending"):
        return False, f"it is not running ({run.status})"
    try:
        return True, stopping.stop(home, run.id)
    except stopping.CannotStop as e:
        return False, str(e)
