"""The scalars of the runs that a browser shows: values for the columns, and points for small curves."""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from guild_dask.home import run_directory
from guild_dask.home.run_scalars import Scalar, ScalarReader
from guild_dask.monitor.results import by_importance, is_high_good

# The most runs whose curves are kept, the most that one request reads, and the seconds that it may take.
_MOST_KEPT = 500
_MOST_ASKED = 100
_SECONDS = 0.5

# The most names of scalars that the page offers as columns.
_MOST_NAMES = 200


class ScalarCells:
    """Reads what browsers ask for. Threads that serve the page call it, one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: OrderedDict[str, ScalarReader] = OrderedDict()  # the last used is the last
        self._names: set[str] = set()

    def data(self, run_dirs: Sequence[tuple[str, str]], curve: str) -> dict[str, Any]:
        """Returns the scalars of runs, given as id and directory, and the curve of one scalar, or of the first.

        Runs for which there was no time are left out, and `partial` lists those of which more is to be read: the page
        asks for both again.
        """
        end = time.monotonic() + _SECONDS
        values: dict[str, Any] = {}
        partial = []
        with self._lock:
            for run, run_dir in run_dirs[:_MOST_ASKED]:
                if values and time.monotonic() > end:
                    break
                if run_directory.has_trials(run_dir):
                    values[run] = _cells({}, curve)  # those of a search are no results of its trials
                    continue
                reader = self._reader(run, run_dir)
                if reader.update():
                    partial.append(run)
                values[run] = _cells(reader.scalars, curve)
                self._names.update(list(reader.scalars)[: _MOST_NAMES - len(self._names)])
            names = [{"name": name, "high": is_high_good(name)} for name in by_importance(self._names)]
        return {"runs": values, "names": names, "partial": partial}

    def _reader(self, run: str, run_dir: str) -> ScalarReader:
        reader = self._readers.setdefault(run, ScalarReader(run_dir))
        self._readers.move_to_end(run)
        if len(self._readers) > _MOST_KEPT:
            self._readers.popitem(last=False)
        return reader


def _cells(scalars: dict[str, Scalar], curve: str) -> dict[str, Any]:
    shown = curve if curve in scalars else next(iter(by_importance(scalars)), "")
    return {
        "values": {name: _number(scalar.last) for name, scalar in scalars.items()},
        "step": max((scalar.step for scalar in scalars.values()), default=0),
        "curve": [_number(value) for value in scalars[shown].points] if shown else [],
        "curve_of": shown,
    }


def _number(value: float) -> float | None:
    """Returns a number as JSON can have it: in the precision of event files, and none that is infinite."""
    return float(f"{value:.7g}") if math.isfinite(value) else None
