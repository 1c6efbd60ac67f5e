"""What the scheduler sends to a worker for one run, and what comes back. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from guild_dask.home.claim_record import Claim
from guild_dask.home.outcome import NOT_STARTED
from guild_dask.worker.options import StarterOptions

__all__ = ["NOT_STARTED"]

# What is reported instead of an exit status if the run started, and Guild could not follow it to its end, or if its
# starter was killed. No process exits with these: exit codes have eight bits.
LOST = 256
KILLED = 257


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
class Report:
    """What a starter reports when it is done, through a pipe: its output may be on a full disk.

    Its text is no JSON, unlike that of records: it is cut to what a pipe takes at once, and the code must survive that.
    """

    code: int  # the operation's exit status or Guild's exit code, NOT_STARTED, LOST or KILLED
    problem: str = ""  # what was short on the host, if that kept the run from starting; else Guild's last message

    def as_text(self) -> str:
        return f"{self.code} {self.problem}"


def report_for_text(text: str) -> Report | None:
    """Returns the report that as_text() wrote; None if there is none, because the starter was killed before."""
    code, _, problem = text.partition(" ")
    return Report(int(code), problem) if code else None


@dataclass(frozen=True)
class Ended:
    """What the job's starter reported, or that it was killed."""

    exit_code: int  # as in the report
    had_claim: bool = (
        True  # False: this job did not own the claim; the job of another scheduler may have started the run
    )
    problem: str = ""  # with NOT_STARTED: why this host starts no run now; else Guild's last message
