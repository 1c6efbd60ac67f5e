"""The workers as the loop plans with them: those that are there, and those that may come."""

import logging
from collections.abc import Sequence

from guild_dask.cluster import Cluster
from guild_dask.events import ClusterTrouble, WorkerRefused, WorkersChanged
from guild_dask.ledger import Ledger
from guild_dask.plan import StagedRun, Worker

log = logging.getLogger("guild")

WorkerEvent = WorkersChanged | WorkerRefused | ClusterTrouble


class Workforce:
    """What the workers of a cluster have free, and whether that has changed."""

    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._trouble: str | None = None
        self.has_changed = False

    def present(self) -> list[Worker]:
        """Returns the workers that are there, each with what is free on it."""
        return [self._ledger.free(each.name, each.host, each.slots, each.resources) for each in self._cluster.workers()]

    def all(self) -> list[Worker]:
        """Returns those that are there, and one of each kind that may come, which has nothing free."""
        to_come = [
            Worker(each.name, each.slots, each.resources, 0, {}, is_to_come=True) for each in self._cluster.prospects()
        ]
        return [*self.present(), *to_come]

    @property
    def appetite(self) -> int:
        """Returns how many waiting runs adjust() has a use for."""
        return self._cluster.appetite

    def adjust(self, waiting: Sequence[StagedRun]) -> None:
        """Has the cluster ask for workers for what waits, and give back those that nobody needs."""
        flights = [*self._ledger.in_flight.values(), *self._ledger.adrift.values()]
        self._cluster.adjust(waiting, {flight.worker for flight in flights})

    def take_in(self, event: WorkerEvent) -> None:
        """Says what happened to workers."""
        if isinstance(event, WorkersChanged):
            self.has_changed = True
            self._trouble = None
            if event.news and not self._ledger.is_stopping:
                log.info("%s", event.news)
        elif isinstance(event, WorkerRefused):
            log.warning("Worker %s gets no run: it %s", event.worker, event.problem)
        elif event.problem != self._trouble:
            self._trouble = event.problem
            log.warning("No worker comes: %s; the next try is in %g seconds", event.problem, event.pause)
