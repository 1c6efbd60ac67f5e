"""The staged runs as last seen: what each asks for, and what has been said about it."""

import bisect
import heapq
import itertools
import logging
from collections.abc import Iterable, Sequence

from guild_dask import messages
from guild_dask.demands import Demands, demands_for_tags
from guild_dask.ledger import Ledger
from guild_dask.listing import Listing
from guild_dask.plan import Kind, StagedRun, Worker, is_impossible, kind_of, place_for
from guild_dask.reasons import NotDefined
from guild_dask.rundir import Staged

log = logging.getLogger("guild")


class WaitingRuns:
    """The waiting runs, with those that ask for the same in one line, in the order in which they should start."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._runs: dict[str, tuple[Staged, Demands]] = {}
        self._lines: dict[Kind, list[tuple[int, str]]] = {}
        self._set_aside: dict[str, Staged] = {}  # cannot be started as they are
        self._to_set_aside: set[str] = set()
        self._problems: dict[str, str] = {}  # of those that are set aside, or to be
        self._broken: dict[str, str] = {}

    @property
    def left(self) -> int:
        """Returns how many runs are staged, those that cannot be started or read included."""
        return len(self._runs) + len(self._set_aside) + len(self._broken)

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, run_id: str) -> tuple[Staged, Demands]:
        return self._runs[run_id]

    def first(self, count: int) -> list[StagedRun]:
        """Returns the first so many of each line, in order. No more of a line can start when so many slots are free."""
        heads = [line[:count] for line in self._lines.values()]
        return [StagedRun(run_id, self._runs[run_id][1].amounts) for _, run_id in heapq.merge(*heads)]

    def take(self, run_id: str) -> None:
        """Takes out a run that is waiting no more."""
        run, demands = self._runs.pop(run_id)
        kind = kind_of(demands.amounts)
        line = self._lines[kind]
        del line[bisect.bisect_left(line, (place_for(run.since, demands.priority), run.id))]
        if not line:
            del self._lines[kind]

    def kinds(self) -> dict[Kind, int]:
        """Returns how many wait of each kind."""
        return {kind: len(line) for kind, line in self._lines.items()}

    def problems(self) -> dict[str, str]:
        """Returns the staged runs that cannot be started as they are, with why."""
        return {**{run_id: self._problems.get(run_id, "") for run_id in self._set_aside}, **self._broken}

    def set_aside(self, run_id: str, problem: str) -> None:
        """Takes out a run that cannot be started as it is; it comes back when it is staged or tagged anew."""
        self._problems[run_id] = problem
        if run_id in self._runs:
            self._set_aside[run_id] = self._runs[run_id][0]
            self.take(run_id)
        else:
            self._to_set_aside.add(run_id)  # it has just been staged again

    def update(self, listing: Listing) -> None:
        """Takes in what was found in the runs directory, and says which directories cannot be read."""
        found = {run.id for run in listing.staged}
        for run_id in [run_id for run_id in self._runs if run_id not in found]:
            self.take(run_id)
        self._broken = dict(listing.broken)
        self._set_aside = {run_id: run for run_id, run in self._set_aside.items() if run_id in found}
        for run in listing.staged:
            if run.id in self._to_set_aside:
                self._to_set_aside.discard(run.id)
                self._set_aside[run.id] = run
            if self._set_aside.get(run.id) == run:
                continue
            self._set_aside.pop(run.id, None)
            known = self._runs.get(run.id)
            if known and known[0] == run:
                continue
            if known:
                self.take(run.id)
            demands = demands_for_tags(run.tags)
            self._runs[run.id] = (run, demands)
            place = place_for(run.since, demands.priority)
            bisect.insort(self._lines.setdefault(kind_of(demands.amounts), []), (place, run.id))
        kept = self._set_aside.keys() | self._to_set_aside
        self._problems = {run_id: problem for run_id, problem in self._problems.items() if run_id in kept}
        self._ledger.forget_all_but(itertools.chain(self._runs, self._set_aside, listing.broken))
        for run_id, problem in listing.broken.items():
            if self._ledger.is_news(run_id, problem):
                log.warning("Ignoring staged run %s: %s", run_id, problem)

    def tell_blocked(self, running: Iterable[str]) -> None:
        """Says once for each waiting run that runs of others hold it back."""
        text = ", ".join(running)
        for run_id in self._in_order():
            if self._ledger.is_news(run_id, "waits for running"):
                log.info("Found staged run %s (waiting for runs to finish: %s)", run_id, text)

    def tell_places(self, workers: Sequence[Worker]) -> None:
        """Says once for each waiting run that it is in the plan, or why it cannot be."""
        reasons = {kind: is_impossible(StagedRun("", dict(kind)), workers) for kind in self._lines}
        for run_id in self._in_order():
            run, demands = self._runs[run_id]
            reason = reasons[kind_of(demands.amounts)]
            if not self._ledger.is_news(run_id, (run.tags, reason)):
                continue
            for part in demands.unreadable:
                log.warning("%s", part)
            if reason is None:
                log.info("%s", messages.starting(run_id, demands.amounts))
            elif isinstance(reason, NotDefined):
                log.info("Ignorning staged run %s (%s)", run_id, reason)
            else:
                log.warning("Leaving run %s staged (%s)", run_id, reason)

    def _in_order(self) -> list[str]:
        return [run_id for _, run_id in heapq.merge(*self._lines.values())]
