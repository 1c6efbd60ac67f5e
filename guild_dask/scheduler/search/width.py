"""How many trials are worth being in flight: the slots that would take them. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Capacity:
    """The slots and amounts of a worker."""

    slots: int
    amounts: Mapping[str, float]


def width_for(workers: Iterable[Capacity], requests: Mapping[str, float]) -> int:
    """Returns how many runs with these requests all workers together have room for."""
    return sum(_runs_on(each, requests) for each in workers)


def width_to_come(slots: int, kinds: Iterable[Capacity], requests: Mapping[str, float]) -> int:
    """Returns for how many runs an elastic pool has room that may have so many slots, with workers of these kinds."""
    return max((slots // each.slots * _runs_on(each, requests) for each in kinds if each.slots), default=0)


def _runs_on(worker: Capacity, requests: Mapping[str, float]) -> int:
    shares = (worker.amounts.get(name, 0.0) / amount for name, amount in requests.items() if amount > 0)
    # A little more, against rounding errors: ten runs that request 0.1 each fit beside each other.
    return math.floor(min((worker.slots, *shares), default=worker.slots) + 1e-6)
