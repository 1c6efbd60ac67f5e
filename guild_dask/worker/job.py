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

# Begins the text of a problem that may be the run's; no other one begins so. Other versions show it as it is.
_OF_RUN = " "


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
    problem: str = ""  # with NOT_STARTED: what kept the run from starting; else Guild's last message
    may_be_of_run: bool = False  # with NOT_STARTED: the problem is no shortage of the host

    def as_text(self) -> str:
        return f"{self.code} {_OF_RUN if self.may_be_of_run else ''}{self.problem}"


def report_for_text(text: str) -> Report | None:
    """Returns the report that as_text() wrote; None if there is none, because the starter was killed before."""
    code, _, problem = text.partition(" ")
    return Report(int(code), problem.removeprefix(_OF_RUN), problem.startswith(_OF_RUN)) if code else None


@dataclass(frozen=True)
class Ended:
    """What the job's starter reported, or that it was killed."""

    exit_code: int  # as in the report
    had_claim: bool = (
        True  # False: this job did not own the claim; the job of another scheduler may have started the run
    )
    problem: str = ""  # as in the report
    may_be_of_run: bool = False  # as in the report; workers with an older version do not set it
