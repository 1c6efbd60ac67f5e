"""What a claim says, as a value and as text. Total: what is no claim is None."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from guild_dask.host.processes import ProcessIdentity, identity_for_data


@dataclass(frozen=True)
class Claim:
    """Who claimed a run, for which attempt, and which process starts it."""

    run_id: str
    scheduler_id: str  # the scheduler's run id
    scheduler: ProcessIdentity
    owner: ProcessIdentity  # the process that may start the run: the scheduler, and then the run's starter
    attempt: int = 1  # at the run, with those of other schedulers before us
    asks: Mapping[str, float] = field(default_factory=dict)
    serial: int = 0  # another for each claim of a scheduler
    worker: str = ""
    devices: Mapping[str, float] = field(default_factory=dict)  # the share that the run has of each
    lease: float = 0.0  # the starter ends the run when it could not beat for so many seconds; 0: it does not beat

    def as_data(self) -> dict[str, Any]:
        return {
            "run": self.run_id,
            "scheduler_id": self.scheduler_id,
            "scheduler": self.scheduler.as_data(),
            "owner": self.owner.as_data(),
            "attempt": self.attempt,
            "asks": {name: float(amount) for name, amount in self.asks.items()},
            "serial": self.serial,
            "worker": self.worker,
            "devices": dict(self.devices),
            "lease": self.lease,
        }

    def as_text(self) -> str:
        return json.dumps(self.as_data())


def claim_for_text(text: str) -> Claim | None:
    """Returns the claim that as_text() wrote, or None where the text is something else."""
    try:
        data = json.loads(text)
        owner = identity_for_data(data["owner"])
        scheduler = identity_for_data(data["scheduler"])
        asks = {str(name): float(amount) for name, amount in data["asks"].items()}
        if owner is None or scheduler is None:
            return None
        return Claim(
            run_id=str(data["run"]),
            scheduler_id=str(data["scheduler_id"]),
            scheduler=scheduler,
            owner=owner,
            attempt=int(data["attempt"]),
            asks=asks,
            serial=int(data.get("serial", 0)),
            worker=str(data.get("worker", "")),
            devices={str(name): float(share) for name, share in data.get("devices", {}).items()},
            lease=float(data.get("lease", 0.0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
