"""`guild-dask pause`, `resume` and `drain`: requests to schedulers at work."""

import click

from guild_dask.cli import common
from guild_dask.home import control
from guild_dask.home.control import Request
from guild_dask.monitor import formatting, schedulers


def _alive(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [each.id for each in schedulers.known_alive(common.completion_home(ctx)) if each.id.startswith(incomplete)]


_SCHEDULER = click.argument("scheduler", metavar="[SCHEDULER]", required=False, shell_complete=_alive)


@click.command("pause")
@_SCHEDULER
@common.json_option
def pause(scheduler: str | None, as_json: bool) -> None:
    """Start no more runs until `guild-dask resume`.

    Running runs continue. Without SCHEDULER, this pauses all schedulers of the Guild home, including those that are
    started later.
    """
    _ask("pause", scheduler, as_json)


@click.command("resume")
@_SCHEDULER
@common.json_option
def resume(scheduler: str | None, as_json: bool) -> None:
    """Start runs again, after `pause` or `drain`.

    Without SCHEDULER, this resumes all schedulers of the Guild home.
    """
    _ask("resume", scheduler, as_json)


@click.command("drain")
@_SCHEDULER
@common.json_option
def drain(scheduler: str | None, as_json: bool) -> None:
    """Start no more runs, and stop when the running ones have ended.

    Without SCHEDULER, this drains all schedulers at work on the Guild home.
    """
    _ask("drain", scheduler, as_json)


def _ask(request: Request, scheduler: str | None, as_json: bool) -> None:
    home = common.home()
    alive = [each.id for each in schedulers.known_alive(home)]
    chosen = _chosen(alive, scheduler) if scheduler else None
    if chosen and request == "resume" and control.is_paused(home):
        common.fail("all schedulers on this Guild home are paused; 'guild-dask resume' resumes all of them")
    try:
        control.send(home, chosen, request)
    except OSError as e:
        common.fail(f"cannot write to the Guild home: {e.strerror or e}")
    receivers = [chosen] if chosen else alive
    if as_json:
        common.print_json({"request": request, "schedulers": receivers, "all": chosen is None})
        return
    names = ", ".join(map(formatting.short, receivers))
    sent = f"Sent {request!r} to {len(receivers)} scheduler(s): {names}"
    click.echo(sent if receivers else _without_schedulers(request))


def _without_schedulers(request: Request) -> str:
    """Returns the message for a request while no scheduler is at work."""
    if request == "pause":
        return "No scheduler is at work; new ones will be paused until 'guild-dask resume'"
    if request == "resume":
        return "Schedulers are no longer paused; no scheduler is at work"
    return "No scheduler is at work"


def _chosen(alive: list[str], text: str) -> str:
    found = [each for each in alive if each.startswith(text)]
    if len(found) != 1:
        known = ", ".join(formatting.short(each) for each in alive) or "none"
        common.fail(f"{len(found)} schedulers at work begin with {text!r}; at work: {known}")
    return found[0]
