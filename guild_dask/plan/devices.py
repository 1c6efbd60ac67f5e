"""Which devices (GPUs) of a worker a run gets. Pure.

A worker's devices have names. A run asks for a whole number of them, or for a part of one, which it may share with
others; `gpu:NAME` asks for that very device. Where a worker's GPUs have no names, they are an amount like any other.
"""

import re
from collections.abc import Mapping, Sequence

from guild_dask.plan.resources import fits

GPU = "gpu"

# Before the name of a device, in what a run asks for.
PIN = "gpu:"


def names_for_text(text: str) -> tuple[str, ...]:
    """Returns the devices that a text such as 0,1,2 names; raises ValueError, with what is accepted, for another."""
    names = tuple(part.strip() for part in text.split(","))
    are_names = all(re.fullmatch(r"\d+|(?:GPU|MIG)-[\w./-]*\w", name, re.ASCII) for name in names)
    if not are_names or len(set(names)) < len(names):
        raise ValueError("use auto, the numbers or ids of devices with commas between them (0,1,2), or no")
    return names


def is_pin(name: str) -> bool:
    """Tells whether that is the name of one very device."""
    return name.startswith(PIN)


def pinned(asks: Mapping[str, float]) -> dict[str, float]:
    """Returns the very devices that are asked for, with the share of each."""
    return {name[len(PIN) :]: amount for name, amount in asks.items() if is_pin(name)}


def amounts(asks: Mapping[str, float], has_devices: bool) -> Mapping[str, float]:
    """Returns what is asked for with devices as an amount; a worker whose GPUs have no names takes no notice of any."""
    pins = pinned(asks)
    if not pins:
        return asks
    plain = {name: amount for name, amount in asks.items() if not is_pin(name)}
    return {**plain, GPU: plain.get(GPU, 0.0) + sum(pins.values())} if has_devices else plain


def asks_with_pins(asks: Mapping[str, float], names: Sequence[str] | None) -> Mapping[str, float]:
    """Returns what a run asks for that was given these very devices, and no others; None: it was not."""
    if names is None:
        return asks
    share = asks.get(GPU, 0.0)
    share = share if 0 < share < 1 and len(names) == 1 else 1.0
    others = {name: amount for name, amount in asks.items() if name != GPU}
    return {**others, **{f"{PIN}{name}": share for name in names}}


def could_be_given(asked: float) -> bool:
    """Tells whether so many devices can be given at all: a part of one, or whole ones."""
    return asked <= 1 or float(asked).is_integer()


def are_taken(wanted: Mapping[str, float], in_use: Mapping[str, float]) -> bool:
    """Tells whether somebody has too much of a device for it to be given, too."""
    return any(not fits(share, 1.0 - in_use.get(name, 0.0)) for name, share in wanted.items())


def pick(free: Mapping[str, float], asks: Mapping[str, float]) -> dict[str, float] | None:
    """Returns the devices for a run, with the share of each, or None if they are not free.

    `free` has the free share of each device. A part is taken of the one that has the least left: whole ones stay whole.
    """
    pins = pinned(asks)
    if any(name not in free or not fits(share, free[name]) for name, share in pins.items()):
        return None
    asked = asks.get(GPU, 0.0)
    if asked <= 0:
        return pins
    share = min(asked, 1.0)
    able = [name for name, left in free.items() if name not in pins and fits(share, left)]
    if share < 1:
        able.sort(key=lambda name: free[name])
    count = max(1, int(asked))
    return {**pins, **dict.fromkeys(able[:count], share)} if len(able) >= count else None


def left(free: Mapping[str, float], taken: Mapping[str, float]) -> dict[str, float]:
    """Returns the free shares when these are taken."""
    return {name: share - taken.get(name, 0.0) for name, share in free.items()}


def available(free: Mapping[str, float], asked: float) -> float:
    """Returns how much of what is free could serve one who asks for that much: whole devices, or the largest part."""
    if asked < 1:
        return max(free.values(), default=0.0)
    return float(sum(fits(1.0, share) for share in free.values()))
