"""`guild-dask`: the group of commands, each imported when it is used."""

import difflib
from collections.abc import Callable
from typing import Any

import click

from guild_dask import __version__


def _status() -> click.Command:
    from guild_dask.cli.status import command

    return command


def _explain() -> click.Command:
    from guild_dask.cli.explain import command

    return command


def _stop() -> click.Command:
    from guild_dask.cli.stop import command

    return command


def _pause() -> click.Command:
    from guild_dask.cli.control import pause

    return pause


def _resume() -> click.Command:
    from guild_dask.cli.control import resume

    return resume


def _drain() -> click.Command:
    from guild_dask.cli.control import drain

    return drain


def _priority() -> click.Command:
    from guild_dask.cli.priority import command

    return command


def _report() -> click.Command:
    from guild_dask.cli.report import command

    return command


def _doctor() -> click.Command:
    from guild_dask.cli.doctor.command import command

    return command


def _retry() -> click.Command:
    from guild_dask.cli.retry import command

    return command


def _logs() -> click.Command:
    from guild_dask.cli.logs import command

    return command


def _runs() -> click.Command:
    from guild_dask.cli.runs import command

    return command


def _best() -> click.Command:
    from guild_dask.cli.best import command

    return command


def _export_study() -> click.Command:
    from guild_dask.cli.export_study import command

    return command


def _completion() -> click.Command:
    from guild_dask.cli.completion import command

    return command


# Each command, and its line in `guild-dask --help`. A command is imported when it is used: `status` must not wait for
# the libraries that draw a report.
_COMMANDS: dict[str, tuple[Callable[[], click.Command], str]] = {
    "status": (_status, "Show schedulers, workers and runs."),
    "runs": (_runs, "Show runs with their labels, flags, scalars and results."),
    "logs": (_logs, "Show the output of a run, of any attempt."),
    "explain": (_explain, "Show why a run waits, and what would make it start."),
    "stop": (_stop, "Stop runs that a scheduler has started."),
    "retry": (_retry, "Stage runs again that failed or were terminated."),
    "pause": (_pause, "Start no more runs until `resume`."),
    "resume": (_resume, "Start runs again, after `pause` or `drain`."),
    "drain": (_drain, "Start no more runs, and stop when the running ones have ended."),
    "priority": (_priority, "Change the priority of a waiting run."),
    "best": (_best, "Show the best trials of a search."),
    "report": (_report, "Summarize what a scheduler did."),
    "export-study": (_export_study, "Write a search as a study of Optuna's."),
    "doctor": (_doctor, "Check for common problems, and name the remedy."),
    "completion": (_completion, "Print a completion script for a shell."),
}


class _Commands(click.Group):
    """The commands, by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _COMMANDS[cmd_name][0]() if cmd_name in _COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, Any]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"the commands are {', '.join(_COMMANDS)}"
            ctx.fail(f"there is no command {args[0]!r}; {hint}")


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="guild-dask")
@click.option("-H", "--guild-home", metavar="PATH", help="The Guild home to use. [default: that of `guild`]")
@click.pass_context
def main(ctx: click.Context, guild_home: str | None) -> None:
    """Monitor and control Dask schedulers for Guild runs.

    `guild run dask:scheduler` starts a scheduler. RUN is a run's id, the beginning of one, or its number in `guild
    runs`.
    """
    ctx.obj = guild_home


if __name__ == "__main__":
    main()
