"""Whether a run that was cut short or failed is started again, and after which pause. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

# A run that the machine ended is started again so often, unless the user says otherwise.
LOSSES = 3

_FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 600.0


@dataclass(frozen=True)
class Policy:
    """How often a run is started again: after its worker was lost, and after it failed."""

    lost: int = LOSSES
    failed: int = 0


def policy_for(retries: int | None) -> Policy:
    """Returns the policy for a number of retries as asked for; None is not asked for."""
    return Policy() if retries is None else Policy(lost=retries, failed=retries)


def may_try_again(policy: Policy, losses: Sequence[bool], is_loss: bool) -> bool:
    """Tells whether there is to be one more attempt after those that ended in a loss (True) or failed (False).

    The latest one, which is_loss is about, is not among them.
    """
    if is_loss:
        return sum(losses) < policy.lost
    return len(losses) - sum(losses) < policy.failed


def pause_after(attempts: int) -> float:
    """Returns how many seconds to wait before the next attempt when so many have been made."""
    return min(_FIRST_PAUSE * 2.0 ** min(max(attempts - 1, 0), 20), _LONGEST_PAUSE)
