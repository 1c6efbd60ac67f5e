"""What searches publish for the views: a small file each, in the Guild home, with counts and the best trials.

A search writes its file when something has changed. So the views need not read the trials' runs, nor list the runs
directory. Its size does not depend on the number of trials.
"""

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from guild_dask.home import layout, run_directory, search_journal, trials
from guild_dask.home.search_journal import SearchLog
from guild_dask.home.status import living_process
from guild_dask.home.trials import RecordedSearch, Trial
from guild_dask.host import files
from guild_dask.monitor import search_results
from guild_dask.plan import records
from guild_dask.plan.objectives import text_for
from guild_dask.plan.search_ends import SearchEnd, end_for_data
from guild_dask.plan.units import duration_for_text

# The most best trials that are published, and the most characters of their flags.
_MOST_BEST = 10
_LONGEST = 500

# Seconds between two publications of a search in which nothing has changed: the time left changes.
_PERIOD = 10.0

# The most bytes of a file that is read, and the most searches.
_MOST_BYTES = 100_000
MOST_SEARCHES = 20

# A search on another host that has published nothing for so many seconds is not at work.
_SILENT = 120.0

# A search that was cut short and has more trials than this is shown as it was when it was published.
_MOST_READ = 200

# An ended search is shown for so many seconds.
_SHOWN = 86_400.0


@dataclass(frozen=True)
class BestTrial:
    """One of the best trials."""

    run: str
    number: int
    values: tuple[float, ...]
    flags: str


@dataclass(frozen=True)
class Summary:
    """A search, as it was when it was published."""

    batch: str
    optimizer: str
    operation: str
    objectives: str  # such as `minimize loss`
    names: tuple[str, ...]  # of the objectives
    max_trials: int
    counts: Mapping[str, int]
    best: tuple[BestTrial, ...]  # the best first; with several objectives, the Pareto set
    best_count: int  # how many are the best: the size of the Pareto set
    started: float  # when the search began last, in seconds since the epoch
    at: float  # when this was published
    seconds_left: float | None = None
    ended: SearchEnd | None = None  # why it ended; None if it goes on, or was cut short

    @property
    def is_of_several(self) -> bool:
        """Returns whether there are several objectives."""
        return len(self.names) > 1


@dataclass(frozen=True)
class PublishedSearch:
    """A search, and whether its process is at work."""

    summary: Summary
    is_at_work: bool

    @property
    def is_cut_short(self) -> bool:
        """Returns whether the search was stopped or killed, and can go on."""
        return not self.summary.ended and not self.is_at_work


def summary_for(search: RecordedSearch, found: Sequence[Trial], now: float) -> Summary:
    """Returns a search with its trials as a summary."""
    best = search_results.best(found, search.objectives)
    shown = [BestTrial(each.id, each.number, each.values or (), _flags(each)) for each in best[:_MOST_BEST]]
    started = search.log.starts[-1] if search.log.starts else now
    ends_at = _ends_at(search.flags.get("max-time"), started)
    return Summary(
        search.batch,
        search.optimizer,
        search.operation,
        text_for(search.objectives),
        tuple(map(str, search.objectives)),
        search.max_trials,
        search_results.counts(found),
        tuple(shown),
        len(best) if len(search.objectives) > 1 else min(1, len(best)),
        started,
        now,
        None if search.log.ended else search_results.seconds_left(found, search.max_trials, now, ends_at),
        search.log.ended,
    )


def _flags(trial: Trial) -> str:
    return search_results.flags_text(trial.point)[:_LONGEST]


def _ends_at(limit: Any, started: float) -> float | None:
    seconds = duration_for_text(str(limit)) if limit is not None else None
    return None if seconds is None else started + seconds


class SearchPublisher:
    """Publishes one search. Errors are ignored: a view must not delay a search."""

    def __init__(self, home: str, batch: str) -> None:
        self._home = home
        self._batch = batch
        self._search: RecordedSearch | None = None
        self._last: object = None  # what was published last
        self._at = 0.0

    def publish(self, found: Sequence[Trial], log: SearchLog) -> None:
        """Publishes the trials as they are, if one has changed its state or some time has passed."""
        now = time.time()
        current = ([(trial.id, trial.state) for trial in found], log.ended, len(log.starts))
        if current == self._last and 0 <= now - self._at < _PERIOD:
            return
        with contextlib.suppress(OSError, ValueError):
            if self._search is None:
                self._search = trials.search(self._home, self._batch)
                _remove_deleted(self._home)
            summary = summary_for(replace(self._search, log=log), found, now)
            path = layout.search_summary(self._home, self._batch)
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write(path, json.dumps(records.data_for(summary)), f"{self._batch}.draft")
            self._last, self._at = current, now


def _remove_deleted(home: str) -> None:
    """Removes the files of searches whose runs were deleted."""
    folder = layout.searches_folder(home)
    for name in files.names(folder):
        if not search_journal.exists(layout.run_dir(home, name.partition(".")[0])):
            files.remove(folder, [name])


def published(home: str) -> list[str]:
    """Returns the run ids of all searches that were published and still exist, the latest first."""
    folder = layout.searches_folder(home)
    try:
        names = [name.removesuffix(".json") for name in files.names(folder) if name.endswith(".json")]
    except OSError:
        return []
    found = [name for name in names if search_journal.exists(layout.run_dir(home, name))]
    return sorted(found, key=lambda name: -_modified(str(layout.search_summary(home, name))))


def _modified(path: str) -> float:
    try:
        return os.path.getmtime(path)
    except OSError:
        return 0.0


def shown(home: str, now: float, seconds: float = 0.0) -> list[PublishedSearch]:
    """Returns the searches that are at work, or were in the last day, the latest first.

    For so many seconds, the trials of searches that were cut short are read: they may have ended since the search last
    published them.
    """
    deadline = time.monotonic() + seconds
    found = []
    for batch in published(home)[:MOST_SEARCHES]:
        summary = read(home, batch)
        if summary is None:
            continue
        search = PublishedSearch(summary, _is_at_work(layout.run_dir(home, batch), summary.ended, summary.at, now))
        if not (search.is_at_work or now - summary.at < _SHOWN):
            continue
        if search.is_cut_short and time.monotonic() < deadline:
            search = replace(search, summary=_as_read(home, summary, deadline))
        found.append(search)
    return found


def _as_read(home: str, summary: Summary, deadline: float) -> Summary:
    """Returns a search that is not at work with its trials as they are now, or as published if that takes long."""
    is_all_over = not any(summary.counts.get(name) for name in (search_results.RUNNING, search_results.WAITING))
    if is_all_over:
        return summary
    try:
        search = trials.search(home, summary.batch)
        if len(search.log.proposals) > _MOST_READ:
            return summary
        reader = trials.TrialReader(home, summary.batch, search.objectives, is_view=True)
        found, is_complete = reader.read_some(search.log, deadline - time.monotonic())
    except (OSError, ValueError):
        return summary  # it is being deleted, or its records cannot be read
    return replace(summary_for(search, found, summary.at), seconds_left=None) if is_complete else summary


def with_trials(home: str, search: RecordedSearch, found: Sequence[Trial], now: float) -> PublishedSearch:
    """Returns a search with trials that were just read."""
    summary = summary_for(search, found, now)
    before = read(home, search.batch)
    last_sign = before.at if before else summary.started
    return PublishedSearch(summary, _is_at_work(layout.run_dir(home, search.batch), search.log.ended, last_sign, now))


def _is_at_work(run_dir: str, ended: SearchEnd | None, last_sign: float, now: float) -> bool:
    """Returns whether a search is at work, of which there was a last sign on any host.

    Guild's status does not tell it: a run that was restarted keeps its exit status.
    """
    if ended:
        return False
    if run_directory.known_attribute(run_dir, "host") == os.uname().nodename:
        with contextlib.suppress(OSError):
            return living_process(run_dir) is not None
    return now - last_sign < _SILENT


def read(home: str, batch: str) -> Summary | None:
    """Returns what a search has published; None if that cannot be read."""
    try:
        data = files.read_json(layout.search_summary(home, batch), most=_MOST_BYTES)
        ended = data.get("ended")  # read apart: other versions may know other ends, or wrote texts
        found = records.value_for(Summary, {**data, "ended": None})
        return replace(found, batch=batch, ended=end_for_data(ended) if ended else None)
    except (OSError, ValueError, TypeError, AttributeError):
        return None
