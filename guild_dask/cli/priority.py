"""`guild-dask priority`: lets a waiting run start before others, or after them."""

import click

from guild_dask.cli import common
from guild_dask.home import run_directory
from guild_dask.monitor import formatting
from guild_dask.plan.tags import PRIORITY, demands_for_tags


@click.command("priority", context_settings={"ignore_unknown_options": True})
@common.run_argument()
@click.argument("number", metavar="N")
@common.json_option
def command(run: str, number: str, as_json: bool) -> None:
    """Let RUN start before those of a lower priority than N, a whole number; 0 is what runs have without one.

    It sets the tag dask-priority:N, as `guild tag` would. The scheduler takes it in at its next look, or, if more than
    1,000 runs wait, at one of the next.
    """
    found = common.run_for(run)
    tag = f"{PRIORITY}{number}"
    demands = demands_for_tags((tag,))
    if demands.unreadable:
        common.fail(f"{number!r} is no priority; give a whole number from -1000 to 1000")
    if found.status != "staged":
        common.fail(f"run {formatting.short(found.id)} does not wait: it is {found.status}")
    tags = sorted(
        {*(each for each in found.tags if not each.startswith(PRIORITY)), *([tag] if demands.priority else [])}
    )
    try:
        run_directory.write_tags(found.dir, tags)
    except OSError as e:
        common.fail(f"cannot tag run {formatting.short(found.id)}: {e.strerror or e}")
    if as_json:
        common.print_json({"run": found.id, "priority": demands.priority, "tags": tags})
    else:
        click.echo(f"Run {formatting.short(found.id)} has priority {demands.priority}")
