"""The journal that the runs of a round write, and what follows from it."""

import pathlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Line(NamedTuple):
    """One line that a process of a run wrote."""

    what: str  # start, runaway, beat, term, end
    run_id: str
    pid: int
    parent: int
    at: float

    def __str__(self) -> str:
        return f"{self.at:.3f} {self.what} {self.run_id} pid {self.pid} parent {self.parent}"


@dataclass
class Life:
    """All lines of one run."""

    run_id: str
    lines: list[Line] = field(default_factory=list)

    def of(self, what: str) -> list[Line]:
        return [line for line in self.lines if line.what == what]

    def spans(self) -> list[tuple[float, float]]:
        """Returns the time of each start, and the last time at which that process is known to have lived."""
        return [
            (start.at, max(line.at for line in self.lines if line.pid == start.pid and line.at >= start.at))
            for start in self.of("start")
        ]


class Peak(NamedTuple):
    """The most that was used at the same time, and by which runs."""

    amount: float
    at: float
    run_ids: tuple[str, ...]


def read(path: pathlib.Path) -> dict[str, Life]:
    """Returns the lines of each run that wrote any."""
    lives: dict[str, Life] = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        what, run_id, pid, parent, at = text.split()
        life = lives.setdefault(run_id, Life(run_id))
        life.lines.append(Line(what, run_id, int(pid), int(parent), float(at)))
    return lives


def peak(lives: Iterable[Life], amounts: Mapping[str, float]) -> Peak:
    """Returns the highest sum of the amounts of runs that lived at the same time.

    A run lives from its first line to its last one: it lived a little longer, but only this much is certain.
    """
    changes: list[tuple[float, bool, str]] = []
    for life in lives:
        # A run that was killed after its first line has no known duration.
        for begin, end in (span for span in life.spans() if span[0] < span[1]):
            # False sorts before True: an end and a start at the same time do not overlap.
            changes += [(begin, True, life.run_id), (end, False, life.run_id)]
    highest, in_use = Peak(0.0, 0.0, ()), list[str]()
    for at, is_start, run_id in sorted(changes):
        if is_start:
            in_use.append(run_id)
        elif run_id in in_use:
            in_use.remove(run_id)
        amount = sum(amounts.get(each, 0.0) for each in in_use)
        if amount > highest.amount:
            highest = Peak(amount, at, tuple(in_use))
    return highest
