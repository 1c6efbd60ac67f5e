"""Which runs are staged, found without reading more of the runs directory than can have changed.

A look goes through the names of all runs. New names and those known as staged are looked at every time; the others,
most of them long finished, take turns, so that a home with tens of thousands of runs costs little. Between looks, a
name that is known to have changed can be looked at alone.
"""

import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass

from guild_dask import rundir
from guild_dask.problems import HomeUnavailable
from guild_dask.rundir import BrokenRun, Staged

# How many runs that were not staged when last seen are looked at again in one look.
_TURN = 10_000

Signature = tuple[int, ...]


@dataclass(frozen=True)
class Listing:
    """The staged runs in the order in which they were staged, and the directories that cannot be read, with why."""

    staged: tuple[Staged, ...]
    broken: dict[str, str]


class RunsDirectory:
    """The names in the runs directory, and what is known of those that are staged."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._staged: dict[str, tuple[Signature, Staged | str]] = {}
        self._others: dict[str, None] = {}  # not staged when last seen, the longest ago first

    def look(self) -> Listing:
        """Returns the staged runs, after a look at all that can have changed."""
        names = set(self.names())
        for name in [name for name in self._staged if name not in names]:
            del self._staged[name]
        self._others = {name: None for name in self._others if name in names}
        turn = list(itertools.islice(self._others, _TURN))
        new = names.difference(self._others, self._staged)
        return self.look_at([*self._staged, *new, *turn])

    def look_at(self, names: Iterable[str]) -> Listing:
        """Returns the staged runs, after a look at those with the given names."""
        for name in list(names):
            self._look_at(name)
        staged = [entry for _, entry in self._staged.values() if isinstance(entry, Staged)]
        broken = {name: entry for name, (_, entry) in self._staged.items() if isinstance(entry, str)}
        return Listing(tuple(sorted(staged, key=lambda run: (run.since, run.id))), broken)

    def _look_at(self, name: str) -> None:
        run_dir = os.path.join(self.path, name)
        before = self._staged.pop(name, None)
        self._others.pop(name, None)
        try:
            if not rundir.is_staged(run_dir):
                self._others[name] = None
                return
            signature = rundir.signature(run_dir)
            # What could not be read may have been half written, and is tried again.
            is_known = before is not None and before[0] == signature and isinstance(before[1], Staged)
            self._staged[name] = before if before and is_known else (signature, _read(run_dir))
        except FileNotFoundError:
            self._others[name] = None  # it vanished, or started, while we looked
        except OSError as e:
            self._staged[name] = ((), f"it cannot be read: {e.strerror or e}")

    def forget(self, name: str) -> None:
        """Makes the next look treat the name as a new one."""
        self._staged.pop(name, None)
        self._others.pop(name, None)

    def is_unchanged(self, run: Staged) -> bool:
        """Tells whether a run is staged with the tags that it had when it was last looked at."""
        known = self._staged.get(run.id)
        try:
            return (
                known is not None
                and known[1] == run
                and rundir.is_staged(run.dir)
                and rundir.signature(run.dir) == known[0]
            )
        except OSError:
            return False

    def names(self) -> list[str]:
        """Returns the names of all run directories."""
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []
        except OSError as e:
            raise HomeUnavailable(f"cannot list {self.path}: {e.strerror or e}") from e


def _read(run_dir: str) -> Staged | str:
    try:
        return rundir.read_staged(run_dir)
    except BrokenRun as e:
        return str(e)
