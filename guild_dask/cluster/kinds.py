"""What every kind of cluster has in common: its workers' capacity, and the error that it cannot be opened."""

from collections.abc import Mapping
from dataclasses import dataclass


class ClusterError(Exception):
    """The cluster cannot be opened; the text is for the user."""


@dataclass(frozen=True)
class WorkerCapacity:
    """A worker and what it has when it is idle."""

    name: str
    slots: int
    resources: Mapping[str, float]
