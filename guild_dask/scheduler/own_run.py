"""The scheduler's own Guild run."""

import contextlib
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class SchedulerRun:
    """The run that Guild made for this scheduler."""

    id: str
    dir: str

    def path(self, name: str) -> str:
        """Returns a path in the run's directory."""
        return os.path.join(self.dir, name)

    def look_like_a_batch(self) -> None:
        """Makes Guild leave this run out of `compare` and `view`, as it leaves out batches."""
        os.makedirs(os.path.join(self.dir, ".guild", "proto"), exist_ok=True)


# Where the scheduler follows what its runs print.
RUN_OUTPUT = "run-output"


def remove_output(scheduler_dir: str, run_id: str) -> None:
    """Removes what a dead scheduler left of following a run that is over."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(scheduler_dir, RUN_OUTPUT, run_id))
    with contextlib.suppress(OSError):  # others are still there
        os.rmdir(os.path.join(scheduler_dir, RUN_OUTPUT))


def this_run() -> SchedulerRun:
    """Returns the run of this process. Without Guild around it, the current directory stands in for it."""
    return SchedulerRun(os.environ.get("RUN_ID", f"process-{os.getpid()}"), os.environ.get("RUN_DIR", os.getcwd()))
