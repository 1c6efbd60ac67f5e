"""The loop's only mutable state: what is in flight, what has been said, and what came of it."""

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from guild_dask.home.claims import Claim
from guild_dask.home.outcome import End
from guild_dask.home.run_directory import Staged
from guild_dask.plan.placement import Worker
from guild_dask.plan.reasons import Reason
from guild_dask.plan.resources import remaining

# Where `told` has what was last said about having nothing to do.
WAITING = "waiting"


def _serials() -> "itertools.count[int]":
    """Returns numbers that a scheduler before us, restarted under the same id, has hardly used."""
    return itertools.count(random.getrandbits(48))


@dataclass(frozen=True)
class Flight:
    """A run that is on a worker."""

    run: Staged
    worker: str
    asks: Mapping[str, float]
    host: str = ""
    devices: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Ledger:
    """What the scheduler remembers between two looks at the runs directory."""

    in_flight: dict[str, Flight] = field(default_factory=dict)
    told: dict[str, object] = field(default_factory=dict)  # run id -> the last thing said about it
    passed: Mapping[str, int] = field(default_factory=dict)  # run id -> how often a later run started before it
    held: Mapping[str, Reason] = field(default_factory=dict)  # run id -> why it waited at the last plan
    starts: dict[str, int] = field(default_factory=dict)  # run id -> how often it was sent to a worker
    serials: "itertools.count[int]" = field(default_factory=_serials)  # no two claims have the same
    is_stopping: bool = False
    ends: Counter[End] = field(default_factory=Counter)
    unsettled: dict[str, int] = field(default_factory=dict)  # run id -> exit code, where the home could not be written
    adrift: dict[str, Flight] = field(default_factory=dict)  # run id -> a run whose worker is out of sight
    vanished: set[str] = field(default_factory=set)  # runs that completed and are gone, as batches are then
    paused: dict[str, float] = field(default_factory=dict)  # run id -> when it may be tried again (time.monotonic)
    orphans: tuple[Claim, ...] = ()  # runs that go on without a scheduler, or out of its sight
    neighbours: tuple[Claim, ...] = ()  # runs of other schedulers that have devices of this host

    def is_news(self, run_id: str, fact: object) -> bool:
        """Tells whether the fact is another than the last one told about the run, and notes that it is told now."""
        if self.told.get(run_id) == fact:
            return False
        self.told[run_id] = fact
        return True

    def forget(self, run_id: str) -> None:
        """Lets go of what is known about a run, unless it is on its way or will be tried again."""
        if not any(run_id in kept for kept in (self.in_flight, self.unsettled, self.adrift, self.paused)):
            self.told.pop(run_id, None)
            self.starts.pop(run_id, None)

    def free(  # noqa: PLR0913  # that is what a worker is
        self,
        name: str,
        host: str,
        slots: int,
        total: Mapping[str, float],
        devices: Iterable[str] = (),
        *,
        is_whole_host: bool = False,
    ) -> Worker:
        """Returns a worker with what is left beside the runs on it, and beside those that nobody looks after there.

        One that stands for its whole host comes again under another name, and what its like had started is still there.
        """
        taking: list[Flight | Claim] = [flight for flight in self.in_flight.values() if flight.worker == name]
        taking += [c for c in self.orphans if c.owner.host == host and (is_whole_host or c.worker == name)]
        free, shares = dict(total), dict.fromkeys(devices, 1.0)
        for taken in taking:
            free = remaining(free, taken.asks)
            shares = remaining(shares, taken.devices)
        for claim in (*self.orphans, *self.neighbours):
            # Other schedulers have slots and amounts of their own, but a device is there once. And a worker
            # may come again under another name, and what it had started may still have its devices.
            if claim.owner.host == host and claim not in taking:
                shares = remaining(shares, claim.devices)
        return Worker(name, slots, total, slots - len(taking), free, shares)
