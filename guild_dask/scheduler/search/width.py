"""How many trials are worth being in flight: the slots that would take them. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Capacity:
    """The slots and amounts of a worker."""

    slots: int
    amounts: Mapping[str, float]


@dataclass(frozen=True)
class Pool:
    """Workers that are there, and those that may come: so many slots at most in all, on workers of these kinds."""

    present: Sequence[Capacity]
    slots_at_most: int = 0
    kinds: Sequence[Capacity] = ()


def width_of_pools(pools: Iterable[Pool], requests: Mapping[str, float]) -> int:
    """Returns how many runs with these requests all pools have room for, workers to come included."""
    return sum(
        max(width_for(each.present, requests), width_to_come(each.slots_at_most, each.kinds, requests))
        for each in pools
    )


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
