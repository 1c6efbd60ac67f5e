"""The options of one run's starter, as the scheduler sets them."""

import json
from dataclasses import dataclass

from guild_dask.plan import records


@dataclass(frozen=True)
class StarterOptions:
    """What a starter gets beside the run: as text on its command line, or in the request to the forkserver."""

    grace: float = 10.0  # seconds between TERM and KILL
    attempt: int = 1
    time_limit: float = 0.0  # seconds that the run may take; 0: no limit
    threads: int = 0  # CPU threads that the run requests; 0: it does not request any
    devices: str | None = None  # the run's devices, as CUDA_VISIBLE_DEVICES; None: the scheduler assigns none
    memory: float = 0.0  # bytes that the run requests; 0: it does not request any
    warm: bool = True  # the operation's process may be forked from a warm server
    preload: tuple[str, ...] = ()  # modules that a warm server is to load beside those of Guild
    run_info: str = ""  # what the starter writes into the run's attribute `dask` when it starts
    # The rest is for workers that are not in the scheduler's process.
    node: str | None = None  # the host's name, for `guild runs` to show
    lease: float = 0.0  # the run is ended when the Guild home was unreachable for this many seconds; 0: never
    has_lifeline: bool = False  # the run is ended when the worker dies

    def as_text(self) -> str:
        return json.dumps(records.data_for(self))


def options_for_text(text: str) -> StarterOptions:
    """Returns the options that as_text() wrote."""
    return records.value_for(StarterOptions, json.loads(text))
