"""`guild-dask doctor`: checks for common problems, and names the remedy."""

from collections.abc import Iterator

import click

from guild_dask.cli import common
from guild_dask.cli.doctor.finding import Finding, Level, bad, good, note
from guild_dask.monitor import formatting, schedulers

_COLOURS = {Level.GOOD: "green", Level.NOTE: "yellow", Level.BAD: "red"}


@click.command("doctor")
@common.json_option
def command(as_json: bool) -> None:
    """Check for common problems, and name the remedy.

    Checks versions, the plugin, the mends of Guild, the Guild home (permissions, lock, clock, free space, shared file
    system), Dask's configuration, the dashboard's port, job queues, and workers of schedulers at work. The exit code
    is 1 if there is a problem.
    """
    found = []
    for finding in _findings(common.home_path(), common.is_home_named()):
        found.append(finding)
        if not as_json:
            click.echo("\n".join(_lines(finding)), color=common.is_coloured())
    if as_json:
        common.print_json([{"what": f.what, "level": f.level.value, "text": f.text, "remedy": f.remedy} for f in found])
    if any(finding.level is Level.BAD for finding in found):
        raise click.exceptions.Exit(1)


def _findings(home: str, is_home_named: bool) -> Iterator[Finding]:
    from guild_dask.cli.doctor import cluster, installation
    from guild_dask.cli.doctor import home as guild_home

    yield from installation.findings()
    yield from guild_home.findings(home, is_home_named)
    yield from cluster.findings()
    alive = schedulers.known_alive(home)
    names = ", ".join(f"{formatting.short(each.id)} on {each.process.host}" for each in alive)
    for each in alive:
        for trouble in each.state.troubles if each.state else ():
            yield bad("workers", f"scheduler {formatting.short(each.id)}: {trouble.problem}", trouble.remedy)
    yield good("schedulers", f"at work: {names}") if alive else note("schedulers", "none is at work")


def _lines(finding: Finding) -> list[str]:
    level = click.style(f"{finding.level.value:8}", fg=_COLOURS[finding.level])
    first, *rest = common.wrapped(finding.text, 25) or [""]
    lines = [f"{level} {finding.what:14}  {first}", *(f"{'':25}{line}" for line in rest)]
    wrapped = common.wrapped(finding.remedy, 28)
    return lines + [f"{'':25}{'-> ' if not number else '   '}{line}" for number, line in enumerate(wrapped)]
