"""`guild-dask logs`: the output of a run, of any attempt, also while it is written."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

import click

from guild_dask.cli import common
from guild_dask.home import attempts, run_output
from guild_dask.home.run_view import RunView
from guild_dask.home.status import Status
from guild_dask.host import files
from guild_dask.monitor import formatting

# Seconds between two polls of the output, and the bytes that are read at a time.
_PERIOD = 0.3
_PIECE = 1 << 16

_GOES_ON = (Status.RUNNING, Status.PENDING, Status.STAGED)


@click.command("logs")
@common.run_argument()
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended; wait for a run that is staged.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Begin with the last N lines.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Show an earlier attempt.")
@common.json_option
def command(run: str, follow: bool, lines: int | None, attempt: int | None, as_json: bool) -> None:
    """Show the output of RUN: of its last attempt, or of an earlier one."""
    found = common.run_for(run)
    past = [each.number for each in _past(found)]
    path = run_output.path_for(found.dir)
    if attempt is not None and attempt in past:
        path, follow = run_output.path_for(found.dir, attempt), False
    elif attempt is not None and attempt != max(past, default=0) + 1:
        known = ", ".join(map(str, (*past, max(past, default=0) + 1)))
        common.fail(f"run {formatting.short(found.id)} has no attempt {attempt}; there are {known}")
    if as_json:
        text = b"".join(_from(path, _start_of(path, lines))).decode(errors="replace")
        common.print_json(
            {"run": found.id, "attempt": attempt or max(past, default=0) + 1, "output": text, "past": past}
        )
        return
    if past and attempt is None:
        numbers = ", ".join(map(str, past))
        click.echo(f"Attempt {max(past) + 1}; --attempt N shows an earlier one ({numbers}).", err=True)
    _show(path, _start_of(path, lines), found if follow else None)
    if not follow and not os.path.exists(path):
        click.echo(f"Run {formatting.short(found.id)} is {found.status.value} and has no output.", err=True)


def _past(run: RunView) -> tuple[attempts.Attempt, ...]:
    try:
        return attempts.past(run.dir)
    except OSError:
        return ()


def _show(path: str, start: int, followed: RunView | None) -> None:
    """Prints the output from an offset on; of a run that is followed, until it has ended."""
    stop = threading.Event()
    # A shell starts background jobs with SIGINT ignored; kill -INT must work for them, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    offset = start
    known = len(_past(followed)) if followed else 0
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            goes_on = followed is not None and common.run_for(followed.id).status in _GOES_ON
            past = _past(followed) if followed else ()
            is_next = len(past) > known and _modified(path) > past[-1].ended
            if is_next or _size(path) < offset:
                known = len(past)
                click.echo("==> The next attempt has begun <==", err=True)
                offset = 0
            for piece in _from(path, offset):
                offset += len(piece)
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            if not goes_on:
                return
            stop.wait(_PERIOD)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _modified(path: str) -> float:
    try:
        return os.path.getmtime(path)
    except OSError:
        return 0.0


def _from(path: str, offset: int) -> Iterator[bytes]:
    """Yields the content of a file from an offset on; nothing if it is not there."""
    try:
        with files.opened(path) as f:
            f.seek(offset)
            while piece := f.read(_PIECE):
                yield piece
    except OSError:
        return


def _start_of(path: str, lines: int | None) -> int:
    """Returns where the last so many lines begin; 0 for all lines."""
    size = _size(path)
    if lines is None or not size:
        return 0
    offset, found = size, 0
    with contextlib.suppress(OSError), files.opened(path) as f:
        while offset > 0:
            begin = max(0, offset - _PIECE)
            f.seek(begin)
            piece = f.read(offset - begin)
            for at in range(len(piece) - 1, -1, -1):
                if piece[at] == ord("\n") and begin + at + 1 < size:
                    found += 1
                    if found == lines:
                        return begin + at + 1
            offset = begin
    return size if lines == 0 else 0
