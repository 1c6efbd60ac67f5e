"""The workers as the loop plans with them: those that are there, and those that may come."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from guild_dask.cluster.base import Cluster, WorkerCapacity
from guild_dask.cluster.events import ClusterTrouble, WorkerRefused, WorkersChanged
from guild_dask.plan.placement import StagedRun, Worker
from guild_dask.plan.tags import Demands
from guild_dask.plan.troubles import NoWorkerComes, Refusal, Trouble, WorkerWithoutRuns
from guild_dask.scheduler.ledger import Ledger

log = logging.getLogger("guild")

# How many workers that cannot start runs are remembered for those who look.
_MOST_REFUSED = 20

WorkerEvent = WorkersChanged | WorkerRefused | ClusterTrouble


class Workforce:
    """What the workers of a cluster have free, and whether that has changed."""

    def __init__(self, cluster: Cluster, ledger: Ledger, time_limit: float | None = None) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._time_limit = time_limit  # of runs that do not ask for another
        self._trouble: NoWorkerComes | None = None
        self._refused: dict[str, Refusal] = {}
        self.has_changed = False

    def present(self) -> list[Worker]:
        """Returns the workers that are there, each with what is free on it."""
        now = time.monotonic()
        return [self._worker(each, now) for each in self._cluster.workers()]

    def _worker(self, each: WorkerCapacity, now: float) -> Worker:
        worker = self._ledger.free(
            each.name, each.host, each.slots, each.resources, each.devices, is_whole_host=each.is_whole_host
        )
        if each.halt:
            return replace(worker, free_slots=0)
        if each.ends is None:
            return worker
        lasts = each.ends - now - each.margin
        # It goes soon: what runs on it goes on, and nothing new starts there.
        return replace(worker, lasts=lasts, free_slots=worker.free_slots if lasts > 0 else 0)

    def all(self) -> list[Worker]:
        """Returns those that are there, and one of each kind that may come, which has nothing free."""
        to_come = [
            Worker(each.name, each.slots, each.resources, 0, {}, is_to_come=True, lasts=each.lasts)
            for each in self._cluster.prospects()
        ]
        return [*self.present(), *to_come]

    def time_of(self, demands: Demands) -> float | None:
        """Returns how long a run may take, where a worker may end before it."""
        if any(each.lifetime for each in self._cluster.prospects()):
            return demands.time_limit or self._time_limit
        return None

    @property
    def appetite(self) -> int:
        """Returns how many waiting runs adjust() has a use for."""
        return self._cluster.appetite

    def adjust(self, waiting: Sequence[StagedRun]) -> None:
        """Has the cluster ask for workers for what waits, and give back those that nobody needs."""
        flights = [*self._ledger.in_flight.values(), *self._ledger.adrift.values()]
        self._cluster.adjust(waiting, {flight.worker for flight in flights})

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        """Returns what is wrong with workers at the moment."""
        here = {worker.label: worker for worker in self._cluster.workers()}
        refused = {name: refusal for name, refusal in self._refused.items() if name not in here}
        halted = {name: worker.halt for name, worker in here.items() if worker.halt}
        without_runs = (WorkerWithoutRuns(name, refusal) for name, refusal in {**refused, **halted}.items())
        return (*without_runs, *([self._trouble] if self._trouble else ()))

    def take_in(self, event: WorkerEvent) -> None:
        """Says what happened to workers."""
        if isinstance(event, WorkersChanged):
            self.has_changed = True
            self._trouble = None
            if event.news and not self._ledger.is_stopping:
                log.info("%s", event.news)
        elif isinstance(event, WorkerRefused):
            self._refused = dict([*self._refused.items(), (event.worker, event.refusal)][-_MOST_REFUSED:])
            log.warning("Worker %s gets no run: it %s", event.worker, event.refusal)
        elif event.trouble != self._trouble:
            self._trouble = event.trouble
            log.warning("No worker started: %s; retrying in %g s", event.trouble.error_text, event.pause)
