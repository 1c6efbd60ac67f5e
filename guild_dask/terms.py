"""On which terms a starter runs its run, as the scheduler tells it."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Terms:
    """What a starter is told beside the run: a text on its command line, or a part of the template's request."""

    grace: float = 10.0  # seconds between TERM and KILL
    attempt: int = 1
    time_limit: float = 0.0  # seconds that the run may take; 0: as many as it likes
    threads: int = 0  # CPU threads that it asked for; 0: it did not ask
    devices: str | None = None  # the devices that it gets, as CUDA_VISIBLE_DEVICES; None: nobody gives them
    memory: float = 0.0  # bytes that it asked for; 0: it did not ask
    whereabouts: str = ""  # what whereabouts.py writes into the run as it starts
    # The rest is for a worker in another process than the scheduler.
    node: str | None = None  # the host, as `guild runs` is to show it
    lease: float = 0.0  # the run is ended when the Guild home could not be reached for so many seconds; 0: never
    has_lifeline: bool = False  # the run is ended when the worker dies

    def as_text(self) -> str:
        return json.dumps(asdict(self))


def terms_for_text(text: str) -> Terms:
    """Returns the terms that as_text() wrote."""
    return Terms(**json.loads(text))
