"""The end of a scheduler's runs when it is stopped."""

import contextlib
import logging
import time
from collections.abc import Callable

from guild_dask.home import claims, end_note
from guild_dask.home.errors import HomeUnavailable
from guild_dask.home.outcome import Cause
from guild_dask.scheduler.dispatch import Flights

log = logging.getLogger("guild")

# Seconds from a stop to KILL by the scheduler itself, and to the end of its patience. Before that, a run's own starter
# has sent TERM and KILL. Guild waits 30 seconds for a scheduler that it stops.
LAST_RESORT = 15.0
GIVE_UP = 20.0


def end_runs(flights: Flights, wait_until: Callable[[float], None]) -> None:
    """Ends what is running; what has not started is staged again. Each step is for those that outlived the last."""
    in_flight = flights.ledger.in_flight
    asked = time.monotonic()
    if in_flight:
        log.info("Ending %d run(s); Ctrl-C or 'guild stop' once more kills them", len(in_flight))
    for run_id in [*flights.ledger.adrift, *in_flight]:
        # On another host, the run is asked through the Guild home. Here it can tell by this who has sent the signal.
        with contextlib.suppress(OSError):
            if not flights.home.is_ours(run_id):
                continue
            end_note.ask_to_stop(claims.path(flights.home.claims_folder, run_id), Cause.SCHEDULER_STOPPED)
    for step, deadline in (
        (flights.cluster.stop, asked + LAST_RESORT),
        (flights.cluster.kill, asked + GIVE_UP),
        (flights.cluster.destroy, asked + GIVE_UP + 1),
    ):
        flights.each(step)
        while in_flight and time.monotonic() < deadline:
            wait_until(deadline)


def settle_rest(flights: Flights) -> None:
    """Tries once more what could not be settled; what is left is the next scheduler's to stage again."""
    try:
        flights.settle_rest()
    except HomeUnavailable as e:
        log.warning("%s; the next scheduler will stage %d run(s) again", e, len(flights.ledger.unsettled))
