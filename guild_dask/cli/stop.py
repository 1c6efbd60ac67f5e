"""`guild-dask stop`: stops runs that a scheduler has started, on any host."""

import click

from guild_dask.cli import common
from guild_dask.home import claims, layout
from guild_dask.home.run_view import RunView
from guild_dask.home.status import Status
from guild_dask.host import processes
from guild_dask.monitor import formatting


class _CannotStop(Exception):
    """The run cannot be stopped by this command; the text is for the user."""


@click.command("stop")
@common.run_argument(nargs=-1, required=True, shows=(Status.RUNNING,))
@common.json_option
def command(run: tuple[str, ...], as_json: bool) -> None:
    """Stop runs that a scheduler has started, on any host.

    The operation and its child processes get SIGTERM, and SIGKILL ten seconds later if they are still running. The run
    ends as `terminated`, and the scheduler starts the next one.
    """
    home = common.home()
    results = [(found, *_result(home, found)) for found in [common.run_for(each) for each in dict.fromkeys(run)]]
    if as_json:
        common.print_json([{"run": found.id, "stopped": done, "text": text} for found, done, text in results])
    else:
        for found, done, text in results:
            click.echo(f"Run {formatting.short(found.id)}: {text}", err=not done)
    if not all(done for _, done, _ in results):
        raise click.exceptions.Exit(1)


def _result(home: str, run: RunView) -> tuple[bool, str]:
    """Returns whether a stop of the run was requested, and a message for the user."""
    if run.status is Status.STAGED:
        return False, "it has not started; 'guild runs delete' removes it from the queue"
    if run.status not in (Status.RUNNING, Status.PENDING):
        return False, f"it is not running ({run.status.value})"
    try:
        return True, _stop(home, run.id)
    except _CannotStop as e:
        return False, str(e)


def _stop(home: str, run_id: str) -> str:
    """Writes a stop request for a run and returns a message; raises _CannotStop."""
    folder = layout.claims_folder(home)
    found = next((each for each in claims.all_claims(folder) if each.run_id == run_id), None)
    if found is None or found.claim is None:
        raise _CannotStop("no scheduler has started it; use 'guild stop'")
    if not found.is_started:
        raise _CannotStop("it is about to start; try again in a moment")
    owner = found.claim.owner
    lives = processes.is_alive(owner)
    if lives is False:
        raise _CannotStop("the process that started it has died; the next scheduler recovers the run")
    try:
        claims.request_end(folder, run_id, owner)
    except OSError as e:
        raise _CannotStop(f"cannot write to the Guild home: {e.strerror or e}") from e
    return f"stop requested; it runs on {owner.host}" if lives is None else "stop requested"
