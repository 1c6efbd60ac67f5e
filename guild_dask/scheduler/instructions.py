"""What the core of the scheduler asks its shell to do. Each is a value; most are answered with an event. Pure.

Instructions are carried out in order. If the Guild home is unavailable for one of them, the rest of its list is
dropped and the core gets HomeFailed. The answer to an instruction is handled before the next instruction.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from guild_dask.home import claim_record
from guild_dask.home.outcome import Result
from guild_dask.home.run_directory import Staged
from guild_dask.plan.placement import StagedRun
from guild_dask.scheduler.ledger import ActiveRun

# Levels of log lines, as logging has them.
DEBUG, INFO, WARNING = 10, 20, 30


@dataclass(frozen=True)
class RenewHeartbeat:
    """Show other hosts that this scheduler lives, and remove heartbeats of dead schedulers."""


@dataclass(frozen=True)
class ReadControl:
    """Read what users ask of this scheduler. Answer: ControlRead."""


@dataclass(frozen=True)
class Settle:
    """Record how an attempt ended. Answer: Settled, RunLeft, or SettleFailed if the home is unavailable."""

    run_id: str
    exit_code: int
    may_retry: bool
    is_repeated: bool = False  # an unavailable home is then HomeFailed
    message: str = ""  # Guild's last message, for a run without output


@dataclass(frozen=True)
class TidyCluster:
    """Let the cluster do its periodic work."""


@dataclass(frozen=True)
class Recover:
    """Recover runs of dead schedulers, and of our own those that are not known to go on. Answer: ClaimsRecovered."""

    unseen: Set[str]  # runs out of sight, and runs that could not be settled
    known: frozenset[str]
    may_retry: bool


@dataclass(frozen=True)
class ListRuns:
    """Poll the whole runs directory. Answer: Listed."""


@dataclass(frozen=True)
class RefreshRuns:
    """Read these runs again. Answer: Listed."""

    run_ids: frozenset[str]


@dataclass(frozen=True)
class LookUp:
    """Find out what became of runs that others depend on. Answer: LookedUp."""

    references: frozenset[str]
    vanished: frozenset[str]


@dataclass(frozen=True)
class FindRunning:
    """Find runs that run now and that this scheduler has not started. Answer: RunningFound."""

    own: frozenset[str]


@dataclass(frozen=True)
class SeeWorkers:
    """Read what the workers have. Answer: WorkersSeen."""


@dataclass(frozen=True)
class Claim:
    """Take runs out of the queue, all inside one lock. Answer: ClaimAnswered.

    Each claim says what the plan decided: the worker, and what the run gets there. The shell adds what it knows.
    """

    wanted: tuple[tuple[Staged, claim_record.Claim], ...]


@dataclass(frozen=True)
class Submit:
    """Send a claimed run to its worker. Answer: JobLost if this host or the home prevents that, otherwise none."""

    run: ActiveRun


@dataclass(frozen=True)
class FindDeleted:
    """Find out which of the runs that could not be claimed were deleted. Answer: DeletedFound."""

    run_ids: tuple[str, ...]


@dataclass(frozen=True)
class FindTakers:
    """Find out who took runs that were to start here and are not staged any more. Answer: TakersFound."""

    run_ids: tuple[str, ...]


@dataclass(frozen=True)
class CheckClaim:
    """Find out whether a run has started under our claim. Answer: ClaimChecked."""

    run_id: str
    exit_code: int | None  # of the job that ended without the claim; None: it was lost
    problem: str
    may_be_of_run: bool = False  # as the cluster reported the problem


@dataclass(frozen=True)
class RequestDrain:
    """Record that the user asks this scheduler to drain, as `guild-dask drain` does."""


@dataclass(frozen=True)
class CheckStart:
    """Find out whether a run that was submitted has started. Answer: StartChecked."""

    run_id: str


@dataclass(frozen=True)
class RequestStop:
    """Ask runs to end through the Guild home, because the scheduler stops; the only way to reach unseen ones."""

    run_ids: tuple[str, ...]


@dataclass(frozen=True)
class StopRun:
    """Ask the processes of a run to end."""

    run_id: str


@dataclass(frozen=True)
class KillRun:
    """Kill the processes of a run; its starter records that."""

    run_id: str


@dataclass(frozen=True)
class DestroyRun:
    """Kill the processes of a run and its starter."""

    run_id: str


@dataclass(frozen=True)
class CloseOutput:
    """Stop following the output of a run."""

    run_id: str


@dataclass(frozen=True)
class PublishOutcome:
    """Report to observers how an attempt ended."""

    run_id: str
    result: Result


@dataclass(frozen=True)
class PublishLeft:
    """Report to observers that a run does not belong to this scheduler any more."""

    run_id: str


@dataclass(frozen=True)
class AdjustWorkers:
    """Let the cluster request workers for waiting runs, and give back idle ones."""

    waiting: Sequence[StagedRun]
    busy: frozenset[str]


@dataclass(frozen=True)
class Log:
    """Write a line to the scheduler's log."""

    level: int
    text: str


@dataclass(frozen=True)
class Publish:
    """Publish the state if that is due, or at once."""

    at_once: bool = False


Instruction = (
    RenewHeartbeat
    | ReadControl
    | Settle
    | TidyCluster
    | Recover
    | ListRuns
    | RefreshRuns
    | LookUp
    | FindRunning
    | SeeWorkers
    | Claim
    | Submit
    | FindDeleted
    | FindTakers
    | CheckClaim
    | RequestDrain
    | CheckStart
    | RequestStop
    | StopRun
    | KillRun
    | DestroyRun
    | CloseOutput
    | PublishOutcome
    | PublishLeft
    | AdjustWorkers
    | Log
    | Publish
)
