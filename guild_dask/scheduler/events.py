"""What the scheduler's loop waits for. Each comes up as a value on one queue."""

from dataclasses import dataclass

from guild_dask.cluster.events import ClusterEvent


@dataclass(frozen=True)
class RunStaged:
    """A run was staged just now."""

    run_id: str


@dataclass(frozen=True)
class ControlChanged:
    """A user has made or withdrawn a request, which is a file in the Guild home."""


@dataclass(frozen=True)
class StopAsked:
    """A signal asked the scheduler to stop."""


@dataclass(frozen=True)
class SomebodyLooks:
    """A user has opened the page of runs; its state is published at once."""


Event = ClusterEvent | RunStaged | ControlChanged | SomebodyLooks | StopAsked
