"""What the users of a scheduler have asked it to do, as it last saw it, and what it has said about that."""

import logging

from guild_dask.home import control
from guild_dask.home.control import Control

log = logging.getLogger("guild")


class Orders:
    """Pause and drain, for one scheduler."""

    def __init__(self, home: str, scheduler_id: str) -> None:
        self._home = home
        self._scheduler_id = scheduler_id
        self._now = Control()

    @property
    def may_start(self) -> bool:
        """Tells whether runs may be started."""
        return not self._now.is_paused and not self._now.is_draining

    @property
    def is_draining(self) -> bool:
        """Tells whether the scheduler is to end when its runs have ended."""
        return self._now.is_draining

    @property
    def phase(self) -> str:
        """Returns what others are told that the scheduler does."""
        return "draining" if self._now.is_draining else "paused" if self._now.is_paused else "working"

    def look(self, running: int) -> bool:
        """Tells whether something else is asked than at the last look, and says what it is."""
        before, self._now = self._now, control.state(self._home, self._scheduler_id)
        if self._now == before:
            return False
        if self._now.is_draining and not before.is_draining:
            log.info("Draining: starting no more runs, and stopping when %d running run(s) have ended", running)
        elif self._now.is_paused and not before.is_paused:
            log.info("Paused: running runs go on, and none is started before 'guild-dask resume'")
        elif self.may_start:
            log.info("Resumed")
        return True

    def forget(self) -> None:
        """Takes away what was asked of this scheduler alone, which ends."""
        control.forget(self._home, self._scheduler_id)
