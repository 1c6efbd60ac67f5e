"""The events of a scheduler, one line of JSON each, in a file in its run directory.

Each event is written when it happens, so that a killed scheduler leaves a record. Readers skip unreadable lines.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

NAME = "events.jsonl"


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
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            os.write(self._fd, line.encode())

    def close(self) -> None:
        """Closes the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def read(path: str) -> list[dict[str, Any]]:
    """Returns the events in a file; none if the file cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return list(events_in(f))
    except OSError:
        return []


def events_in(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields the events in lines; skips unreadable ones, such as the incomplete last line of a killed scheduler."""
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("event"), str) and _is_time(event.get("at")):
            yield event


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
