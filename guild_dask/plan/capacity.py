"""What is free on a worker while a plan is made. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from guild_dask.plan import devices
from guild_dask.plan.devices import GPU, PIN, is_pin
from guild_dask.plan.resources import fits

# A run with a time limit asks for so many seconds under this name. A worker that ends lasts that long, and no run takes
# of it.
TIME = "dask-time"


@dataclass(frozen=True)
class Worker:
    """What a worker has when it is idle, and what is free on it now."""

    name: str
    slots: int
    total: Mapping[str, float]
    free_slots: int
    free: Mapping[str, float]
    devices: Mapping[str, float] = field(default_factory=dict)  # the free share of each; `gpu` is their number
    is_to_come: bool = False  # it is not there yet, and has nothing free
    lasts: float = math.inf  # seconds, from now on


class Room:
    """What is still free on one worker while a plan is made, and the run that it is kept for, if any."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.slots = worker.free_slots
        self.free = {name: worker.free.get(name, 0.0) for name in worker.total}
        self.devices = dict(worker.devices)
        self.spare = self._spare()
        self.reserved_for: str | None = None
        self.kept: Mapping[str, float] = {}

    def _spare(self) -> tuple[float, int]:
        """Returns how much is free, as a value to compare rooms by."""
        total = self.worker.total
        return (sum(self.free[name] / total[name] for name in total if total[name] > 0), -self.slots)

    def defines(self, name: str) -> bool:
        """Tells whether the worker has such a resource or device; without any, it takes no notice of their names."""
        if is_pin(name):
            return not self.devices or name[len(PIN) :] in self.devices
        return name in self.worker.total or name == TIME

    def most(self, name: str) -> float:
        """Returns how much of it the worker has when it is idle."""
        if name == TIME:
            return self.worker.lasts
        return 1.0 if is_pin(name) else self.worker.total.get(name, 0.0)

    def could_hold(self, asks: Mapping[str, float]) -> bool:
        """Tells whether the run would fit if nothing else ran here."""
        # These are no sums, so there is no rounding error: Dask compares them exactly, too.
        if not all(self.defines(name) and amount <= self.most(name) for name, amount in asks.items()):
            return False
        if not self.devices or GPU not in asks:
            return True
        others = len(self.devices) - len(devices.pinned(asks))
        return devices.could_be_given(asks[GPU]) and asks[GPU] <= others

    def has_room(self, asks: Mapping[str, float]) -> bool:
        """Tells whether the run fits now, whoever the room is kept for."""
        return self._has_room(asks, {})

    def may_take(self, asks: Mapping[str, float]) -> bool:
        """Tells whether the run fits beside what is kept for another one."""
        return self._has_room(asks, self.kept)

    def _has_room(self, asks: Mapping[str, float], kept: Mapping[str, float]) -> bool:
        if self.slots < 1:
            return False
        wanted, reserved = self._amounts(asks), self._amounts(kept)
        if not all(fits(amount, self.free[name] - reserved.get(name, 0.0)) for name, amount in wanted.items()):
            return False
        if not self.devices or GPU not in wanted:
            return True
        return self._pick(asks, kept) is not None

    def _pick(self, asks: Mapping[str, float], kept: Mapping[str, float]) -> dict[str, float] | None:
        return devices.pick(devices.left(self.devices, devices.pinned(kept)), asks)

    def _amounts(self, asks: Mapping[str, float]) -> Mapping[str, float]:
        amounts = devices.amounts(asks, has_devices=bool(self.devices))
        return {name: amount for name, amount in amounts.items() if name != TIME} if TIME in amounts else amounts

    def take(self, asks: Mapping[str, float]) -> Mapping[str, float]:
        """Takes what a run that may have it asks for, and returns the shares of devices that it gets."""
        self.slots -= 1
        wanted = self._amounts(asks)
        for name, amount in wanted.items():
            self.free[name] -= amount
        taken = self._pick(asks, self.kept) if self.devices and GPU in wanted else None
        self.devices = devices.left(self.devices, taken) if taken else self.devices
        self.spare = self._spare()
        return taken or {}

    def reserve(self, run_id: str, asks: Mapping[str, float]) -> None:
        """Keeps what a run asks for until there is room for it."""
        # No slot is kept: slots come free one at a time, and the run is ahead of those that it waits before.
        self.reserved_for = run_id
        self.kept = asks

    def available(self, name: str, asked: float) -> float:
        """Returns how much is free for one who asks for that much of it."""
        if is_pin(name):
            return self.devices.get(name[len(PIN) :], 1.0)
        if name == TIME:
            return self.worker.lasts
        if name == GPU and self.devices:
            return devices.available(self.devices, asked)
        return self.free[name]
