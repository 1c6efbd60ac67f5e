"""How the process of an operation was started, as facts of the run's attribute `dask`. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

WARM, COLD = "warm", "cold"

# The fact that says which of them, and those with the seconds of a warm start, by the field of ProcessStart.
KIND = "start"
_SECONDS = {"seconds": "start_seconds", "fresh": "cold_start_seconds", "preload": "preload_seconds"}


@dataclass(frozen=True)
class ProcessStart:
    """How the process of an attempt was started, and the seconds up to where Guild's own code begins in it."""

    kind: str = ""  # WARM or COLD; empty: it is not recorded
    seconds: float = 0.0  # of a warm start
    fresh: float = 0.0  # what a fresh process took on that worker
    preload: float = 0.0  # what the import of the modules to preload took there

    @property
    def saved(self) -> float:
        """Returns the seconds that a warm start saved, without what preloaded modules save runs that import them."""
        return max(0.0, self.fresh - self.seconds) if self.kind == WARM else 0.0


NOT_RECORDED = ProcessStart()


def facts_for(start: ProcessStart) -> dict[str, str | float]:
    """Returns a start as facts: `start: warm`, with its seconds beside it."""
    seconds = {fact: round(getattr(start, field), 3) for field, fact in _SECONDS.items()}
    return {KIND: start.kind, **{fact: number for fact, number in seconds.items() if number}}


def start_for(kind: str, numbers: Mapping[str, float]) -> ProcessStart:
    """Returns the start that facts_for() wrote."""
    seconds = {field: numbers.get(fact, 0.0) for field, fact in _SECONDS.items()}
    return ProcessStart(kind, **seconds) if kind else NOT_RECORDED
