"""The trials of a search, with what became of each: read from their own run directories and the search's journal.

Everything that a search knows about its trials is read here, at every step; nothing is kept elsewhere. The commands and
the page read searches through the same functions.
"""

import enum
import math
import pathlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from guild_dask.home import claims, layout, run_directory, run_info, search_journal
from guild_dask.home.liveness import Liveness, liveness
from guild_dask.home.outcome import Cause, Ending, cause_for_name
from guild_dask.home.run_scalars import ScalarReader
from guild_dask.home.search_journal import Proposal, SearchLog
from guild_dask.home.status import ENDED, Status, status
from guild_dask.host import files, signals
from guild_dask.plan.objectives import Objective, costs, objectives_for_options, objectives_for_text

# A trial's attribute that names the search.
ATTRIBUTE = "dask_search"

# The tag, and the label, of a trial that was ended early.
PRUNED = "pruned"

# The most bytes of a trial's event files that are read at a time.
MOST_READ = 100_000_000


class TrialState(enum.Enum):
    """What became of a trial. The value is the name for users."""

    PROPOSED = "proposed"  # its run is not staged yet
    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    PRUNED = "pruned"  # the search ended it early
    STOPPED = "stopped"  # a user ended it
    FAILED = "failed"
    CUT_SHORT = "cut short"  # it was ended with its scheduler or its starter, and is to be staged again
    DELETED = "deleted"


# Trials that may still get a value.
IN_FLIGHT = frozenset((TrialState.PROPOSED, TrialState.WAITING, TrialState.RUNNING, TrialState.CUT_SHORT))


@dataclass(frozen=True)
class Trial:
    """One trial of a search."""

    id: str
    number: int  # in the order of proposals, from 1
    point: Mapping[str, Any]  # the flags that the search chose
    proposed: float  # seconds since 1970
    state: TrialState
    values: tuple[float, ...] | None = None  # of the objectives; None: it has none, or not all of them
    curves: tuple[Mapping[int, float], ...] = ()  # of each objective, the values by step, if they are read
    scalars: tuple[str, ...] = ()  # names of all scalars that the run has
    started: float | None = None
    ended: float | None = None
    cause: Cause | None = None  # of a trial that was cut short

    @property
    def is_in_flight(self) -> bool:
        """Returns whether the trial may still get a value."""
        return self.state in IN_FLIGHT


def completed_costs(trial: Trial, objectives: Sequence[Objective]) -> tuple[float, ...]:
    """Returns the costs of a completed trial; none if it has no value, or one that is not a number."""
    if trial.state is not TrialState.COMPLETED or trial.values is None:
        return ()
    return () if any(map(math.isnan, trial.values)) else costs(objectives, trial.values)


@dataclass
class _Known:
    """What was read of a trial's run."""

    scalars: ScalarReader
    mark: tuple[int, ...] = ()  # changes when the run ends anew
    trial: Trial | None = None  # of a run that has ended, and has not changed since


class TrialReader:
    """Reads the trials of one search, again and again. Runs that have ended are read once.

    A search leaves it to schedulers to decide how a run ended that has a claim. A view does not wait for that: with
    `is_view`, a run whose starter is dead has ended as its own records have it.
    """

    def __init__(
        self,
        home: str,
        batch: str,
        objectives: Sequence[Objective],
        with_curves: bool = False,
        *,
        is_view: bool = False,
    ) -> None:
        self._home = home
        self._claims = layout.claims_folder(home)
        self._batch_dir = layout.run_dir(home, batch)
        self._objectives = objectives
        self._with_curves = with_curves
        self._is_view = is_view
        self._known: dict[str, _Known] = {}

    def read(self, log: SearchLog | None = None) -> list[Trial]:
        """Returns all trials in the order of their numbers; raises OSError if the home cannot be read."""
        log = search_journal.read(self._batch_dir) if log is None else log
        return [self._trial(each, log) for each in sorted(log.proposals.values(), key=lambda each: each.number)]

    def read_some(self, log: SearchLog, seconds: float) -> tuple[list[Trial], bool]:
        """Returns as many of the trials as are read in that time, the latest first, and whether these are all."""
        end = time.monotonic() + seconds
        found: list[Trial] = []
        proposals = sorted(log.proposals.values(), key=lambda each: -each.number)
        # Runs that have ended are known after the first time, and then take no time.
        for proposal in sorted(proposals, key=self._is_unknown):
            if found and self._is_unknown(proposal) and time.monotonic() > end:
                break
            found.append(self._trial(proposal, log))
        return sorted(found, key=lambda each: each.number), len(found) == len(proposals)

    def _is_unknown(self, proposal: Proposal) -> bool:
        known = self._known.get(proposal.trial)
        return known is None or known.trial is None

    def _trial(self, proposal: Proposal, log: SearchLog) -> Trial:
        run_dir = layout.run_dir(self._home, proposal.trial)
        known = self._known.get(proposal.trial)
        if known is None:
            known = self._known[proposal.trial] = _Known(ScalarReader(run_dir, self._followed, self._with_curves))
        mark = run_directory.attribute_times(run_dir, ("exit_status", "stopped", "started"))
        if known.trial and known.mark == mark and not run_directory.seems_staged(run_dir):
            return known.trial
        state = self._state(proposal, log, run_dir)
        trial = self._with_values(Trial(proposal.trial, proposal.number, proposal.point, proposal.at, state), known)
        is_over = not trial.is_in_flight and trial.state is not TrialState.DELETED
        known.mark, known.trial = mark, trial if is_over else None
        return trial

    @property
    def _followed(self) -> frozenset[str]:
        return frozenset(each.tag for each in self._objectives)

    def _state(self, proposal: Proposal, log: SearchLog, run_dir: str) -> TrialState:
        if run_directory.is_missing(run_dir):
            return TrialState.DELETED if proposal.trial in log.staged else TrialState.PROPOSED
        if proposal.trial not in log.staged and not was_staged(run_dir, self._claims):
            return TrialState.PROPOSED
        found = status(run_dir)
        if found not in ENDED:
            return _STATES[found]
        claim = claims.present(self._claims, proposal.trial)
        if claim is not None and (undecided := self._state_of_claimed(claim, run_dir)):
            return undecided
        again = status(run_dir)
        if again is not found:
            # A scheduler gave it back meanwhile: for a moment, it is neither pending nor staged, and reads as an error.
            return _STATES.get(again, TrialState.RUNNING)
        state = _STATES.get(found) or _state_of_ended(run_dir, found, log.pruning.get(proposal.trial, set()))
        is_given_up = state is TrialState.CUT_SHORT and proposal.trial in log.given_up
        return TrialState.FAILED if is_given_up else state

    def _state_of_claimed(self, claim: claims.Found, run_dir: str) -> TrialState | None:
        """Returns the state of a trial whose run has ended, and has a claim; None if it is as the run's records say."""
        has_end = run_directory.has_end(run_dir)
        if not self._is_view or liveness(claim, run_dir, has_end) is not Liveness.DEAD:
            return TrialState.RUNNING  # its scheduler, or the next one, decides how it ended
        return None if has_end else TrialState.CUT_SHORT

    def _with_values(self, trial: Trial, known: _Known) -> Trial:
        if trial.state in (TrialState.PROPOSED, TrialState.WAITING, TrialState.DELETED):
            return trial
        run_dir = layout.run_dir(self._home, trial.id)
        is_partial = known.scalars.update(MOST_READ) or known.scalars.is_unavailable
        if is_partial and not trial.is_in_flight:
            return replace(trial, state=TrialState.RUNNING)  # what it has achieved is not known yet
        found = [known.scalars.find(each.scalar) for each in self._objectives]
        values = tuple(
            objective.value_of(scalar) for objective, scalar in zip(self._objectives, found, strict=True) if scalar
        )
        return Trial(
            trial.id,
            trial.number,
            trial.point,
            trial.proposed,
            trial.state,
            values if len(values) == len(self._objectives) else None,
            tuple(known.scalars.curve(each.scalar) for each in self._objectives),
            tuple(known.scalars.scalars),
            start_time(run_dir),
            None if trial.is_in_flight else _recorded_time(run_dir, "stopped"),
            _cause_of(run_dir) if trial.state is TrialState.CUT_SHORT else None,
        )


def was_staged(run_dir: str, claims_folder: pathlib.Path) -> bool:
    """Returns whether a trial's run is complete: it is staged, or has been claimed or started since.

    Guild sets the STAGED marker before it removes PENDING. No scheduler takes a run that a kill left with both.
    """
    # In this order: a run that a scheduler claims meanwhile, starts or gives back is seen at one of these places.
    return (
        run_directory.is_staged(run_dir)
        or claims.present(claims_folder, layout.run_id(run_dir)) is not None
        or run_directory.has(run_dir, layout.LOCK)
        or run_directory.has_end(run_dir)
        or run_directory.is_staged(run_dir)
    )


_STATES = {
    Status.STAGED: TrialState.WAITING,
    Status.PENDING: TrialState.WAITING,
    Status.RUNNING: TrialState.RUNNING,
    Status.COMPLETED: TrialState.COMPLETED,  # also if it was to be pruned, and had ended by itself before
}


def _state_of_ended(run_dir: str, found: Status, pruning: set[float | None]) -> TrialState:
    """Returns how a trial has ended, of which these attempts were to be ended early."""
    was_to_be_pruned = not pruning.isdisjoint((None, start_time(run_dir)))
    cause = _cause_of(run_dir)
    if cause is Cause.PRUNED or cause is Cause.STOPPED:  # whatever the exit status: an operation may handle the signal
        # Earlier versions pruned with the stop request of a user.
        return TrialState.PRUNED if cause is Cause.PRUNED or was_to_be_pruned else TrialState.STOPPED
    if cause in (Cause.SCHEDULER_STOPPED, Cause.KILLED):
        return TrialState.CUT_SHORT  # also if it was to be pruned: that is decided anew
    if found is Status.TERMINATED and was_to_be_pruned:
        return TrialState.PRUNED
    # Without a cause, its starter was killed, or a user started it by hand.
    is_by_user = cause is None and signals.is_request(run_directory.recorded_status(run_dir) or 0)
    return TrialState.STOPPED if is_by_user else TrialState.FAILED


def _cause_of(run_dir: str) -> Cause | None:
    """Returns what cut a run short, as it is on record; raises OSError if the home cannot be read."""
    facts = run_directory.recorded_attribute(run_dir, run_info.NAME)
    return cause_for_name(run_info.cause_in(facts)[0]) if isinstance(facts, dict) else None


def start_time(run_dir: str) -> float | None:
    """Returns when Guild last started a run, or staged it since, which identifies an attempt at it.

    Raises OSError if the home cannot be read.
    """
    return _recorded_time(run_dir, "started")


def _recorded_time(run_dir: str, name: str) -> float | None:
    return run_directory.seconds_for(run_directory.recorded_attribute(run_dir, name))


@dataclass(frozen=True)
class RecordedSearch:
    """A search, as it is on record."""

    batch: str  # its run id
    status: Status  # of the search's own run
    optimizer: str  # such as dask:tpe
    operation: str  # of its trials
    objectives: tuple[Objective, ...]
    max_trials: int
    flags: Mapping[str, Any]  # of the optimizer, as typed
    space: Mapping[str, Any]  # the flags of the trials, as typed: ranges, lists and values
    log: SearchLog = field(default_factory=SearchLog)


def batches(home: str) -> list[str]:
    """Returns the run ids of all searches that have begun, the first one first."""
    runs = layout.runs_dir(home)
    found = [name for name in files.names(runs) if search_journal.exists(layout.run_in(runs, name))]
    return sorted(found, key=lambda name: (_initialized(layout.run_in(runs, name)), name))


def _initialized(run_dir: str) -> float:
    return run_directory.recorded_seconds(run_dir, "initialized") or 0.0


def search(home: str, batch: str) -> RecordedSearch:
    """Returns a search; raises OSError or ValueError if its records cannot be read."""
    run_dir = layout.run_dir(home, batch)
    proto = layout.prototype(run_dir)
    log = search_journal.read(run_dir)
    trials = run_directory.recorded_attribute(run_dir, "max_trials")
    return RecordedSearch(
        batch,
        status(run_dir),
        run_directory.own_operation(run_dir),
        run_directory.operation(proto),
        objectives(run_dir, log),
        trials if isinstance(trials, int) else 0,
        run_directory.recorded_attribute(run_dir, "flags") or {},
        run_directory.recorded_attribute(proto, "flags") or {},
        log,
    )


def objectives(batch_dir: str, log: SearchLog) -> tuple[Objective, ...]:
    """Returns the objectives of a batch: those that the user named last; raises BadObjective, or OSError."""
    # A restart replaces the options on record, and moves those of the start before to the prototype.
    for run_dir in (batch_dir, layout.prototype(batch_dir)):
        given = run_directory.recorded_attribute(run_dir, "run_params")
        if isinstance(given, dict) and (given.get("minimize") or given.get("maximize")):
            return objectives_for_options(given.get("minimize"), given.get("maximize"))
    if log.objectives:
        return objectives_for_text(log.objectives, is_minus_for_all=False)
    # Guild writes `--maximize 'a b'` as `-a b`.
    return objectives_for_text(str(run_directory.recorded_attribute(batch_dir, "objective") or "loss"))


def batch_of(run_dir: str) -> str | None:
    """Returns the search that a run is a trial of; None if it is not a trial."""
    found = run_directory.known_attribute(run_dir, ATTRIBUTE)
    return str(found["batch"]) if isinstance(found, dict) and "batch" in found else None


def with_search(ending: Ending, run_dir: str) -> Ending:
    """Returns how an attempt at a run ended with the search that pruned it, if one did."""
    is_pruned = cause_for_name(ending.cause) is Cause.PRUNED
    return replace(ending, search=batch_of(run_dir) or "") if is_pruned else ending
