"""What the commands share: where the Guild home is, how a run is named, and how tables and JSON are printed."""

import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

import click
from click.shell_completion import CompletionItem

from guild_dask.home import layout, run_queue, run_view
from guild_dask.home.run_view import NoSuchRun, RunView
from guild_dask.monitor import formatting

F = TypeVar("F", bound=Callable[..., Any])

# Sentences without a terminal, and all with a very wide one, have lines of this many letters at most.
WIDTH = 80
_WIDEST = 140


def home_path() -> str:
    """Returns where the Guild home that the user means is, or is to be."""
    given = click.get_current_context().find_root().obj
    return str(given or run_queue.guild_home())


def is_home_named() -> bool:
    """Tells whether the user has named the Guild home, by the option or the variable."""
    return bool(click.get_current_context().find_root().obj or os.environ.get("GUILD_HOME"))


def home() -> str:
    """Returns the Guild home that the user means; ends the command where that is no folder."""
    path = home_path()
    if not os.path.isdir(path):
        fail(f"there is no Guild home at {path}; set GUILD_HOME, or give another with --guild-home")
    return path


# Fewer may be meant as the number that Guild shows beside a run, which is another with each look.
_LEAST_DIGITS = 4


def runs_dir() -> str:
    """Returns where the runs are."""
    return layout.runs_dir(home())


def run_for(text: str) -> RunView:
    """Returns the run that the user means; ends the command where there is none."""
    if text.isdigit() and len(text) < _LEAST_DIGITS:
        fail(f"numbers as in 'guild runs' do not work here: give more letters of the run's id than {text!r}")
    try:
        return run_view.find(runs_dir(), text)
    except NoSuchRun as e:
        fail(str(e))


def fail(text: str) -> NoReturn:
    """Ends the command with an error."""
    raise click.ClickException(text)


def json_option(function: F) -> F:
    """Gives a command the option --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")(function)


def run_argument(**options: Any) -> Callable[[F], F]:
    """Gives a command the argument RUN, which the shell can complete."""
    return click.argument(
        "run", metavar="RUN" if options.get("nargs") != -1 else "RUN...", shell_complete=_ids, **options
    )


def _ids(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    path = layout.runs_dir(str(ctx.find_root().params.get("guild_home") or run_queue.guild_home()))
    names = sorted(name for name in os.listdir(path) if name.startswith(incomplete)) if os.path.isdir(path) else []
    return [CompletionItem(name, help=_help(os.path.join(path, name))) for name in names[:100]]


def _help(run_dir: str) -> str:
    found = run_view.view(run_dir)
    return f"{found.operation} {found.status}"


def print_json(data: Any) -> None:
    """Prints data as JSON."""
    click.echo(json.dumps(data, indent=2))


def width() -> int:
    """Returns how many letters a line may have."""
    return min(_columns() or WIDTH, _WIDEST)


def _columns() -> int:
    """Returns how many columns there are to write in, by the variable COLUMNS or the terminal; 0 where nobody says."""
    return shutil.get_terminal_size((0, 0)).columns


def _widest_table() -> float:
    """Returns how wide a table may be. In a file or a pipe nothing is to be missing from it."""
    return width() if _columns() or sys.stdout.isatty() else math.inf


def wrapped(text: str, less: int = 0) -> list[str]:
    """Returns text of a run or a user in lines that fit, with no word broken: some are commands to type."""
    return textwrap.wrap(formatting.one_line(text), width() - less, break_on_hyphens=False, break_long_words=False)


def is_coloured() -> bool:
    """Tells whether a person sees what is printed, and wants colours."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def heading(text: str) -> str:
    """Returns a heading."""
    return click.style(text, bold=True)


# A column that gives way to others keeps so many letters, if it has them; the last one to do so, fewer.
_KEPT = 24
_LEAST = 8


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    wide: Sequence[int],
    last: str = "",
) -> list[str]:
    """Returns the lines of a table that fits the terminal; the columns with the numbers `wide` give way, in turn.

    A style for the last column can be given: a colour's name.
    """
    cells = [list(columns), *([formatting.one_line(cell) for cell in row] for row in rows)]
    widths = [max(formatting.width(row[number]) for row in cells) for number in range(len(columns))]
    spare = _widest_table() - 2 * (len(columns) - 1) - sum(widths)
    for kept in (_KEPT, _LEAST):
        for number in wide if spare < 0 else ():
            less = int(min(max(0, -spare), max(0, widths[number] - kept)))
            widths[number] -= less
            spare += less
    lines = []
    for number, row in enumerate(cells):
        texts = [formatting.padded(formatting.cut(cell, size), size) for cell, size in zip(row, widths, strict=True)]
        if last and number:
            texts[-1] = click.style(texts[-1].rstrip(), fg=last)
        line = "  ".join(texts).rstrip()
        lines.append(click.style(line, dim=True) if not number else line)
    return lines
