"""Which living schedulers of this Guild home would take the trials of a search, and for how many they have room."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from guild_dask.home import claims, layout, run_processes
from guild_dask.home.errors import HomeUnavailable
from guild_dask.home.listing import Listing
from guild_dask.home.run_directory import BrokenRun, Staged
from guild_dask.home.run_filter import BadFilter, Selection
from guild_dask.monitor import schedulers
from guild_dask.monitor.schedulers import Scheduler
from guild_dask.monitor.state import Phase
from guild_dask.scheduler.search.width import Capacity, Pool, width_of_pools

log = logging.getLogger("guild")

# Seconds until what could not be read is read again.
_PAUSE = 0.5


class Takers:
    """The schedulers that take the trials of a batch. While that cannot be read, they are those that were read last."""

    def __init__(self, home: str, batch: str, requests: Mapping[str, float], is_stopping: Callable[[], bool]) -> None:
        self._home = home
        self._batch = batch
        self._requests = requests
        self._is_stopping = is_stopping
        self.found: list[Scheduler] = []

    def find(self) -> bool:
        """Returns whether there are any, as soon as that can be read; False if the search is stopped before."""
        problem = ""
        while not self._is_stopping():
            try:
                self.found = takers(self._home, self._batch, self._requests)
                return bool(self.found)
            except (OSError, HomeUnavailable) as e:
                if str(e) != problem:
                    problem = str(e)
                    log.warning("The search cannot see which schedulers would take its trials: %s; trying again", e)
            threading.Event().wait(_PAUSE)
        return False

    def are_gone(self) -> bool:
        """Returns whether none is left."""
        with contextlib.suppress(OSError, HomeUnavailable):  # a step of the search that cannot use the home reports it
            self.found = takers(self._home, self._batch, self._requests)
        return not self.found

    def width(self) -> int:
        """Returns how many trials the workers of all of them have room for, one at least."""
        return max(1, width_of_all(self.found, self._requests))


def takers(home: str, batch: str, requests: Mapping[str, float]) -> list[Scheduler]:
    """Returns the schedulers that are alive and would take the trials of a batch.

    Raises OSError or HomeUnavailable if that cannot be read now.
    """
    starter = _starter_of(home, batch)
    waiting = _waiting_for(home, batch)
    found = (each for each in schedulers.alive(home) if each.id not in (batch, *waiting))
    return [each for each in found if _would_take(each, home, batch, requests, starter)]


def _starter_of(home: str, run: str) -> str:
    """Returns the scheduler that has started a run; empty if a user has."""
    found = claims.present(layout.claims_folder(home), run)
    return found.claim.scheduler_id if found and found.claim else ""


def _waiting_for(home: str, batch: str) -> set[str]:
    """Returns the schedulers of runs that wait for the search, such as the pipeline that it is a step of.

    The slot of such a run is free only after the search. Trials might wait for it for ever.
    """
    return {_starter_of(home, run) for run in run_processes.runs_above(home) - {batch}}


def _would_take(scheduler: Scheduler, home: str, batch: str, requests: Mapping[str, float], starter: str) -> bool:
    state = scheduler.state
    if state is None:
        return scheduler.id == starter  # it has not published anything yet
    if state.trials_of or state.phase in (Phase.DRAINING, Phase.STOPPING):
        return False
    # One that runs once ends when nothing is left, but not before a search that it has started.
    if state.run_once and scheduler.id != starter:
        return False
    if state.filter is not None and not _matches(state.filter, layout.prototype(layout.run_dir(home, batch))):
        return False
    # Without workers, nothing is known of those that come.
    return not state.workers or width_of(scheduler, requests) > 0


def _matches(expression: str, proto: str) -> bool:
    """Returns whether the prototype of the trials, which has their operation and tags, matches a filter."""
    try:
        return bool(Selection(expression).of(Listing((Staged("", proto, 0, ()),), {})).staged)
    except (BadFilter, BrokenRun):
        return False


def width_of_all(found: Iterable[Scheduler], requests: Mapping[str, float]) -> int:
    """Returns how many trials the workers of all these schedulers have room for."""
    return sum(width_of(each, requests) for each in found)


def width_of(scheduler: Scheduler, requests: Mapping[str, float]) -> int:
    """Returns how many trials the workers of a scheduler have room for, those to come of an elastic pool included."""
    if scheduler.state is None:
        return 0
    present = [Capacity(each.slots, each.total) for each in scheduler.state.workers]
    # Workers to come are as those that are there; without any, each slot counts.
    pool = Pool(present, scheduler.state.slots_at_most, present or [Capacity(1, requests)])
    return width_of_pools([pool], requests)
