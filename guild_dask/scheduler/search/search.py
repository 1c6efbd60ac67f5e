"""One search: reads what became of its trials, decides, and stages, labels or ends trials. A step at a time.

Nothing is kept between steps but caches: a step reads the journal's log and the trials' runs, and does what is missing.
So a search that was killed goes on with its next step, wherever it was.
"""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from guild_dask.home import claims, control, layout, run_directory, run_queue, stop_request
from guild_dask.home.claim_record import Claim
from guild_dask.home.outcome import Cause, text_for_cause
from guild_dask.home.search_journal import Proposal, SearchJournal, as_recorded
from guild_dask.home.trials import Trial, TrialReader, TrialState, completed_costs, start_time
from guild_dask.monitor import formatting
from guild_dask.monitor.flag_columns import text_for_value
from guild_dask.monitor.searches import SearchPublisher
from guild_dask.plan.objectives import Objective, best_of, costs
from guild_dask.plan.retries import Policy
from guild_dask.plan.search_ends import SearchEnd, SpaceExhausted
from guild_dask.scheduler.search import stopping
from guild_dask.scheduler.search.budget import Limits, NextTrials, next_trials
from guild_dask.scheduler.search.engine import Engine, Knowledge, Observation
from guild_dask.scheduler.search.settings import SearchSettings
from guild_dask.scheduler.search.space import Space, key_of
from guild_dask.scheduler.search.staging import Stager, mark_pruned

log = logging.getLogger("guild")

# What a run prints that can be ended early.
STEP_LINE = 'print(f"step: {step}")'


@dataclass(frozen=True)
class Problem:
    """What a search is about."""

    home: str
    batch: str
    space: Space
    objectives: tuple[Objective, ...]
    max_trials: int


@dataclass(frozen=True)
class Step:
    """What a step has found."""

    is_over: bool = False
    why: SearchEnd | None = None  # known before it is over, while trials are in flight
    reading: float = 0.0  # seconds that it took to read the trials, and to judge their curves

    @property
    def is_failure(self) -> bool:
        """Returns whether the search has failed."""
        return self.why is not None and self.why.is_failure


class Search:
    """The search of one batch."""

    def __init__(
        self,
        problem: Problem,
        settings: SearchSettings,
        engine: Engine,
        journal: SearchJournal,
        policy: Policy,
    ) -> None:
        self._problem = problem
        self._settings = settings
        self._engine = engine
        self._journal = journal
        # Also without a rule now: the engine learns from the curves of trials that were ended early before.
        with_curves = settings.stop_early != "never" or bool(journal.log.pruning)
        self._reader = TrialReader(problem.home, problem.batch, problem.objectives, with_curves)
        self._publisher = SearchPublisher(problem.home, problem.batch)
        self._stager = Stager(problem.home, problem.batch, journal)
        self._known: list[Trial] | None = None  # the trials, as they were read last
        self._prior: list[Observation] = []
        self._policy = policy
        self._began: float | None = None  # at the first step: before, it may have waited for a cluster
        self._limits = Limits(problem.max_trials, settings.max_time, settings.target, settings.max_failures)
        # Trials of earlier starts, which prior=none does not learn from.
        self._forgotten = frozenset(journal.log.proposals if settings.prior == "none" else ())
        self._former: frozenset[str] | None = None  # trials that had ended before this start; None: not read yet
        self._is_exhausted = False  # no point of the space is left
        self._has_repaired = False  # what an earlier start left half done, or a power failure damaged, is repaired once
        self._has_reported = False  # what was there before the first step is no news
        self._costs: dict[str, tuple[Trial, stopping.Curve]] = {}  # the curves of trials as costs
        self._best: list[str] = []  # as it was last logged
        self._reported: set[tuple[str, str]] = set()  # trials that cannot be staged again, and why
        self._has_warned_without_steps = False

    def learn_from(self, prior: Sequence[Observation]) -> None:
        """Makes the search know completed runs that are none of its trials."""
        self._prior = list(prior)

    def better_before(self, trials: Sequence[Trial] = ()) -> list[Observation]:
        """Returns the best of the runs that the search knows from before, as far as no trial beats them."""
        objectives = self._problem.objectives
        known = {each.run: each for each in self._prior}
        found = {each.run: costs(objectives, each.values) for each in self._prior if each.values}
        of_trials = {trial.id: completed_costs(trial, objectives) for trial in trials}
        best = best_of({**found, **{run_id: each for run_id, each in of_trials.items() if each}})
        return [known[run_id] for run_id in best if run_id in known]

    def publish(self) -> None:
        """Shows the search to its observers, as it is before its first step."""
        with contextlib.suppress(OSError):
            self._publisher.publish(self._reader.read(self._journal.log), self._journal.log)

    def trials(self) -> list[Trial]:
        """Returns the trials as they are now, and marks those that were ended early; raises OSError."""
        self._journal.refresh()
        self._known = found = self._reader.read(self._journal.log)
        for trial in found:
            if trial.state is TrialState.PRUNED:
                mark_pruned(layout.run_dir(self._problem.home, trial.id))
        return found

    def publish_end(self) -> list[Trial]:
        """Shows the search to its observers as it has ended, and returns its trials.

        If they cannot be read now, they are as they were read last.
        """
        with contextlib.suppress(OSError):
            self.trials()
        if self._known is None:
            return []
        self._publisher.publish(self._known, self._journal.log)
        return self._known

    def check(self) -> Step:
        """Returns whether the search is over, as its trials are before the first step; stages and ends none.

        Raises OSError.
        """
        trials = self.trials()
        over = self._next(trials, width=0).over
        if len(self._knowledge(trials).avoided) >= self._problem.space.size:
            over = over or SpaceExhausted()
        return Step(over is not None and not any(trial.is_in_flight for trial in trials), over)

    def step(self, width: int, may_go_on: Callable[[], bool] = lambda: True) -> Step:
        """Does what is to be done now; raises OSError or HomeUnavailable if that cannot be written.

        Nothing is staged, and no trial is ended, once `may_go_on` says no.
        """
        began = time.monotonic()
        trials = self.trials()
        reading = time.monotonic() - began
        self._report_news(trials)
        self._publisher.publish(trials, self._journal.log)
        if not may_go_on():
            return Step(reading=reading)
        self._began = time.monotonic() if self._began is None else self._began
        found = self._next(trials, width)
        if found.is_failure:
            return Step(True, found.over)
        self._repair(trials)
        began = time.monotonic()
        self._stop_early(trials)
        reading += time.monotonic() - began
        staged = 0 if self._is_exhausted else self._propose(trials, found, may_go_on)
        over = found.over or (SpaceExhausted() if self._is_exhausted else None)
        is_busy = staged > 0 or any(trial.is_in_flight for trial in trials)
        return Step(over is not None and not is_busy, over, reading=reading)

    def _next(self, trials: Sequence[Trial], width: int) -> NextTrials:
        if self._former is None:
            self._former = frozenset(trial.id for trial in trials if not trial.is_in_flight)
        elapsed = 0.0 if self._began is None else time.monotonic() - self._began
        objectives, batch = self._problem.objectives, self._problem.batch
        earlier = {each.run: each.values for each in self._prior if each.values}
        return next_trials(
            trials, self._limits, objectives, width, elapsed, former=self._former, batch=batch, earlier=earlier
        )

    def is_deleted(self) -> bool:
        """Returns whether the run of the search is gone, and the folder of runs is not."""
        try:
            is_gone = run_directory.is_missing(layout.run_dir(self._problem.home, self._problem.batch))
            return is_gone and run_directory.is_folder(layout.runs_dir(self._problem.home))
        except OSError:
            return False

    # Trials that were left half done, or cut short

    def _repair(self, trials: Sequence[Trial]) -> None:
        is_first = not self._has_repaired
        for trial in trials:
            proposal = self._journal.log.proposals[trial.id]
            if is_first and trial.state is TrialState.WAITING and self._stager.is_damaged(proposal):
                self._stager.unstage(trial.id)
                self._complete(proposal)
            elif trial.state is TrialState.PROPOSED:
                self._complete(proposal)
            elif trial.id not in self._journal.log.staged and trial.state is not TrialState.DELETED:
                self._journal.add("staged", trial=trial.id)  # else it would be made again if the user deletes it
        self._has_repaired = True
        cut_short = [trial for trial in trials if trial.state is TrialState.CUT_SHORT and self._may_go_on_with(trial)]
        if cut_short:
            problems = run_queue.stage_ended(self._problem.home, [trial.id for trial in cut_short])
            for run_id, problem in problems.items() - self._reported:
                log.warning("Cannot stage trial %s again: %s", run_id, problem)
            self._reported |= problems.items()
            for trial in [each for each in cut_short if each.id not in problems]:
                why = text_for_cause(trial.cause) if trial.cause else "it was cut short"
                log.info("Staged trial %s again (%s)", trial.id, why)
                self._announce(trial.id)

    def _may_go_on_with(self, trial: Trial) -> bool:
        """Returns whether a trial that was cut short is to be staged again, and gives it up if it was killed too often.

        A stop of its scheduler does not count. A kill of its starter may be the trial's own fault, as when the kernel
        runs out of memory: since the search was started, there are as many more attempts as after the loss of a worker.
        """
        if trial.cause is not Cause.KILLED:
            return True
        kills = self._journal.log.kills.get(trial.id, set())
        if trial.started not in kills:
            if len(kills) >= self._policy.lost:
                self._journal.add("given-up", trial=trial.id)
                log.warning("Giving up trial %s: %s", trial.id, text_for_kills(len(kills) + 1))
                return False
            self._journal.add("killed", trial=trial.id, started=trial.started)
        return True

    def _complete(self, proposal: Proposal) -> None:
        flags = self._problem.space.flags(proposal.point) if proposal.flags is None else proposal.flags
        self._stager.stage(proposal, flags)
        log.info("Staged trial %s, which was left half staged", proposal.trial)
        self._announce(proposal.trial)

    def _announce(self, run_id: str) -> None:
        """Makes schedulers see a staged run whose directory is not new; otherwise they find it at their next poll."""
        with contextlib.suppress(OSError):
            control.report_changed(self._problem.home, run_id)

    # Proposals

    def _propose(self, trials: Sequence[Trial], found: NextTrials, may_go_on: Callable[[], bool]) -> int:
        """Proposes and stages trials, and returns how many."""
        if not found.proposals:
            return 0
        points = self._engine.propose(self._knowledge(trials), found.proposals)
        self._is_exhausted = len(points) < found.proposals
        number = max((each.number for each in trials), default=0)
        for count, point in enumerate(points):
            if not may_go_on():
                return count
            number += 1
            trial = self._stager.new_id()
            flags = self._problem.space.flags(point)
            self._journal.add("proposed", trial=trial, number=number, point=point, flags=as_recorded(flags))
            shown = " ".join(f"{name}={text_for_value(value)}" for name, value in point.items())
            log.info("Staging trial %s (%d of %d): %s", trial, number, self._limits.max_trials, shown)
            self._stager.stage(self._journal.log.proposals[trial], flags)
        return len(points)

    def _knowledge(self, trials: Sequence[Trial]) -> Knowledge:
        space = self._problem.space
        inside = [trial for trial in trials if space.contains(space.flags(trial.point))]
        told = [trial for trial in inside if trial.id not in self._forgotten]
        known = (self._observation(trial) for trial in told)
        observed = [*self._prior, *(each for each in known if each)]
        avoided = {key_of(trial.point) for trial in inside} | {key_of(each.point) for each in self._prior}
        running = [each.point for each in inside if each.is_in_flight]
        return Knowledge(observed, running, frozenset(avoided), is_begun=bool(trials))

    def _observation(self, trial: Trial) -> Observation | None:
        if trial.state is TrialState.COMPLETED:
            is_number = trial.values is not None and not any(map(math.isnan, trial.values))
            return Observation(trial.point, trial.values if is_number else None)
        # Optuna learns from a trial that was ended early for one objective only.
        is_alone = len(self._problem.objectives) == 1
        if trial.state is TrialState.PRUNED and is_alone and trial.values and trial.curves[0]:
            return Observation(trial.point, trial.values, trial.curves[0])
        return Observation(trial.point, None) if trial.state is TrialState.FAILED else None

    # Early stopping

    def _stop_early(self, trials: Sequence[Trial]) -> None:
        if self._settings.stop_early == "never":
            return
        self._warn_without_steps(trials)
        least = self._settings.min_steps
        curves = stopping.Curves(*(self._curves(trials, state) for state in _STATES_WITH_CURVES))
        if self._settings.stop_early == "asha":
            found = stopping.asha(curves, self._settings.reduction_factor, least)
        else:
            found = stopping.median(curves, least)
        for run_id, stop in found.items():
            self._end(run_id, stop)

    def _curves(self, trials: Sequence[Trial], state: TrialState) -> dict[str, stopping.Curve]:
        chosen = (trial for trial in trials if trial.state is state and trial.curves and trial.curves[0])
        return {trial.id: self._costs_of(trial) for trial in chosen}

    def _costs_of(self, trial: Trial) -> stopping.Curve:
        """Returns the curve of a trial as costs."""
        known, costs = self._costs.get(trial.id, (None, {}))
        if known is not trial:  # its reader returns another one until it has ended
            costs = self._problem.objectives[0].costs_by_step(trial.curves[0])
            self._costs[trial.id] = (trial, costs)
        return costs

    def _warn_without_steps(self, trials: Sequence[Trial]) -> None:
        """Logs once that trials print no steps, as far as one that has completed shows."""
        completed = [trial for trial in trials if trial.state is TrialState.COMPLETED and trial.curves]
        has_steps = any(max(trial.curves[0], default=0) > 0 for trial in completed)
        if self._has_warned_without_steps or not completed or has_steps:
            return
        self._has_warned_without_steps = True
        text = "Trials cannot be ended early: %s completed without a step; print one before each value, as in %s"
        log.warning(text, formatting.short(completed[0].id), STEP_LINE)

    def _end(self, run_id: str, stop: stopping.Stop) -> None:
        """Asks an attempt at a trial to end, once, as a user would; it is marked when it has ended so."""
        folder = layout.claims_folder(self._problem.home)
        run_dir = layout.run_dir(self._problem.home, run_id)
        found = claims.present(folder, run_id)
        if found is None or found.claim is None or not found.is_started:
            return
        if not _goes_on(run_dir, found.claim) or stop_request.is_requested(claims.path(folder, run_id)):
            return
        # Also after a crash between these two: a trial that is asked twice ends once.
        started = start_time(run_dir)
        if started not in self._journal.log.pruning.get(run_id, ()):
            self._journal.add("pruning", trial=run_id, started=started, step=stop.step)
        claims.request_end(folder, run_id, found.claim.owner, Cause.PRUNED)
        objective = self._problem.objectives[0]
        sign = -1 if objective.is_maximized else 1
        text = "Ending trial %s early: %s is %g at step %d, and %g is needed"
        log.info(text, run_id, objective, sign * stop.cost, stop.step, sign * stop.needed)

    # What is logged

    def _report_news(self, trials: Sequence[Trial]) -> None:
        """Logs which trial is the best, if another one was at the last step."""
        is_first, self._has_reported = not self._has_reported, True
        costs = {trial.id: completed_costs(trial, self._problem.objectives) for trial in trials}
        best = best_of({run_id: each for run_id, each in costs.items() if each})
        if best and best != self._best and not is_first:
            self._report_best(trials, best)
        self._best = best

    def _report_best(self, trials: Sequence[Trial], best: Sequence[str]) -> None:
        by_id = {trial.id: trial for trial in trials}
        for run_id in best:
            if run_id not in self._best:
                log.info("Best so far: trial %s, %s", run_id, described(by_id[run_id], self._problem.objectives))


def _goes_on(run_dir: str, claim: Claim) -> bool:
    """Returns whether a process has begun since a run was claimed, and its end is not on record."""
    now = run_directory.recorded_start(run_dir)
    before = None if claim.before is None else run_directory.recorded_start_for_text(claim.before)
    # The end before a restart stays on record until the new process has begun.
    has_ended = bool(now.end) and (before is None or now.end != before.end)
    return now != before and not has_ended


def text_for_kills(count: int) -> str:
    """Returns how often the process that started a trial was killed."""
    return f"{text_for_cause(Cause.KILLED)} {count} time(s)"


def described(trial: Trial | Observation, objectives: Sequence[Objective]) -> str:
    """Returns the values and the point of a trial, or of an earlier run, as text."""
    values = zip(objectives, trial.values or (), strict=False)
    shown = ", ".join(f"{objective} {value:g}" for objective, value in values)
    flags = " ".join(f"{name}={text_for_value(value)}" for name, value in trial.point.items())
    return f"{shown} ({flags})"


_STATES_WITH_CURVES = (TrialState.RUNNING, TrialState.COMPLETED, TrialState.PRUNED)
