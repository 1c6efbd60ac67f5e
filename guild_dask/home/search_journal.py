"""What a search has proposed and decided, in a file of its own run: one line of JSON for each event.

    {"event": "started", "at": T, "host": H, "pid": P, "objectives": TEXT}   the search began, or went on
    {"event": "proposed", "at": T, "trial": RUN, "number": N, "point": {}, "flags": {}}   before the trial's run is made
    {"event": "staged", "at": T, "trial": RUN}                               the run is complete, and was staged
    {"event": "pruning", "at": T, "trial": RUN, "started": T, "step": S}     before an attempt is asked to end
    {"event": "killed", "at": T, "trial": RUN, "started": T}                 before a killed trial is staged again
    {"event": "given-up", "at": T, "trial": RUN}                             it was killed too often, and has failed
    {"event": "ended", "at": T, "why": {"kind": NAME}}                       with the fields of `plan/search_ends.py`

A line is written before what it announces is done, and is on disk by then. So a search that was killed knows what it
may have left half done. A line that was cut short, by a crash or a full disk, announces nothing that was done.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from guild_dask.home import layout
from guild_dask.host import files
from guild_dask.plan.search_ends import SearchEnd, end_for_data


@dataclass(frozen=True)
class Proposal:
    """A trial that was proposed: its run id, its number, counted from 1, and the flags that the search chose."""

    trial: str
    number: int
    point: Mapping[str, Any]
    at: float  # seconds since 1970
    # All flags of its run, since a restart may change the others. None: they are no JSON, or another version wrote it.
    flags: Mapping[str, Any] | None = None


@dataclass
class SearchLog:
    """All that is on record."""

    proposals: dict[str, Proposal] = field(default_factory=dict)
    staged: set[str] = field(default_factory=set)
    # Attempts that were to be ended early, by the time when they started; None: any.
    pruning: dict[str, set[float | None]] = field(default_factory=dict)
    # Attempts that were killed since the search began last, likewise.
    kills: dict[str, set[float | None]] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    starts: list[float] = field(default_factory=list)  # when the search began, and went on
    objectives: str = ""  # as the search began last, each name with a sign of its own
    ended: SearchEnd | None = None  # why the search ended; None if it goes on, or was cut short

    def take(self, line: Mapping[str, Any]) -> None:
        """Takes in one event; raises KeyError, TypeError or ValueError if it is malformed."""
        event = line["event"]
        if event == "proposed":
            number, point, flags = int(line["number"]), dict(line["point"]), line.get("flags")
            of_run = None if flags is None else dict(flags)
            each = Proposal(str(line["trial"]), number, point, float(line["at"]), of_run)
            self.proposals[each.trial] = each
        elif event == "staged":
            self.staged.add(str(line["trial"]))
        elif event == "pruning":
            self.pruning.setdefault(str(line["trial"]), set()).add(_attempt(line))
        elif event == "killed":
            self.kills.setdefault(str(line["trial"]), set()).add(_attempt(line))
        elif event == "given-up":
            self.given_up.add(str(line["trial"]))
        elif event == "started":
            self.starts.append(float(line["at"]))
            self.kills.clear()
            self.objectives = str(line.get("objectives", self.objectives))
            self.ended = None
        elif event == "ended":
            self.ended = end_for_data(line["why"])


def _attempt(line: Mapping[str, Any]) -> float | None:
    started = line.get("started")
    return None if started is None else float(started)


def as_recorded(flags: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns flags if a line gives back the same ones; else None, as with a date or a name that is no text."""
    try:
        return flags if json.loads(json.dumps(flags)) == flags else None
    except (TypeError, ValueError, RecursionError):
        return None


def read(batch_dir: str) -> SearchLog:
    """Returns what is on record; raises OSError if it cannot be read. Without a file, there is nothing."""
    found = SearchLog()
    try:
        data = files.current(layout.search_journal(batch_dir), levels=2)
    except FileNotFoundError:
        return found
    for line in data.splitlines():
        try:
            found.take(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            continue  # it was cut short or damaged, or another version wrote it
    return found


def exists(batch_dir: str) -> bool:
    """Returns whether a run is a search that has begun."""
    return os.path.exists(layout.search_journal(batch_dir))


class SearchJournal:
    """The file of a search, for the search itself."""

    def __init__(self, batch_dir: str) -> None:
        """Reads what is on record; raises OSError."""
        self._path = layout.search_journal(batch_dir)
        self._batch_dir = batch_dir
        self._is_line_open = True  # the last line may have been cut short
        self._is_behind = False  # the file may have a line that could not be recorded completely
        self.log = read(batch_dir)

    def refresh(self) -> None:
        """Takes in what an event that could not be recorded has left in the file; raises OSError."""
        if self._is_behind:
            self.log = read(self._batch_dir)
            self._is_behind = False

    def add(self, event: str, **facts: Any) -> None:
        """Records an event, and returns when it is on disk.

        Raises OSError if the event may not be on record: refresh() tells whether it is.
        """
        line = {"event": event, "at": round(time.time(), 3), **facts}
        before, self._is_line_open = "\n" if self._is_line_open else "", True
        self._is_behind = True
        with files.opened(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as f:
            f.write(f"{before}{json.dumps(line)}\n".encode())
            f.flush()
            os.fsync(f.fileno())
        self._is_line_open = self._is_behind = False
        self.log.take(line)
