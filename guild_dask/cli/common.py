"""Shared by the commands: the Guild home, the argument RUN, tables and JSON."""

import json
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

import click
from click.shell_completion import CompletionItem

from guild_dask.home import claims, layout, run_directory, run_queue, run_view
from guild_dask.home.liveness import Liveness, liveness
from guild_dask.home.lookup import names_of_runs
from guild_dask.home.run_view import NoSuchRun, RunView
from guild_dask.home.status import Status, status
from guild_dask.monitor import formatting

F = TypeVar("F", bound=Callable[..., Any])

# Width of wrapped text without a terminal, and the most in a very wide one.
WIDTH = 80
_WIDEST = 140


def home_path() -> str:
    """Returns the path of the Guild home that the user selected; it may not exist."""
    given = click.get_current_context().find_root().obj
    return str(given or run_queue.guild_home())


def is_home_named() -> bool:
    """Returns whether the user named the Guild home, with the option or the variable GUILD_HOME."""
    return bool(click.get_current_context().find_root().obj or os.environ.get("GUILD_HOME"))


def home() -> str:
    """Returns the Guild home that the user selected; exits with an error if there is no such folder."""
    path = home_path()
    if not os.path.isdir(path):
        problem = f"{path} is not a folder" if os.path.lexists(path) else f"there is no Guild home at {path}"
        fail(f"{problem}; set GUILD_HOME or use --guild-home")
    return path


# Fewer digits are a run's number in `guild runs`.
_LEAST_DIGITS = 4


def runs_dir() -> str:
    """Returns the runs directory of the Guild home."""
    return layout.runs_dir(home())


def run_for(text: str) -> RunView:
    """Returns the run with an id, the beginning of one, or a number of `guild runs`; exits with an error for others."""
    try:
        if text.isdigit() and len(text) < _LEAST_DIGITS and not os.path.isdir(layout.run_in(runs_dir(), text)):
            return as_claimed(run_view.numbered(runs_dir(), int(text)))
        return as_claimed(run_view.find(runs_dir(), text))
    except NoSuchRun as e:
        fail(str(e))


def as_claimed(run: RunView) -> RunView:
    """Returns a run as its claim has it: Guild's own records may be those of an earlier attempt."""
    return as_claimed_in(home(), run)


def as_claimed_in(path: str, run: RunView) -> RunView:
    """Returns a run of a Guild home as its claim has it; without one, with its status of now."""
    try:
        found = claims.present(layout.claims_folder(path), run.id)
        if found is None or liveness(found, run.dir) is Liveness.DEAD:
            return replace(run, status=status(run.dir))  # it may have been staged again since it was read
    except OSError:
        return run
    return replace(run, status=Status.RUNNING if found.is_started else Status.PENDING)


def fail(text: str) -> NoReturn:
    """Exits with an error message, which may name anything that is in the Guild home."""
    raise click.ClickException(formatting.escaped(text))


def json_option(function: F) -> F:
    """Adds the option --json to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")(function)


def run_argument(shows: Collection[Status] = (), **options: Any) -> Callable[[F], F]:
    """Adds the argument RUN to a command; a shell completes it with the runs of these statuses, or with all."""
    metavar = "RUN" if options.get("nargs") != -1 else "RUN..." if options.get("required") else "[RUN...]"
    return click.argument("run", metavar=metavar, shell_complete=_completer(shows), **options)


def completion_home(ctx: click.Context) -> str:
    """Returns the Guild home that a command line selects which a shell completes; no command has run yet."""
    return str(ctx.find_root().params.get("guild_home") or run_queue.guild_home())


# The most runs that a shell offers.
_MOST_OFFERED = 100


def _completer(shows: Collection[Status]) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        path = completion_home(ctx)
        found: list[CompletionItem] = []
        for name in sorted(names_of_runs(layout.runs_dir(path))):
            if name.startswith(incomplete) and len(found) < _MOST_OFFERED:
                run = as_claimed_in(path, run_view.view(layout.run_dir(path, name)))
                if (not shows or run.status in shows) and not (shows and run_directory.is_queue(run.dir)):
                    found.append(CompletionItem(name, help=formatting.one_line(f"{run.name} {run.status.value}")))
        return found

    return complete


def print_json(data: Any) -> None:
    """Prints data as JSON; what JSON does not have, such as a date among the flags, as text."""
    click.echo(json.dumps(_json_value(data), indent=2, allow_nan=False))


def _json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _json_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(each) for each in value]
    is_plain = value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))
    return value if is_plain else str(value)


def width() -> int:
    """Returns the width of wrapped text, in columns."""
    return min(_columns() or WIDTH, _WIDEST)


def _columns() -> int:
    """Returns the columns of the terminal, or of the variable COLUMNS; 0 without either."""
    return shutil.get_terminal_size((0, 0)).columns


def widest_table() -> float:
    """Returns the largest width of a table; unlimited in a file or a pipe, where nothing may be cut."""
    return width() if _columns() or sys.stdout.isatty() else math.inf


# A duration stays on one line: textwrap does not break at a non-breaking space.
_DURATION = re.compile(r"(?<=\d) (?=(?:s|min|h|d)\b)")
_NO_BREAK = "\u00a0"


def wrapped(text: str, less: int = 0) -> list[str]:
    """Returns text as lines that fit; words are not broken, because some are commands to type."""
    joined = _DURATION.sub(_NO_BREAK, formatting.one_line(text))
    lines = textwrap.wrap(joined, width() - less, break_on_hyphens=False, break_long_words=False)
    return [line.replace(_NO_BREAK, " ") for line in lines]


def is_coloured() -> bool:
    """Returns whether to print colours: on a terminal, unless NO_COLOR is set."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def heading(text: str) -> str:
    """Returns text in bold."""
    return click.style(text, bold=True)


# A column that is cut keeps this many letters in the first pass, and in the second.
_KEPT = 24
LEAST = 8


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    wide: Sequence[int],
    last: str = "",
) -> list[str]:
    """Returns the lines of a table that fits the terminal.

    If it is too wide, the columns with the indexes `wide` are cut, in that order. `last` is the last column's colour.
    """
    # The headings, too: some are names of flags and scalars.
    cells = [[formatting.one_line(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(formatting.width(row[number]) for row in cells) for number in range(len(columns))]
    spare = widest_table() - 2 * (len(columns) - 1) - sum(widths)
    for kept in (_KEPT, LEAST):
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
