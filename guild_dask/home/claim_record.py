"""A claim on a run, as a value and as text. An unreadable claim is None. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from guild_dask.host.processes import ProcessIdentity
from guild_dask.plan import records


@dataclass(frozen=True)
class Claim:
    """Who claimed a run, for which attempt, and which process starts it."""

    run_id: str
    scheduler_id: str  # the scheduler's run id
    scheduler: ProcessIdentity
    owner: ProcessIdentity  # the process that may start the run: the scheduler, and then the run's starter
    attempt: int = 1  # at the run, with those of other schedulers before us
    requests: Mapping[str, float] = field(default_factory=dict)
    serial: int = 0  # another for each claim of a scheduler
    worker: str = ""
    devices: Mapping[str, float] = field(default_factory=dict)  # the share that the run has of each
    lease: float = 0.0  # seconds without a heartbeat after which the starter ends the run; 0: it sends none
    before: str | None = None  # what Guild had recorded of earlier starts when the run was claimed; None: not known

    def as_data(self) -> dict[str, Any]:
        # Plain numbers, and not amounts as they were typed: other versions read no others.
        data = records.data_for(replace(self, requests={name: float(amount) for name, amount in self.requests.items()}))
        return {_RUN: data.pop("run_id"), **data}

    def as_text(self) -> str:
        return json.dumps(self.as_data())


# The name of the field `run_id` in the data.
_RUN = "run"


def claim_for_text(text: str) -> Claim | None:
    """Returns the claim that as_text() wrote, or None where the text is something else."""
    try:
        data = json.loads(text)
        return records.value_for(Claim, {**data, "run_id": data[_RUN]})
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def identity_for_data(data: Any) -> ProcessIdentity | None:
    """Returns the identity of a process that its as_data() wrote, or None where the data is something else."""
    try:
        return records.value_for(ProcessIdentity, data)
    except ValueError:
        return None
