"""How long a run is expected to take, from completed runs of its operation. Pure."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# The weight of a completed run, compared with that of the run that completed after it.
_AGEING = 0.7

# Runs that completed before that many others have a negligible weight, and are left out.
_MOST = 20

# The weight of a run with other flags only; one with the same flags has a weight of 1 more.
_STRANGER = 0.1


class Completed(NamedTuple):
    """A completed run: its flags, and how long it took."""

    flags: Mapping[str, str]
    seconds: float


def expected_seconds(completed: Sequence[Completed], flags: Mapping[str, str]) -> float | None:
    """Returns the weighted median of completed runs, given the oldest first; None without any.

    Recent runs and those with the same flags count more: a first trial of one epoch says little about long ones.
    """
    if not completed:
        return None
    weighed = sorted(
        (run.seconds, _AGEING**age * (_STRANGER + _similarity(run.flags, flags) ** 4))
        for age, run in enumerate(itertools.islice(reversed(completed), _MOST))
    )
    half, so_far = sum(weight for _, weight in weighed) / 2, 0.0
    for seconds, weight in weighed:
        so_far += weight
        if so_far >= half:
            return seconds
    return weighed[-1][0]


def _similarity(one: Mapping[str, str], other: Mapping[str, str]) -> float:
    """Returns the share of equal flags."""
    if one == other:
        return 1.0
    names = one.keys() | other.keys()
    return sum(name in one and one[name] == other.get(name) for name in names) / len(names) if names else 1.0
