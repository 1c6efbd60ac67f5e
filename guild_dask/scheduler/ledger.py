"""What a scheduler remembers about the runs that it started. Pure."""

from collections import Counter
from dataclasses import dataclass, field

from guild_dask.home.claim_record import Claim
from guild_dask.home.outcome import End
from guild_dask.home.run_directory import Staged


@dataclass(frozen=True)
class ActiveRun:
    """A claimed run that was sent to a worker."""

    run: Staged
    claim: Claim
    host: str  # of its worker
    output: str = ""  # the file that takes what the run prints
    directory: str = ""  # in which Guild starts it

    @property
    def worker(self) -> str:
        """Returns the name of its worker."""
        return self.claim.worker


@dataclass
class Ledger:
    """The runs of this scheduler, by where they are now. A run is in at most one of active, unseen and unsettled."""

    # Runs on workers: from their submission until the cluster reports their end.
    active: dict[str, ActiveRun] = field(default_factory=dict)
    # Runs whose worker is gone. Their claims show whether they still run.
    unseen: dict[str, ActiveRun] = field(default_factory=dict)
    # Ended runs that could not be settled because the Guild home was unavailable, with their exit codes.
    unsettled: dict[str, int] = field(default_factory=dict)
    # Staged runs that wait for another attempt, and when that may start, by the monotonic clock.
    retrying: dict[str, float] = field(default_factory=dict)
    # How often each run was submitted without having started.
    starts: dict[str, int] = field(default_factory=dict)
    # Runs that completed and were deleted, as Guild does with batches: others may depend on them.
    vanished: set[str] = field(default_factory=set)
    # Claims on runs that go on without a scheduler, or out of its sight.
    orphans: tuple[Claim, ...] = ()
    # Claims of other schedulers on devices of this host.
    neighbours: tuple[Claim, ...] = ()
    outcomes: Counter[End] = field(default_factory=Counter)

    def knows(self, run_id: str) -> bool:
        """Returns whether a run is on its way, or will be tried again."""
        return any(run_id in each for each in (self.active, self.unseen, self.unsettled, self.retrying))

    @property
    def busy_workers(self) -> frozenset[str]:
        """Returns the workers that have runs, as far as this scheduler knows."""
        return frozenset(run.worker for run in (*self.active.values(), *self.unseen.values()))
