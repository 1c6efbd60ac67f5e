"""The staged runs as last seen: what each asks for, and what has been said about it."""

import logging
from collections.abc import Iterable, Sequence

from guild_dask import messages
from guild_dask.ledger import Ledger
from guild_dask.plan import NotDefined, StagedRun, Worker, is_impossible
from guild_dask.resources import Request, request_for_specs
from guild_dask.rundir import Staged
from guild_dask.runs import GuildHome

log = logging.getLogger("guild")


class WaitingRuns:
    """What look() found in the Guild home, in the order in which runs should start."""

    def __init__(self, home: GuildHome, ledger: Ledger) -> None:
        self._home = home
        self._ledger = ledger
        self._runs: dict[str, tuple[Staged, Request]] = {}
        self.is_blocked = False  # by runs of others, with wait-for-running

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._runs

    def __getitem__(self, run_id: str) -> tuple[Staged, Request]:
        return self._runs[run_id]

    def runs(self) -> list[StagedRun]:
        """Returns the waiting runs as the plan takes them."""
        return [StagedRun(run.id, request.amounts) for run, request in self._runs.values()]

    def take(self, run_id: str) -> None:
        """Takes out a run that is waiting no more."""
        self._runs.pop(run_id, None)

    def look(self, workers: Sequence[Worker], own: Iterable[str] | None) -> None:
        """Looks at the runs directory, and says what is new.

        `own` are the runs that may be running without holding anything back; None where none hold anything back.
        """
        listing = self._home.staged()
        self._runs = {run.id: self._with_request(run) for run in listing.staged}
        self._ledger.forget_all_but([*self._runs, *listing.broken])
        for run_id, problem in listing.broken.items():
            if self._ledger.is_news(run_id, problem):
                log.warning("Ignoring staged run %s: %s", run_id, problem)
        running = self._home.running_elsewhere(own) if own is not None and self._runs else []
        self.is_blocked = bool(running)
        if running:
            self._tell_blocked(running)
        else:
            self._tell_places(workers)

    def _with_request(self, run: Staged) -> tuple[Staged, Request]:
        known = self._runs.get(run.id)
        return known if known and known[0] == run else (run, request_for_specs(run.specs))

    def _tell_blocked(self, running: list[str]) -> None:
        for run_id in self._runs:
            if self._ledger.is_news(run_id, "waits for running"):
                log.info("Found staged run %s (waiting for runs to finish: %s)", run_id, ", ".join(running))

    def _tell_places(self, workers: Sequence[Worker]) -> None:
        """Says once for each waiting run that it is in the plan, or why it cannot be."""
        for run, request in self._runs.values():
            if request.unreadable and self._ledger.is_news(f"{run.id} tags", run.specs):
                for part in request.unreadable:
                    log.warning("%s", part)
            reason = is_impossible(StagedRun(run.id, request.amounts), workers)
            if not self._ledger.is_news(run.id, reason or dict(request.amounts)):
                continue
            if reason is None:
                log.info("%s", messages.starting(run.id, request.amounts))
            elif isinstance(reason, NotDefined):
                log.info("Ignorning staged run %s (%s)", run.id, reason)
            else:
                log.warning("Leaving run %s staged (%s)", run.id, reason)
