"""How a scheduler that is stopped ends its runs: step by step, each step for those that outlived the last. Pure.

The first Ctrl-C stops nothing while runs are running: it drains the scheduler, in `core.Core._interrupted`.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from guild_dask.scheduler.instructions import DestroyRun, Instruction, KillRun, StopRun

# Seconds from the stop until the scheduler kills runs itself, until it kills their starters, and until it gives up.
# A run's own starter has sent TERM and KILL before that. Guild waits 30 seconds for a scheduler that it stops.
KILL_AFTER = 15.0
DESTROY_AFTER = 20.0
GIVE_UP_AFTER = 21.0

_STEPS: tuple[tuple[float, Callable[[str], Instruction] | None], ...] = (
    (0.0, StopRun),
    (KILL_AFTER, KillRun),
    (DESTROY_AFTER, DestroyRun),
    (GIVE_UP_AFTER, None),
)


@dataclass
class Shutdown:
    """The steps of one shutdown that were taken, by the monotonic clock."""

    began: float
    _taken: int = 0

    @property
    def due(self) -> float:
        """Returns when the next step is due, if runs are left by then."""
        return self.began + _STEPS[self._taken][0] if self._taken < len(_STEPS) else math.inf

    @property
    def is_new(self) -> bool:
        """Returns whether no step was taken yet."""
        return self._taken == 0

    @property
    def has_given_up(self) -> bool:
        """Returns whether the last step was taken; runs that are left belong to the next scheduler."""
        return self._taken == len(_STEPS)

    def steps(self, now: float, active: Iterable[str]) -> list[Instruction]:
        """Returns what to do now to the runs that are left."""
        instructions: list[Instruction] = []
        while self._taken < len(_STEPS) and now >= self.due:
            end = _STEPS[self._taken][1]
            instructions += [end(run_id) for run_id in active] if end else []
            self._taken += 1
        return instructions
