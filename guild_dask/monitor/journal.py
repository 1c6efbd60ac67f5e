"""What happened in a scheduler's life, one line of JSON for each event, in the scheduler's run directory.

The lines are written as things happen, so that a scheduler that is killed leaves what it did. A reader takes the lines
that it understands and leaves the others.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

NAME = "events.jsonl"


class Journal:
    """The events of one scheduler, being written. One that cannot be written is no reason to stop."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None

    def note(self, event: str, at: float, facts: Mapping[str, Any]) -> None:
        """Adds an event, whole or not at all as far as other processes can see."""
        line = json.dumps({"event": event, "at": round(at, 3), **facts}) + "\n"
        with contextlib.suppress(OSError):
            if self._fd is None:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            os.write(self._fd, line.encode())

    def close(self) -> None:
        """Lets go of the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def read(path: str) -> list[dict[str, Any]]:
    """Returns the events in a file, or none if there is no such file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return list(events_in(f))
    except OSError:
        return []


def events_in(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields the events in lines; the last line of a scheduler that was killed may be half a one."""
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("event"), str) and _is_time(event.get("at")):
            yield event


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
