"""The scheduler's own Guild run."""

import os
from dataclasses import dataclass

from guild_dask.home import layout


@dataclass(frozen=True)
class SchedulerRun:
    """The run that Guild made for this scheduler."""

    id: str
    dir: str

    def mark_as_batch(self) -> None:
        """Makes Guild leave this run out of `compare` and `view`, as it leaves out batches."""
        os.makedirs(layout.prototype(self.dir), exist_ok=True)


def this_run() -> SchedulerRun:
    """Returns the run of this process, or the current directory as one if Guild has not started it."""
    return SchedulerRun(os.environ.get("RUN_ID", f"process-{os.getpid()}"), os.environ.get("RUN_DIR", os.getcwd()))
