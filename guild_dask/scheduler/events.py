"""What happens outside of the scheduler's loop: each is a value that is put on the loop's queue.

What the cluster reports (JobEnded, JobLost, JobUnseen, WorkersChanged, ...) is in cluster.events. This module is
imported before the signal handlers are set, so it must load neither Guild nor Dask.
"""

from dataclasses import dataclass

from guild_dask.cluster.events import ClusterEvent


@dataclass(frozen=True)
class RunStaged:
    """A run was staged."""

    run_id: str


@dataclass(frozen=True)
class ControlChanged:
    """A user asked for something, or took it back; what is asked is in the Guild home."""


@dataclass(frozen=True)
class StopRequested:
    """A signal asked the scheduler to stop."""


@dataclass(frozen=True)
class Interrupted:
    """The user pressed Ctrl-C in the terminal that shows the scheduler."""


@dataclass(frozen=True)
class PageOpened:
    """The page of runs was opened in a browser and wants the state now."""


# What may be put on the loop's queue by signal handlers, watchers, the page and the cluster.
OutsideEvent = RunStaged | ControlChanged | StopRequested | Interrupted | PageOpened | ClusterEvent
