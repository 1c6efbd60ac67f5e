"""Runs as they are shown to users, read from their directories without loading more of Guild than needed."""

import os
from dataclasses import dataclass
from typing import Any

from guild_dask.home import layout, run_directory
from guild_dask.home.lookup import names_of_runs
from guild_dask.home.status import Status, known_status
from guild_dask.plan.tags import PREFIX


@dataclass(frozen=True)
class RunView:
    """A run: its operation, its status and its tags."""

    id: str
    dir: str
    status: Status
    operation: str
    label: str
    tags: tuple[str, ...]

    @property
    def name(self) -> str:
        """Returns the operation with the label, without our tags in the label: they are shown elsewhere."""
        label = self.label
        for tag in self.tags:
            if tag.startswith(PREFIX):
                label = label.replace(tag, "", 1)
        return " ".join(f"{self.operation} {label}".split())


class NoSuchRun(Exception):
    """An id means no run, or more than one; the text is for the user."""


def view(run_dir: str) -> RunView:
    """Returns a run; unreadable attributes are empty."""
    return RunView(
        layout.run_id(run_dir),
        run_dir,
        known_status(run_dir),
        run_directory.operation(run_dir),
        str(run_directory.known_attribute(run_dir, "label") or ""),
        tags(run_dir),
    )


def tags(run_dir: str) -> tuple[str, ...]:
    """Returns the run's tags."""
    found = run_directory.known_attribute(run_dir, "tags")
    return tuple(str(tag) for tag in found) if isinstance(found, list) else ()


def flags(run_dir: str) -> dict[str, Any]:
    """Returns the run's flags."""
    found = run_directory.known_attribute(run_dir, "flags")
    return {str(name): value for name, value in found.items()} if isinstance(found, dict) else {}


def numbered(runs_dir: str, number: int) -> RunView:
    """Returns the run with that number in `guild runs`: 1 is the latest; raises NoSuchRun."""
    times = ((_time(layout.run_in(runs_dir, name)), name) for name in names_of_runs(runs_dir))
    found = sorted(((time, name) for time, name in times if time is not None), reverse=True)
    if not 0 < number <= len(found):
        raise NoSuchRun(f"there is no run number {number}; 'guild runs' shows numbers and ids of runs")
    return view(layout.run_in(runs_dir, found[number - 1][1]))


def _time(run_dir: str) -> int | None:
    """Returns the time by which Guild orders runs; None for what is no run."""
    if not os.path.exists(layout.opref(run_dir)):
        return None
    times = (run_directory.known_attribute(run_dir, name) for name in ("started", "initialized"))
    return next((time for time in times if isinstance(time, int)), 0)


def find(runs_dir: str, text: str) -> RunView:
    """Returns the run that has that id or begins with it; raises NoSuchRun."""
    if text and os.path.isdir(layout.run_in(runs_dir, text)) and os.sep not in text and text not in (".", ".."):
        return view(layout.run_in(runs_dir, text))
    names = sorted(name for name in names_of_runs(runs_dir) if text and name.startswith(text))
    if not names:
        raise NoSuchRun(f"there is no run {text!r}; 'guild runs' shows ids of runs, and a unique prefix is enough")
    if len(names) > 1:
        is_short_enough = len({name[:8] for name in names}) == len(names)
        several = ", ".join(_escaped(name[:8] if is_short_enough else name) for name in names[:5])
        raise NoSuchRun(f"{len(names)} runs begin with {text!r} ({several}...); give more letters of the id")
    return view(layout.run_in(runs_dir, names[0]))


def _escaped(name: str) -> str:
    return repr(name)[1:-1]


def count_staged(runs_dir: str) -> int:
    """Returns how many runs are in the queue: staged, and no schedulers. Fast, with many thousands of runs, too."""
    # No path objects here: this takes most of the time of a status without a scheduler.
    return sum(_is_in_queue(layout.run_in(runs_dir, name)) for name in names_of_runs(runs_dir))


def _is_in_queue(run_dir: str) -> bool:
    try:
        return run_directory.seems_staged(run_dir) and not run_directory.is_queue(run_dir)
    except OSError:
        return False
