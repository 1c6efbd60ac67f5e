"""Workers, and the capacity that is still free on them while a plan is made. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from guild_dask.plan import devices
from guild_dask.plan.devices import GPU, PIN, is_pin
from guild_dask.plan.resources import fits

# A run with a time limit requests that many seconds under this name. They are compared with the time for which a
# worker still exists, and never subtracted: runs at the same time do not use up each other's time.
TIME = "dask-time"

# A search requests one of these. The one worker that has them takes searches, and nothing else.
SEARCH = "dask-search"


@dataclass(frozen=True)
class Worker:
    """The capacity of a worker when it is idle, and what is free on it now."""

    name: str
    slots: int
    total: Mapping[str, float]
    free_slots: int
    free: Mapping[str, float]
    devices: Mapping[str, float] = field(default_factory=dict)  # the free share of each; `gpu` is their number
    is_to_come: bool = False  # it has not joined yet, and has nothing free
    lasts: float = math.inf  # seconds, from now on

    @property
    def is_for_searches(self) -> bool:
        """Returns whether it takes searches, and nothing else."""
        return SEARCH in self.total


class FreeCapacity:
    """What is still free on one worker while a plan is made, and the run that some of it is reserved for, if any."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.slots = worker.free_slots
        self.free = {name: worker.free.get(name, 0.0) for name in worker.total}
        self.devices = dict(worker.devices)
        self.spare = self._spare()  # how much is free, as a key to sort by
        self.reserved_for: str | None = None
        self._reserved: Mapping[str, float] = {}

    def _spare(self) -> tuple[float, int]:
        total = self.worker.total
        return (sum(self.free[name] / total[name] for name in total if total[name] > 0), -self.slots)

    def defines(self, name: str) -> bool:
        """Returns whether the worker has that resource or device. Without named devices, it accepts any device name."""
        if is_pin(name):
            return not self.devices or name[len(PIN) :] in self.devices
        return name in self.worker.total or name == TIME

    def most(self, name: str) -> float:
        """Returns how much of a resource the worker has when it is idle."""
        if name == TIME:
            return self.worker.lasts
        return 1.0 if is_pin(name) else self.worker.total.get(name, 0.0)

    def is_for(self, requests: Mapping[str, float]) -> bool:
        """Returns whether the worker takes such runs at all: one takes searches and nothing else."""
        return (SEARCH in requests) == self.worker.is_for_searches

    def could_hold(self, requests: Mapping[str, float]) -> bool:
        """Returns whether the requests would fit if nothing else ran on the worker."""
        if not self.is_for(requests):
            return False
        # Totals are not sums, so they have no rounding errors. Dask compares them exactly, too.
        if not all(self.defines(name) and amount <= self.most(name) for name, amount in requests.items()):
            return False
        if not self.devices or GPU not in requests:
            return True
        others = len(self.devices) - len(devices.pinned(requests))
        return devices.could_be_given(requests[GPU]) and requests[GPU] <= others

    def is_enough(self, requests: Mapping[str, float]) -> bool:
        """Returns whether the requests fit now, if reservations are ignored."""
        return self._is_enough(requests, {})

    def may_take(self, requests: Mapping[str, float]) -> bool:
        """Returns whether the requests fit now, beside what is reserved for another run."""
        return self._is_enough(requests, self._reserved)

    def _is_enough(self, requests: Mapping[str, float], reserved: Mapping[str, float]) -> bool:
        if self.slots < 1:
            return False
        wanted, kept = self._amounts(requests), self._amounts(reserved)
        if not all(fits(amount, self.free[name] - kept.get(name, 0.0)) for name, amount in wanted.items()):
            return False
        if not self.devices or GPU not in wanted:
            return True
        return self._pick(requests, reserved) is not None

    def _pick(self, requests: Mapping[str, float], reserved: Mapping[str, float]) -> dict[str, float] | None:
        return devices.pick(devices.left(self.devices, devices.pinned(reserved)), requests)

    def _amounts(self, requests: Mapping[str, float]) -> Mapping[str, float]:
        amounts = devices.amounts(requests, has_devices=bool(self.devices))
        return {name: amount for name, amount in amounts.items() if name != TIME} if TIME in amounts else amounts

    def take(self, requests: Mapping[str, float]) -> Mapping[str, float]:
        """Subtracts the requests of a run that may_take() accepts, and returns the shares of devices that it gets."""
        self.slots -= 1
        wanted = self._amounts(requests)
        for name, amount in wanted.items():
            self.free[name] -= amount
        taken = self._pick(requests, self._reserved) if self.devices and GPU in wanted else None
        self.devices = devices.left(self.devices, taken) if taken else self.devices
        self.spare = self._spare()
        return taken or {}

    def reserve(self, run_id: str, requests: Mapping[str, float]) -> None:
        """Reserves what a run requests, for as long as this plan is made."""
        # No slot is reserved: slots become free one at a time, and the run is ahead of those that would take the next.
        self.reserved_for = run_id
        self._reserved = requests

    def available(self, name: str, requested: float) -> float:
        """Returns how much of a resource is free for a run that requests that much of it."""
        if is_pin(name):
            return self.devices.get(name[len(PIN) :], 1.0)
        if name == TIME:
            return self.worker.lasts
        if name == GPU and self.devices:
            return devices.available(self.devices, requested)
        return self.free[name]
