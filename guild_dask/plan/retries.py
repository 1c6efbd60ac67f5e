"""Whether a run that was lost or failed is started again, and after which pause. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

# How often a run is started again after its worker was lost, unless the user sets `retries`.
LOSSES = 3

_FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 600.0


@dataclass(frozen=True)
class Policy:
    """How often a run is started again: after its worker was lost, and after it failed."""

    lost: int = LOSSES
    failed: int = 0


def policy_for(retries: int | None) -> Policy:
    """Returns the policy for the number of retries that the user set; None if the user set none."""
    return Policy() if retries is None else Policy(lost=retries, failed=retries)


def may_try_again(policy: Policy, losses: Sequence[bool], is_loss: bool) -> bool:
    """Returns whether the run may be attempted again.

    `losses` has an entry for each earlier attempt: True if its worker was lost, False if the run failed. `is_loss` is
    the same for the latest attempt.
    """
    if is_loss:
        return sum(losses) < policy.lost
    return len(losses) - sum(losses) < policy.failed


def pause_after(attempts: int, first: float = _FIRST_PAUSE) -> float:
    """Returns the pause in seconds before the next attempt, after that many attempts; `first` is the shortest."""
    return min(first * 2.0 ** min(max(attempts - 1, 0), 20), _LONGEST_PAUSE)
