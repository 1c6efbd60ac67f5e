"""The searches that a browser shows: what they have found, and what their charts draw."""

import math
import threading
import time
import zlib
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any

from guild_dask.home import search_journal, trials
from guild_dask.home.layout import run_dir
from guild_dask.home.trials import RecordedSearch, TrialReader
from guild_dask.monitor import search_results, searches
from guild_dask.monitor.importances import CommandFor, ImportanceEvaluator
from guild_dask.monitor.searches import PublishedSearch

# The most searches whose trials are kept, and the seconds that one request may read.
_MOST_KEPT = 3
_SECONDS = 0.5

# Seconds for which what was read counts as new: several browsers may have the page open.
_FRESH = 1.0


@dataclass
class _Known:
    """A search whose trials are read again and again, since it began last."""

    start: tuple[float, str]  # when that was, and with which objectives
    search: RecordedSearch
    reader: TrialReader
    at: float = float("-inf")
    data: dict[str, Any] | None = None


class SearchCells:
    """Reads what browsers ask for. Threads that serve the page call it, one at a time."""

    def __init__(self, home: str, evaluation: CommandFor) -> None:
        """Reads a Guild home; `evaluation` is the command that evaluates importances."""
        self._home = home
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()  # the last used is the last
        self._evaluator = ImportanceEvaluator(home, evaluation)

    def data(self, batch: str, known: str) -> dict[str, Any]:
        """Returns all searches in a few words, and one with its charts; the latest, if `batch` is none of them.

        The charts are left out if they are still those that the browser has, by its `known` stamp.
        """
        with self._lock:
            found = searches.shown(self._home, time.time())
            listed = [_words(each) for each in found]
            chosen = next((each for each in found if each.summary.batch == batch), found[0] if found else None)
            charts = self._charts(chosen) if chosen else None
        if charts and charts["stamp"] == known:
            charts = {"stamp": known, "batch": charts["batch"], "same": True}
        return {"searches": listed, "search": charts}

    def close(self) -> None:
        """Ends what is being evaluated."""
        with self._lock:
            self._evaluator.close()

    def _charts(self, chosen: PublishedSearch) -> dict[str, Any] | None:
        batch = chosen.summary.batch
        try:
            known = self._reader(batch, (chosen.summary.started, chosen.summary.objectives))
            if known.data is None or time.monotonic() - known.at > _FRESH:
                known.data = self._read(known, chosen)
                known.at = time.monotonic()
        except (OSError, ValueError):
            return None  # its run was deleted meanwhile
        return known.data

    def _reader(self, batch: str, start: tuple[float, str]) -> _Known:
        known = self._known.get(batch)
        if known is None or known.start != start:  # a restart may name other objectives
            search = trials.search(self._home, batch)
            reader = TrialReader(self._home, batch, search.objectives, with_curves=True, is_view=True)
            known = self._known[batch] = _Known(start, search, reader)
        self._known.move_to_end(batch)
        while len(self._known) > _MOST_KEPT:
            self._known.popitem(last=False)
        return known

    def _read(self, known: _Known, chosen: PublishedSearch) -> dict[str, Any]:
        search = known.search
        log = search_journal.read(run_dir(self._home, search.batch))
        found, is_complete = known.reader.read_some(log, _SECONDS)
        completed = search_results.counts(found)["completed"]
        objectives = chosen.summary.objectives
        importances = self._evaluator.current(search.batch, objectives, completed, not chosen.is_at_work)
        drawing = search_results.drawing_for(found, search.objectives, search.space)
        data = {
            "batch": search.batch,
            "partial": not is_complete,
            "started": chosen.summary.started,
            "drawing": asdict(drawing),
            "importances": asdict(importances),
        }
        return {**data, "stamp": f"{zlib.crc32(repr(data).encode()):08x}"}


def _words(search: PublishedSearch) -> dict[str, Any]:
    """Returns a search in a few words. JSON has no infinite numbers."""
    summary = search.summary
    first = summary.best[:1]
    values = [[value if math.isfinite(value) else None for value in each.values] for each in first]
    best = [{"run": each.run, "values": shown, "flags": each.flags} for each, shown in zip(first, values, strict=True)]
    return {
        "batch": summary.batch,
        "optimizer": summary.optimizer,
        "operation": summary.operation,
        "objectives": summary.objectives,
        "names": summary.names,
        "counts": dict(summary.counts),
        "max_trials": summary.max_trials,
        "best": best,
        "best_count": summary.best_count,
        "seconds_left": summary.seconds_left,
        "is_at_work": search.is_at_work,
        "is_cut_short": search.is_cut_short,
        "ended": str(summary.ended or ""),
    }
