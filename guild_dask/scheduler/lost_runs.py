"""What becomes of runs that no worker tells about: those out of sight, of dead schedulers, or to be tried again."""

import logging
import time
from dataclasses import replace

from guild_dask.cluster.events import JobAdrift
from guild_dask.home import recovery
from guild_dask.home.listing import Listing
from guild_dask.home.outcome import End
from guild_dask.home.result import Result
from guild_dask.home.run_directory import Staged
from guild_dask.scheduler import messages
from guild_dask.scheduler.dispatch import Flights

log = logging.getLogger("guild")


class Aftercare:
    """Looks after runs that no worker of ours will tell about, and lets those rest that are to be tried again."""

    def __init__(self, flights: Flights) -> None:
        self._flights = flights
        self._ledger = flights.ledger
        self._resting: dict[str, Staged] = {}

    def look(self) -> None:
        """Settles what can be settled by now; raises HomeUnavailable if the home does not allow it."""
        self._flights.settle_rest()
        self._flights.cluster.tidy()
        recovered = recovery.recover(self._flights.home, self._ledger.adrift, self._flights.again)
        for run_id in recovered.staged_again:
            if self._ledger.adrift.pop(run_id, None):
                self._flights.follower.finish(run_id)
                self._flights.publisher.left(run_id)
                log.info("Run %s did not start and is staged again", run_id)
            else:
                log.info("Staged run %s again (its scheduler died before it started)", run_id)
        for run_id, result in recovered.ended:
            if self._ledger.adrift.pop(run_id, None):
                self._flights.follower.finish(run_id)
                self._flights.note(run_id, result)
            elif result.end is End.TRIED_AGAIN:
                self._flights.note(run_id, result)
        for run_id in recovered.gone:
            if self._ledger.adrift.pop(run_id, None):
                self._flights.follower.finish(run_id)
                self._flights.note(run_id, Result(End.GONE))
        for run_id in recovered.stops:
            if run_id in self._ledger.in_flight:
                self._flights.cluster.stop(run_id)
        self._ledger.orphans = recovered.orphans
        self._ledger.neighbours = recovered.neighbours

    def lose_sight(self, event: JobAdrift) -> None:
        """Notes that a run's worker is out of sight."""
        flight = self._ledger.in_flight.pop(event.run_id, None)
        if flight:
            self._ledger.adrift[event.run_id] = flight
            log.warning("%s", messages.adrift(event.run_id, flight.host, event.problem))

    def rested(self, listing: Listing) -> Listing:
        """Returns the listing without the runs that are to rest before they are tried again, until they have rested."""
        now = time.monotonic()
        self._ledger.paused = {run_id: until for run_id, until in self._ledger.paused.items() if until > now}
        for run_id in listing.gone:
            self._resting.pop(run_id, None)
        self._resting.update({run.id: run for run in listing.staged if run.id in self._ledger.paused})
        rested = [self._resting.pop(run_id) for run_id in self._resting.keys() - self._ledger.paused.keys()]
        ready = {run.id: run for run in (*rested, *listing.staged) if run.id not in self._resting}
        return replace(listing, staged=tuple(sorted(ready.values(), key=lambda run: (run.since, run.id))))

    def next_due(self) -> float:
        """Returns when the first of the resting runs may be tried again, by time.monotonic()."""
        return min(self._ledger.paused.values(), default=float("inf"))
