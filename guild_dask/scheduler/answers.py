"""The answers to the core's instructions, as values: what the shell found or did. The core handles them as events."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from guild_dask.cluster.base import WorkerCapacity
from guild_dask.home.control import Control
from guild_dask.home.listing import Listing
from guild_dask.home.outcome import Result
from guild_dask.home.recovery import Recovered
from guild_dask.plan.dependencies import Found
from guild_dask.scheduler.ledger import ActiveRun


@dataclass(frozen=True)
class ClusterView:
    """The workers that are there, those that may come, and how many waiting runs the cluster wants to know of."""

    workers: tuple[WorkerCapacity, ...] = ()
    prospects: tuple[WorkerCapacity, ...] = ()
    most_waiting: int = 0


@dataclass(frozen=True)
class ControlRead:
    """What users ask of this scheduler now, and the staged runs that they changed, with the times of the reports."""

    control: Control
    changed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Settled:
    """An attempt is on record, and its claim is gone or is a staged run again."""

    run_id: str
    result: Result
    last_line: str = ""
    is_deleted: bool = False  # its directory is not there any more


@dataclass(frozen=True)
class SettleFailed:
    """An attempt could not be settled, because the home is unavailable."""

    run_id: str
    exit_code: int
    problem: str


@dataclass(frozen=True)
class RunLeft:
    """An attempt could not be settled, because its run cannot be used; a later poll recovers it."""

    run_id: str
    problem: str


@dataclass(frozen=True)
class ClaimsRecovered:
    """What became of the claims that were recovered."""

    recovered: Recovered


@dataclass(frozen=True)
class Listed:
    """What changed in the runs directory."""

    listing: Listing


@dataclass(frozen=True)
class LookedUp:
    """What became of runs that others depend on."""

    found: Mapping[str, Found]


@dataclass(frozen=True)
class RunningFound:
    """Runs that run now and are not this scheduler's."""

    run_ids: tuple[str, ...]


@dataclass(frozen=True)
class WorkersSeen:
    """What the workers have now."""

    view: ClusterView


@dataclass(frozen=True)
class ClaimAnswered:
    """The runs that were claimed, those that cannot be with why, and those that are not staged any more."""

    taken: tuple[ActiveRun, ...]
    refused: Mapping[str, str]
    postponed: Mapping[str, str] = field(default_factory=dict)  # runs that cannot be claimed now, and why
    missing: tuple[str, ...] = ()
    problem: str = ""  # why the home did not allow to go on, if it did not


@dataclass(frozen=True)
class DeletedFound:
    """Runs that were deleted before they could be claimed."""

    run_ids: tuple[str, ...]


@dataclass(frozen=True)
class TakersFound:
    """The schedulers that took runs; an empty text for a Guild queue or a user. Runs that were deleted are left out."""

    schedulers: Mapping[str, str]


@dataclass(frozen=True)
class ClaimChecked:
    """Whether a run has started, whose job ended or was lost without having had the claim."""

    run_id: str
    exit_code: int | None
    problem: str
    has_started: bool
    may_be_of_run: bool = False  # as the cluster reported the problem


@dataclass(frozen=True)
class StartChecked:
    """Whether a run that was submitted has started."""

    run_id: str
    has_started: bool


@dataclass(frozen=True)
class HomeFailed:
    """The Guild home was unavailable; the instructions after the one that failed were dropped."""

    problem: str


Answer = (
    ControlRead
    | Settled
    | SettleFailed
    | RunLeft
    | ClaimsRecovered
    | Listed
    | LookedUp
    | RunningFound
    | WorkersSeen
    | ClaimAnswered
    | DeletedFound
    | TakersFound
    | ClaimChecked
    | StartChecked
    | HomeFailed
)
