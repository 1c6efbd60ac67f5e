"""Which devices (GPUs) of a worker a run gets. Pure.

A worker's devices have names. A run requests a whole number of them, or a fraction of one, which it may share with
other runs; `gpu:NAME` requests that device and no other. If a worker's GPUs have no names, they are a plain amount.
"""

import re
from collections.abc import Mapping, Sequence

from guild_dask.plan.resources import fits

GPU = "gpu"

# Precedes the name of a device in a run's requests.
PIN = "gpu:"


def names_for_text(text: str) -> tuple[str, ...]:
    """Returns the devices in a text such as 0,1,2; raises ValueError, which says what is accepted, for other text."""
    names = tuple(part.strip() for part in text.split(","))
    are_names = all(re.fullmatch(r"\d+|(?:GPU|MIG)-[\w./-]*\w", name, re.ASCII) for name in names)
    if not are_names or len(set(names)) < len(names):
        raise ValueError("use auto, the numbers or ids of devices with commas between them (0,1,2), or no")
    return names


def is_pin(name: str) -> bool:
    """Returns whether a request is for one particular device."""
    return name.startswith(PIN)


def pinned(requests: Mapping[str, float]) -> dict[str, float]:
    """Returns the particular devices that are requested, with the share of each."""
    return {name[len(PIN) :]: amount for name, amount in requests.items() if is_pin(name)}


def amounts(requests: Mapping[str, float], has_devices: bool) -> Mapping[str, float]:
    """Returns the requests with particular devices counted as `gpu`, or left out if the GPUs have no names."""
    pins = pinned(requests)
    if not pins:
        return requests
    plain = {name: amount for name, amount in requests.items() if not is_pin(name)}
    return {**plain, GPU: plain.get(GPU, 0.0) + sum(pins.values())} if has_devices else plain


def requests_with_pins(requests: Mapping[str, float], names: Sequence[str] | None) -> Mapping[str, float]:
    """Returns the requests of a run that must get exactly these devices; unchanged if names is None."""
    if names is None:
        return requests
    share = requests.get(GPU, 0.0)
    share = share if 0 < share < 1 and len(names) == 1 else 1.0
    others = {name: amount for name, amount in requests.items() if name != GPU}
    return {**others, **{f"{PIN}{name}": share for name in names}}


def could_be_given(requested: float) -> bool:
    """Returns whether a number of devices can be assigned at all: a fraction of one, or a whole number."""
    return requested <= 1 or float(requested).is_integer()


def are_taken(wanted: Mapping[str, float], in_use: Mapping[str, float]) -> bool:
    """Returns whether other runs use too much of one of the devices for it to be assigned again."""
    return any(not fits(share, 1.0 - in_use.get(name, 0.0)) for name, share in wanted.items())


def pick(free: Mapping[str, float], requests: Mapping[str, float]) -> dict[str, float] | None:
    """Returns the devices for a run, with the share of each, or None if they are not free.

    `free` has the free share of each device. A fraction is taken from the device that has the least left, so that whole
    devices stay whole.
    """
    pins = pinned(requests)
    if any(name not in free or not fits(share, free[name]) for name, share in pins.items()):
        return None
    requested = requests.get(GPU, 0.0)
    if requested <= 0:
        return pins
    share = min(requested, 1.0)
    able = [name for name, left in free.items() if name not in pins and fits(share, left)]
    if share < 1:
        able.sort(key=lambda name: free[name])
    count = max(1, int(requested))
    return {**pins, **dict.fromkeys(able[:count], share)} if len(able) >= count else None


def left(free: Mapping[str, float], taken: Mapping[str, float]) -> dict[str, float]:
    """Returns the free shares after some have been taken."""
    return {name: share - taken.get(name, 0.0) for name, share in free.items()}


def available(free: Mapping[str, float], requested: float) -> float:
    """Returns how many whole devices are free, or the largest free share if a fraction of a device is requested."""
    if requested < 1:
        return max(free.values(), default=0.0)
    return float(sum(fits(1.0, share) for share in free.values()))
