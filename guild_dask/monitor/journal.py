"""The events of a scheduler, one line of JSON each, in a file in its run directory.

Each event is written when it happens, so that a killed scheduler leaves a record. Readers skip unreadable lines.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from guild_dask.host import files

# The first event of each process that works for a scheduler: one that was killed, or stopped, may go on in another. It
# has the last heartbeat of a process that was killed, or 0.
BEGAN = "began"
LAST_HEARTBEAT = "last_heartbeat"

# Bytes that are read of a file and of a line. A run takes about one thousand; the longest line names all workers.
_MOST = 1 << 30
_LONGEST_LINE = 16 << 20


class Journal:
    """Writes the events of one scheduler. Events that cannot be written are lost; the scheduler continues."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None

    def note(self, event: str, at: float, facts: Mapping[str, Any]) -> None:
        """Appends an event with a single write, so that readers never see half of it."""
        line = json.dumps({"event": event, "at": round(at, 3), **facts}) + "\n"
        with contextlib.suppress(OSError):
            if self._fd is None:
                self._fd = files.open_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(self._fd, line.encode())

    def close(self) -> None:
        """Closes the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def read(path: str) -> list[dict[str, Any]]:
    """Returns the events in a file; none if the file cannot be read."""
    try:
        with files.opened(path) as f:
            return list(events_in(_lines(f)))
    except OSError:
        return []


def _lines(file: BinaryIO) -> Iterator[str]:
    """Yields the lines of a file up to a limit. A longer line is cut, and so becomes unreadable."""
    left = _MOST
    while left > 0 and (line := file.readline(_LONGEST_LINE)):
        left -= len(line)
        yield line.decode("utf-8", "replace")


def events_in(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields the events in lines; skips unreadable ones, such as the incomplete last line of a killed scheduler."""
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("event"), str) and _is_time(event.get("at")):
            yield event


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
