"""The steps of a search: one whenever a run has ended, and from time to time; alone, or beside a scheduler's loop."""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from guild_dask.cluster.base import Cluster
from guild_dask.home.errors import HomeUnavailable
from guild_dask.home.listing import Listing
from guild_dask.monitor.publisher import Publisher
from guild_dask.monitor.state import EndedRun, State
from guild_dask.plan.search_ends import CannotStageTrial, ErrorOfItsOwn, SearchDeleted
from guild_dask.scheduler import tracebacks
from guild_dask.scheduler.search.search import Search, Step
from guild_dask.scheduler.search.staging import CannotStage

log = logging.getLogger("guild")

# Seconds between steps if no run ends, at least and at most. If it takes long to read the trials, that is done less
# often. A trial that is to be ended early goes on until the next step.
_PERIOD = 0.5
EARLY_PERIOD = 0.1
_LONGEST = 5.0
_SHARE = 10


class Steps:
    """Takes steps until the search is over, or is closed."""

    def __init__(
        self,
        search: Search,
        width: Callable[[], int],
        may_go_on: Callable[[], bool],
        error_log: str,
        period: float = _PERIOD,
    ) -> None:
        self._period = period
        self._search = search
        self._width = width
        self._may_go_on = may_go_on
        self._error_log = error_log
        self._wake = threading.Event()
        self._is_closed = False
        self._problem = ""  # as it was last logged
        self.last = Step()

    def run(self, until: Callable[[], bool] = lambda: False) -> Step:
        """Takes steps until the search is over, closed, or until something else happens; returns the last one."""
        while not (self.last.is_over or self._is_closed or until()):
            self.last = self._step()
            if not self.last.is_over:
                self._wake.wait(min(max(self._period, _SHARE * self.last.reading), _LONGEST))
                self._wake.clear()
        return self.last

    def wake(self) -> None:
        """Makes the next step come now."""
        self._wake.set()

    def close(self) -> None:
        """Ends the steps, after the one that is being taken."""
        self._is_closed = True
        self._wake.set()

    def _step(self) -> Step:
        try:
            found = self._search.step(self._width(), self._is_going_on)
        except CannotStage as e:
            return Step(True, CannotStageTrial(str(e)))
        except (OSError, HomeUnavailable) as e:
            if self._search.is_deleted():
                return Step(True, SearchDeleted())
            self._report(f"cannot use the Guild home: {e}")
            return Step()
        except Exception as e:  # noqa: BLE001  # an error of the search itself must not lose its trials
            tracebacks.add(self._error_log, e)
            return Step(True, ErrorOfItsOwn(repr(e), self._error_log))
        self._problem = ""
        return found

    def _is_going_on(self) -> bool:
        return not self._is_closed and self._may_go_on()

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("The search %s; trying again", problem)
        self._problem = problem


class SearchGuest:
    """A search beside the loop of its own scheduler, in a thread."""

    def __init__(
        self,
        batch: str,
        is_trial: Callable[[str], bool],
        make: Callable[[Callable[[], int]], Steps],
        width: Callable[[Cluster], int],
        finish: Callable[[], None],
    ) -> None:
        """`is_trial` tells a trial of the batch by its run id, before it is staged and without reading its run.

        `make` makes the steps with a width; `finish` ends the scheduler when the search is over.
        """
        self.batch = batch
        self._is_trial = is_trial
        self._make = make
        self._width = width
        self._finish = finish
        self._steps: Steps | None = None

    @property
    def last(self) -> Step:
        """Returns the last step."""
        return self._steps.last if self._steps else Step()

    def select(self, listing: Listing) -> Listing:
        """Returns the listing with the search's own trials only."""
        return replace(listing, staged=tuple(run for run in listing.staged if self._is_trial(run.id)), broken={})

    def begin(self, cluster: Cluster, publisher: Publisher) -> Callable[[], None]:
        """Begins the steps, and returns what ends them."""
        steps = self._steps = self._make(lambda: self._width(cluster))
        publisher.listeners.append(_Waker(steps))

        def work() -> None:
            if steps.run().is_over:
                self._finish()

        thread = threading.Thread(target=work, name="search", daemon=True)
        thread.start()

        def close() -> None:
            steps.close()
            thread.join()

        return close


class _Waker:
    """Listens to a scheduler, and wakes the search when a run has ended."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def ended(self, _ended: EndedRun) -> None:
        self._steps.wake()

    def state_changed(self, state: State) -> None:
        pass
