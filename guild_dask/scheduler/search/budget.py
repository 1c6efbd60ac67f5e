"""How many trials a search proposes next, and when it is over. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from guild_dask.home.run_scalars import with_32_bits
from guild_dask.home.trials import Trial, TrialState, completed_costs
from guild_dask.plan.objectives import Objective
from guild_dask.plan.search_ends import FailedInARow, MissingScalar, OutOfTime, SearchEnd, TargetReached, TrialsUsed

# A search whose first trials all fail is stopped after so many.
FIRST_FAILURES = 5


@dataclass(frozen=True)
class Limits:
    """When a search ends."""

    max_trials: int
    max_time: float | None = None  # seconds since this start of the search
    target: float | None = None  # of the one objective
    max_failures: int | None = None  # in a row; None: only the first ones count


@dataclass(frozen=True)
class NextTrials:
    """What follows from the trials as they are."""

    proposals: int = 0  # how many trials to propose now
    over: SearchEnd | None = None  # why no more trials are proposed; None if there may be more

    @property
    def is_failure(self) -> bool:
        """Returns whether the search stops at once, and has failed."""
        return self.over is not None and self.over.is_failure


def next_trials(  # noqa: PLR0913  # all that decides
    trials: Sequence[Trial],
    limits: Limits,
    objectives: Sequence[Objective],
    width: int,
    elapsed: float,
    *,
    former: Collection[str] = (),
    batch: str = "",
    earlier: Mapping[str, Sequence[float]] = MappingProxyType({}),
) -> NextTrials:
    """Returns how many trials of a batch to propose, or why the search is over.

    Deleted trials do not count. Failures of former trials, which ended before the search was started again, do not
    end it: the user knows them. `earlier` has the values of runs that are no trials, and count for the target only.
    """
    counted = [trial for trial in trials if trial.state is not TrialState.DELETED]
    judged = [trial for trial in counted if trial.state is not TrialState.FAILED or trial.id not in former]
    failure = _failure(judged, limits.max_failures) or _missing(counted, former, objectives, batch)
    if failure:
        return NextTrials(over=failure)
    if limits.target is not None:
        costs = [cost for trial in counted for cost in completed_costs(trial, objectives)]
        reached = _reached(objectives[0], limits.target, costs, earlier)
        if reached:
            return NextTrials(over=reached)
    if limits.max_time is not None and elapsed >= limits.max_time:
        return NextTrials(over=OutOfTime())
    left = limits.max_trials - len(counted)
    if left <= 0:
        return NextTrials(over=TrialsUsed(limits.max_trials))
    in_flight = sum(trial.is_in_flight for trial in counted)
    return NextTrials(proposals=max(0, min(left, width - in_flight)))


def _reached(
    objective: Objective, target: float, costs: Sequence[float], earlier: Mapping[str, Sequence[float]]
) -> TargetReached | None:
    """Returns that one of the costs of trials, or else an earlier run, has reached the target; else None."""
    # Event files store most values with 32 bits: 0.9 is read as 0.89999998.
    goal = max(map(objective.cost_of, (target, with_32_bits(target))))
    if any(cost <= goal for cost in costs):
        return TargetReached(str(objective), target)
    good = (run for run, values in earlier.items() if objective.cost_of(values[0]) <= goal)
    return next((TargetReached(str(objective), target, run) for run in good), None)


def _failure(trials: Sequence[Trial], limit: int | None) -> FailedInARow | None:
    """Returns that too many trials failed in a row, by the order in which they ended; else None."""
    ended = sorted(
        (each for each in trials if each.state in (TrialState.COMPLETED, TrialState.FAILED, TrialState.PRUNED)),
        key=lambda each: (each.ended or 0.0, each.number),
    )
    most = FIRST_FAILURES if limit is None else limit
    row = ended[:most] if limit is None else ended[-most:]
    if len(row) < most or any(each.state is not TrialState.FAILED for each in row):
        return None
    return FailedInARow(most, limit is None, row[-1].id)


def _missing(
    trials: Sequence[Trial], former: Collection[str], objectives: Sequence[Objective], batch: str
) -> MissingScalar | None:
    """Returns that no trial at all has a value, with the scalars that the first completed one has; else None.

    If any trial has a value, the name is right: one without may have printed what is no scalar, such as `loss: nan`.
    """
    completed = [each for each in trials if each.state is TrialState.COMPLETED and each.id not in former]
    if not completed or any(each.values is not None for each in trials):
        return None
    first = completed[0]
    unknown = [each.scalar for each in objectives if not {each.scalar, each.tag} & set(first.scalars)]
    missing = tuple(unknown or [each.scalar for each in objectives])
    return MissingScalar(first.id, missing, tuple(sorted(first.scalars)), batch, objectives[0].direction)
