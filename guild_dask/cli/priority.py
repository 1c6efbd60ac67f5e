"""`guild-dask priority`: changes the priority of a waiting run."""

import click

from guild_dask.cli import common
from guild_dask.home import control, run_directory
from guild_dask.home.status import Status
from guild_dask.monitor import formatting
from guild_dask.plan.tags import PRIORITY, requirements_for_tags


@click.command("priority", context_settings={"ignore_unknown_options": True})
@common.run_argument(shows=(Status.STAGED,))
@click.argument("number", metavar="N")
@common.json_option
def command(run: str, number: str, as_json: bool) -> None:
    """Set the priority of RUN to N, a whole number from -1000 to 1000.

    Runs with a higher priority start first; the default is 0. This sets the tag dask-priority:N, as `guild tag` does.
    Schedulers on this host apply it at once, others at their next poll.
    """
    found = common.run_for(run)
    tag = f"{PRIORITY}{number}"
    requirements = requirements_for_tags((tag,))
    if requirements.unreadable:
        common.fail(requirements.unreadable[0].problem)
    if found.status is not Status.STAGED:
        common.fail(f"run {formatting.short(found.id)} is not waiting: it is {found.status.value}")
    try:
        others = (str(each) for each in run_directory.tags(found.dir))
        tags = sorted(
            {*(each for each in others if not each.startswith(PRIORITY)), *([tag] if requirements.priority else [])}
        )
        run_directory.write_tags(found.dir, tags)
        control.report_changed(common.home(), found.id)
    except OSError as e:
        common.fail(f"cannot tag run {formatting.short(found.id)}: {e.strerror or e}")
    except run_directory.BrokenRun as e:
        common.fail(f"cannot tag run {formatting.short(found.id)}: {e}")
    if as_json:
        common.print_json({"run": found.id, "priority": requirements.priority, "tags": tags})
    else:
        click.echo(f"Run {formatting.short(found.id)} has priority {requirements.priority}")
