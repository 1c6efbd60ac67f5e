"""What the scheduler sends to a worker for one run, and what comes back. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from guild_dask.home.claim_record import Claim
from guild_dask.worker.options import StarterOptions

# A starter's exit code if it did not start the run. An operation may exit with the same code, so it has this meaning
# only while the claim is not marked as started.
NOT_STARTED = 75


@dataclass(frozen=True)
class Job:
    """One attempt at a run."""

    run_dir: str
    claim: Claim
    claims_folder: str
    directory: str  # where the user staged the run: Guild takes it as the current directory
    environ: Mapping[str, str] | None  # None: the environment of the worker
    output: str  # the file for what Guild and the operation print
    options: StarterOptions = field(default_factory=StarterOptions)

    @property
    def run_id(self) -> str:
        return self.claim.run_id


@dataclass(frozen=True)
class Ended:
    """The starter's exit code: Guild's own, NOT_STARTED, or minus the signal that killed it."""

    exit_code: int
    had_claim: bool = (
        True  # False: this job did not own the claim; the job of another scheduler may have started the run
    )
