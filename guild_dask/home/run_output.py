"""The output of a run: of its last attempt, or of an earlier one."""

import os
import struct
from itertools import zip_longest

from guild_dask.home import layout
from guild_dask.host import files

# The bytes at the end of an output in which its last line is looked for.
_TAIL = 4096

# Guild's record of a line in the index: when it was read, in milliseconds, and from which stream.
_ENTRY = struct.Struct("!QB")
_ERRORS = 1

# Guild reads the two streams of a process in two threads: lines of so many milliseconds may be in any order.
_SAME_TIME = 1000


def path_for(run_dir: str, attempt: int | None = None) -> str:
    """Returns the file with the output of an attempt that was followed by others, or else that of the last one."""
    kept = "" if attempt is None else layout.attempt_output(run_dir, attempt)
    return kept if os.path.exists(kept) else layout.output(run_dir)


def last_line(path: str) -> str:
    """Returns the last line with text, as far as it is at the end of the file; empty if there is none.

    Of lines that were written at the same time, it is the last one on the error stream, which says why a run failed.
    """
    try:
        lines = [_shown(line) for line in files.tail(path, _TAIL).removesuffix(b"\n").split(b"\n")]
    except OSError:
        return ""
    entries = _entries(path, len(lines))
    found = [(line, entry) for line, entry in zip_longest(reversed(lines), reversed(entries)) if line]
    if not found:
        return ""
    last, written = found[0]
    since = written[0] - _SAME_TIME if written else 0
    errors = (line for line, entry in found if entry and entry[1] == _ERRORS and entry[0] >= since)
    return next(errors, last) if written else last


def _shown(line: bytes) -> str:
    """Returns what a terminal shows of a line that may have been redrawn."""
    texts = (text.strip() for text in reversed(line.decode(errors="replace").splitlines()))
    return next(filter(None, texts), "")


def _entries(path: str, most: int) -> list[tuple[int, int]]:
    """Returns the time and stream of each of the last lines of an output; none if the index does not fit."""
    try:
        data = files.tail(layout.index_of(path), most * _ENTRY.size)
    except OSError:
        return []
    return list(_ENTRY.iter_unpack(data)) if len(data) % _ENTRY.size == 0 else []
