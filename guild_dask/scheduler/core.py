"""The decisions of a scheduler as a state machine: an event goes in, instructions come out. Pure.

Nothing here reads a clock or a file, logs, or knows Guild or Dask. The clock is an argument: seconds of the monotonic
clock. The shell (loop.py) carries the instructions out, and hands back each answer as the next event. So a test tells
whole stories as values: a run is staged, claimed, lost, found and tried again.

A cycle of a working scheduler:

    begin_cycle()  -> as they are due: RenewHeartbeat, ReadControl, Settle, TidyCluster, Recover, ListRuns (or
                      RefreshRuns); then SeeWorkers
    Listed         -> FindTakers, if runs that were to start here are gone; LookUp, FindRunning, if runs depend on
                      others or wait for running ones
    WorkersSeen    -> Log what is new of waiting runs; Claim what fits
    ClaimAnswered  -> Submit the claimed runs; poll and plan again if a run could not be claimed
    end_cycle()    -> AdjustWorkers, Publish
    due            -> the shell waits until then, or for the next event from outside
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from guild_dask.cluster.events import (
    ClusterTrouble,
    JobEnded,
    JobLost,
    JobUnseen,
    WorkerRefused,
    WorkersChanged,
)
from guild_dask.home import claim_record
from guild_dask.home.control import Control
from guild_dask.home.listing import Listing
from guild_dask.home.outcome import End, Result
from guild_dask.home.run_directory import Staged
from guild_dask.host.processes import ProcessIdentity
from guild_dask.monitor.state import Phase
from guild_dask.plan import devices, retries
from guild_dask.plan.dependencies import Found
from guild_dask.plan.placement import StagedRun, Worker, plan
from guild_dask.plan.reasons import IMPOSSIBLE, CannotBeClaimed, CannotBeRead, Obstacle, StartsFailed
from guild_dask.scheduler import log_texts
from guild_dask.scheduler.announcer import AT_A_TIME, Announcer
from guild_dask.scheduler.answers import (
    Answer,
    ClaimAnswered,
    ClaimChecked,
    ClaimsRecovered,
    ClusterView,
    ControlRead,
    DeletedFound,
    HomeFailed,
    Listed,
    LookedUp,
    RunLeft,
    RunningFound,
    Settled,
    SettleFailed,
    StartChecked,
    TakersFound,
    WorkersSeen,
)
from guild_dask.scheduler.dependency_lookup import DependencyLookup
from guild_dask.scheduler.events import ControlChanged, Interrupted, OutsideEvent, RunStaged, StopRequested
from guild_dask.scheduler.instructions import (
    DEBUG,
    INFO,
    WARNING,
    AdjustWorkers,
    CheckClaim,
    CheckStart,
    Claim,
    CloseOutput,
    FindDeleted,
    FindRunning,
    FindTakers,
    Instruction,
    KillRun,
    ListRuns,
    Log,
    LookUp,
    Publish,
    PublishLeft,
    PublishOutcome,
    ReadControl,
    Recover,
    RefreshRuns,
    RenewHeartbeat,
    RequestDrain,
    RequestStop,
    SeeWorkers,
    Settle,
    StopRun,
    Submit,
    TidyCluster,
)
from guild_dask.scheduler.ledger import Ledger
from guild_dask.scheduler.postponed import MOST_AT_A_TIME, PostponedRuns
from guild_dask.scheduler.shutdown import Shutdown
from guild_dask.scheduler.waiting import Demand, WaitingRuns
from guild_dask.scheduler.workers import FailingWorkers, Troubles, workers_for
from guild_dask.worker.job import KILLED, NOT_STARTED

# How often a run is submitted that no worker could start, though none was short of anything.
MOST_STARTS = 3


@dataclass(frozen=True)
class Rules:
    """Who the scheduler is, and what the user's settings decide about its core."""

    own_run: str  # the scheduler's own run id
    process: ProcessIdentity  # the scheduler's own
    poll_interval: float = 10.0
    heartbeat_interval: float = 30.0
    run_once: bool = False
    wait_for_running: bool = False
    is_log_detailed: bool = False  # the log has a line for the start of each run on a worker
    demand: Demand = field(default_factory=Demand)
    logged_at_a_time: int = AT_A_TIME  # waiting runs; the others follow in the next cycles


class Core:
    """One scheduler: what it knows, and what it does next."""

    def __init__(self, rules: Rules, began: float, ledger: Ledger | None = None) -> None:
        self.rules = rules
        # The runs that were started, the staged runs, and what was logged about these. A run that is in the ledger as
        # active, unseen or unsettled is never in `waiting`.
        self.ledger = ledger or Ledger()
        self.waiting = WaitingRuns(rules.demand)
        self.announcer = Announcer(self.waiting, rules.logged_at_a_time)
        self.troubles = Troubles()  # of workers
        self.failing = FailingWorkers()
        self.blocked_by: tuple[str, ...] = ()  # runs of others that run now, with wait-for-running
        self._began = began
        self._control = Control()  # what users asked for at the last poll
        self._reported: Mapping[str, float] = {}  # runs that users reported as changed, and when
        self._dependencies = DependencyLookup()
        self._known: dict[str, Found] = {}  # what need not be looked up, while a LookUp is under way
        # Runs were listed, and which of them others hold back is not known yet: nothing may be planned before it is.
        self._must_hold_back = False
        self._cluster = ClusterView()  # as it was last seen
        # When to poll the whole runs directory, and to renew the heartbeat, at the latest.
        self._next_poll = began
        self._next_heartbeat = began
        # Runs to read again before the next plan: they were staged, or others wait for their end.
        self._changed: set[str] = set()
        # Retried runs that are staged and not due yet. They are in no line.
        self._retried: dict[str, Staged] = {}
        # How often later runs started before each waiting one.
        self._passed: Mapping[str, int] = {}
        self._has_listed = False  # in this cycle, so that there may be something to announce
        self._have_workers_changed = False  # since the last listing, so that reasons may have changed
        self._missed: set[str] = set()  # in this cycle: runs that were planned and could not be claimed
        self._unclaimable: set[str] = set()  # not planned before the next poll: they were missed twice in a cycle
        self.postponed = PostponedRuns(rules.poll_interval)
        self._postponed_count = 0  # in this cycle
        self._is_home_unavailable = False  # as it was last logged
        self._has_home_failed = False  # in this cycle
        self._last_poll = -math.inf  # when the last poll was begun, whether or not it succeeded
        self._may_start_later = False  # a run waits that could start without a new worker or tag
        self._shutdown: Shutdown | None = None  # set once, when the scheduler is to stop
        self._staged_at_end = 0  # runs that were claimed and are staged again, because the scheduler stops
        self._unsettleable: set[str] = set()  # runs that could not be settled because of their own directory
        self._is_abandoned = False  # the shutdown follows an unexpected error
        self.is_over = False  # nothing is left to do; never False again

    # What observers see

    @property
    def phase(self) -> Phase:
        """Returns what the scheduler does."""
        if self._shutdown:
            return Phase.STOPPING
        if self._control.is_draining:
            return Phase.DRAINING
        return Phase.PAUSED if self._control.is_paused else Phase.WORKING

    @property
    def may_start(self) -> bool:
        """Returns whether users let the scheduler start runs."""
        return self.phase is Phase.WORKING

    @property
    def due(self) -> float:
        """Returns when the next cycle begins, if no event comes earlier."""
        if self._shutdown:
            return self._shutdown.due if self.ledger.active else -math.inf
        if self.announcer.has_more and not self._has_home_failed:
            return -math.inf
        return min(self._next_poll, self._next_heartbeat, self._next_retry)

    @property
    def _next_retry(self) -> float:
        """Returns when the next retried run is due, if no poll was tried since."""
        return min((until for until in self.ledger.retrying.values() if until > self._last_poll), default=math.inf)

    def present_workers(self, view: ClusterView, now: float) -> list[Worker]:
        """Returns the workers that are there, with what is free on them."""
        return workers_for(ClusterView(view.workers), self.ledger, now)

    @property
    def has_failures(self) -> bool:
        """Returns whether a run failed or was terminated, or was left staged by a scheduler that runs once."""
        ends = (End.FAILED, End.COULD_NOT_START, End.TERMINATED)
        has_left = self.rules.run_once and (self._left > 0 or self._unsettled > 0)
        return any(self.ledger.outcomes[end] for end in ends) or has_left

    @property
    def _left(self) -> int:
        """Returns how many runs are staged when the scheduler is over."""
        return self.waiting.staged_count + len(self._retried) + self._staged_at_end

    def summary(self, now: float) -> str:
        """Returns what the scheduler did, as the last line about runs in its log."""
        seconds = now - self._began
        return log_texts.summary(self.ledger.outcomes, self._left, seconds, self.rules.run_once, self._unsettled)

    @property
    def _unsettled(self) -> int:
        """Returns how many runs were claimed and have no end: they go on, or could not be settled."""
        ledger = self.ledger
        return len(ledger.active) + len(ledger.unseen) + len(ledger.unsettled) + len(self._unsettleable)

    # The cycle

    def begin(self) -> list[Instruction]:
        """Returns what is done before the first cycle."""
        is_announced = self.rules.run_once and not self._shutdown
        return [*([Log(INFO, "Processing staged runs")] if is_announced else []), Publish()]

    def begin_cycle(self, now: float) -> list[Instruction]:
        """Returns what is to be done now. The last instruction leads to a plan."""
        if self._shutdown:
            return self._continue_shutdown(now)
        self._has_listed = self._has_home_failed = False
        self._missed.clear()
        self._postponed_count = 0
        instructions: list[Instruction] = []
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + self.rules.heartbeat_interval
            instructions.append(RenewHeartbeat())
        # Before run-once ends, it looks for what its own runs have staged.
        if now >= min(self._next_poll, self._next_retry) or (self.rules.run_once and not self.ledger.active):
            instructions += self._poll(now)
        elif self._must_hold_back or self._changed or self._have_workers_changed or self.announcer.has_more:
            instructions.append(RefreshRuns(frozenset(self._changed)))
        return [*instructions, SeeWorkers()]

    def _poll(self, now: float) -> list[Instruction]:
        self._next_poll, self._last_poll = now + self.rules.poll_interval, now
        self._unclaimable.clear()
        may_retry = self._shutdown is None
        unsettled = [Settle(run_id, code, may_retry, True) for run_id, code in self.ledger.unsettled.items()]
        known = frozenset((*self.ledger.active, *self.ledger.unsettled))
        recover = Recover(self._unsettleable.union(self.ledger.unseen), known, may_retry)
        starts = [CheckStart(run_id) for run_id in self.failing.trials if run_id in self.ledger.active]
        return [ReadControl(), *unsettled, TidyCluster(), *starts, recover, ListRuns()]

    def end_cycle(self, now: float) -> list[Instruction]:
        """Returns what is done after the last claim of a cycle, and sets is_over when there is nothing left to do."""
        if self._shutdown or self.is_over:
            return []
        instructions: list[Instruction] = []
        if not self._has_home_failed:
            instructions += self._home_works()
            instructions.append(AdjustWorkers(self._wanted(now), self.ledger.busy_workers))
        if self._is_done():
            self.is_over = True
            return [*instructions, Publish(at_once=True)]
        if not self.rules.run_once and not self.ledger.active and not self.waiting:
            instructions += self.announcer.idle(self.ledger.outcomes.total())
        return [*instructions, Publish()]

    def _wanted(self, now: float) -> list[StagedRun]:
        """Returns the waiting runs for which more workers may be requested."""
        most = self._cluster.most_waiting
        if not most or not self.may_start or self.blocked_by:
            return []
        postponed = self.postponed.left_out(now)
        return [run for run in self.waiting.first(most + len(postponed)) if run.id not in postponed]

    def _is_done(self) -> bool:
        """Returns whether nothing is on its way and, with run-once, no waiting run could ever start."""
        ledger = self.ledger
        is_busy = ledger.active or ledger.unsettled or ledger.unseen or self.announcer.has_more
        if is_busy or self._is_home_unavailable:
            return False
        is_waiting = (
            ledger.retrying or self.blocked_by or self._may_start_later or (self.waiting and not self.may_start)
        )
        return self._control.is_draining or (self.rules.run_once and not is_waiting)

    # Events

    def handle(self, event: OutsideEvent | Answer, now: float) -> list[Instruction]:
        """Takes in one event, and returns what follows from it."""
        handler: Callable[[Core, Any, float], list[Instruction]] | None = _HANDLERS.get(type(event))
        return handler(self, event, now) if handler else []

    def _run_staged(self, event: RunStaged, _now: float) -> list[Instruction]:
        self._changed.add(event.run_id)
        return []

    def _control_changed(self, _event: ControlChanged, now: float) -> list[Instruction]:
        self._next_poll = now
        return []

    def _control_read(self, event: ControlRead, _now: float) -> list[Instruction]:
        before, self._control = self._control, event.control
        text = log_texts.control_changed(before, event.control, len(self.ledger.active))
        logs = [Log(INFO, text)] if text else []
        changed = frozenset(run for run, at in event.changed.items() if self._reported.get(run) != at)
        self._reported = event.changed
        # The poll that follows may read only a part of many staged runs.
        return [*logs, *([RefreshRuns(changed)] if changed else [])]

    # The runs directory

    def _listed(self, event: Listed, now: float) -> list[Instruction]:
        self._changed.clear()
        self._have_workers_changed = False
        self._has_listed = self._must_hold_back = True
        broken_before = self.waiting.broken
        taken = tuple(run_id for run_id in sorted(event.listing.gone) if self._has_lost(run_id))
        listing = self._without_retried(event.listing, now)
        obstacles = self.waiting.update(listing)
        for run_id in (*listing.gone, *(broken_before.keys() - listing.broken.keys())):
            self._forget(run_id)
        logs = [log for run_id, obstacle in obstacles.items() for log in self._hold(run_id, obstacle)]
        logs += self.announcer.unreadable(listing.broken)
        news: list[Instruction] = [*logs, *([FindTakers(taken)] if taken else [])]
        references = self.waiting.references()
        self._known = self._dependencies.known(references, self.ledger.active, self.waiting)
        unknown = references - self._known.keys()
        if unknown:
            return [*news, LookUp(unknown, frozenset(self.ledger.vanished))]
        return [*news, *self._hold_back(self._known)]

    def _has_lost(self, run_id: str) -> bool:
        """Returns whether a run that is not staged any more was to start here, and did not."""
        return self.announcer.has_promised(run_id) and not self.ledger.knows(run_id)

    def _takers_found(self, event: TakersFound, _now: float) -> list[Instruction]:
        return [Log(INFO, log_texts.taken(run_id, taker)) for run_id, taker in event.schedulers.items()]

    def _without_retried(self, listing: Listing, now: float) -> Listing:
        """Returns the listing without retried runs that are not due, and with those that have come due."""
        ledger = self.ledger
        ledger.retrying = {run_id: until for run_id, until in ledger.retrying.items() if until > now}
        for run_id in listing.gone:
            self._retried.pop(run_id, None)
        self._retried.update({run.id: run for run in listing.staged if run.id in ledger.retrying})
        due = [self._retried.pop(run_id) for run_id in self._retried.keys() - ledger.retrying.keys()]
        ready = {run.id: run for run in (*due, *listing.staged) if run.id not in self._retried}
        staged = tuple(sorted(ready.values(), key=lambda run: (run.since, run.id)))
        return Listing(staged, listing.broken, listing.gone)

    def _looked_up(self, event: LookedUp, _now: float) -> list[Instruction]:
        return self._hold_back({**self._known, **event.found})

    def _hold_back(self, found: Mapping[str, Found]) -> list[Instruction]:
        self._dependencies.remember(found)
        self.waiting.hold_back(found)
        self.blocked_by = ()
        if self.rules.wait_for_running and self.waiting:
            return [FindRunning(frozenset((*self.ledger.active, *self.ledger.unseen, self.rules.own_run)))]
        self._must_hold_back = False
        return []

    def _running_found(self, event: RunningFound, _now: float) -> list[Instruction]:
        self.blocked_by = event.run_ids
        self._must_hold_back = False
        return []

    # Starts

    def _workers_seen(self, event: WorkersSeen, now: float) -> list[Instruction]:
        self._cluster = event.view
        self.failing.keep(worker.name for worker in event.view.workers)
        logs: list[Log] = []
        if self._has_listed and self.blocked_by:
            logs += self.announcer.blocked(self.blocked_by)
        elif self._has_listed:
            logs += self.announcer.queued(workers_for(self._cluster, self.ledger, now), self.may_start)
        self._has_listed = False
        return [*logs, *self._start_what_fits(now)]

    def _start_what_fits(self, now: float) -> list[Instruction]:
        if not self.may_start or self.blocked_by:
            return []
        workers = self.failing.limited(workers_for(self._cluster, self.ledger, now), now)
        slots = sum(max(0, worker.free_slots) for worker in workers)
        postponed = self.postponed.left_out(now)
        unplanned = self._unclaimable.union(postponed)
        left_out = len(unplanned) + self.failing.tried_count
        # One more than can start of each kind: it shows whether some could start later.
        waiting = [run for run in self.waiting.first(slots + 1 + left_out) if run.id not in unplanned]
        untried = self.failing.untried([run.id for run in waiting], workers)
        decided = plan([run for run in waiting if run.id in untried], workers, self._passed)
        self._passed = decided.passed
        logs = self.announcer.waits({**decided.held, **postponed})
        could_start = any(not isinstance(reason, IMPOSSIBLE) for reason in decided.held.values())
        is_tried_again = bool(self._unclaimable or self.failing.tried_count) or self.postponed.may_start_soon(now)
        self._may_start_later = could_start or self.waiting.waits_for_active or is_tried_again
        starts = [(self.waiting[run.id], worker, decided.devices.get(run.id, {})) for run, worker in decided.starts]
        wanted = tuple((run, self._claim_for(run, worker, given)) for run, worker, given in starts)
        return [*logs, *([Claim(wanted)] if wanted else [])]

    def _claim_for(self, run: Staged, worker: str, given: Mapping[str, float]) -> claim_record.Claim:
        """Returns the claim on a run that starts on a worker, with its shares of the devices there."""
        return claim_record.Claim(
            run_id=run.id,
            scheduler_id=self.rules.own_run,
            scheduler=self.rules.process,
            owner=self.rules.process,
            # A search takes nothing of what other runs share.
            requests={} if run.is_search else devices.amounts(self.waiting.requests_of(run.id), bool(given)),
            worker=worker,
            devices=given,
        )

    def _claim_answered(self, event: ClaimAnswered, now: float) -> list[Instruction]:
        instructions: list[Instruction] = []
        for active in event.taken:
            run_id = active.run.id
            instructions += self.announcer.starting(run_id)
            self.waiting.take(run_id)
            self.ledger.starts[run_id] = self.ledger.starts.get(run_id, 0) + 1
            self.ledger.active[run_id] = active
            self.failing.submit(active.worker, run_id)
            self.postponed.forget(run_id)
            level = INFO if self.rules.is_log_detailed else DEBUG
            label = next((each.label for each in self._cluster.workers if each.name == active.worker), "")
            text = log_texts.started(run_id, label or active.worker, active.claim)
            instructions += [Log(level, text), Submit(active)]
        for run_id, problem in event.refused.items():
            instructions += self._hold(run_id, CannotBeClaimed(problem))
        for run_id, problem in event.postponed.items():
            instructions += self._postpone(run_id, CannotBeRead(problem), now)
        if event.problem:
            return [*instructions, *self._home_failed(HomeFailed(event.problem), now)]
        if event.missing:
            return [*instructions, *self._plan_without(event.missing, now)]
        # If many runs cannot be read, the next cycle goes on: the home may be unavailable, or they may be gone.
        is_plan_open = event.refused or (event.postponed and self._postponed_count < MOST_AT_A_TIME)
        if is_plan_open:
            return [*instructions, *self._start_what_fits(now)]
        self._may_start_later |= bool(event.postponed)
        return instructions

    def _postpone(self, run_id: str, reason: CannotBeRead, now: float) -> list[Log]:
        """Leaves a run out of plans for a while, so that others start."""
        self.postponed.add(run_id, reason, now)
        self._postponed_count += 1
        return self.announcer.postponed(run_id, reason)

    def _plan_without(self, missing: tuple[str, ...], now: float) -> list[Instruction]:
        """Plans again after runs could not be claimed: taken by another scheduler or queue, tagged anew, or deleted.

        The poll shows what became of them. A run that is listed as staged all the same, and cannot be claimed, is left
        out of the plan until the next poll is due.
        """
        new = tuple(run_id for run_id in missing if run_id not in self._missed)
        self._unclaimable.update(self._missed.intersection(missing))
        self._missed.update(missing)
        if not new:
            return self._start_what_fits(now)
        return [FindDeleted(new), *self._poll(now), SeeWorkers()]

    def _hold(self, run_id: str, obstacle: Obstacle) -> list[Log]:
        self.waiting.hold(run_id, obstacle)
        return self.announcer.hold(run_id, obstacle)

    def _deleted_found(self, event: DeletedFound, _now: float) -> list[Instruction]:
        return [Log(WARNING, f"Staged run {run_id} was deleted before it could start") for run_id in event.run_ids]

    def _home_failed(self, event: HomeFailed, now: float) -> list[Instruction]:
        interval = self.rules.poll_interval
        self._next_poll = now + interval
        self._has_home_failed = True
        if self._shutdown:
            count = len(self.ledger.unsettled)
            return [Log(WARNING, f"{event.problem}; the next scheduler will stage {count} run(s) again")]
        if self._is_home_unavailable:
            return []
        self._is_home_unavailable = True
        return [Log(WARNING, f"{event.problem}; trying again every {interval:g} seconds")]

    def _home_works(self) -> list[Log]:
        was_unavailable, self._is_home_unavailable = self._is_home_unavailable, False
        return [Log(INFO, "The Guild home can be used again")] if was_unavailable else []

    # Ends

    def _job_ended(self, event: JobEnded, now: float) -> list[Instruction]:
        if event.problem and event.exit_code == NOT_STARTED:
            return [CheckClaim(event.run_id, None, event.problem, event.may_be_of_run)]
        if not event.had_claim:
            return [CheckClaim(event.run_id, event.exit_code, "its worker was restarted")]
        return self._end(event.run_id, event.exit_code, now, event.problem)

    def _job_lost(self, event: JobLost, _now: float) -> list[Instruction]:
        return [CheckClaim(event.run_id, None, event.problem, event.may_be_of_run)]

    def _claim_checked(self, event: ClaimChecked, now: float) -> list[Instruction]:
        if event.has_started:
            # Dask has sent it to a worker twice; the other worker has it, or had.
            return self._job_unseen(JobUnseen(event.run_id, event.problem), now)
        if event.exit_code is not None:
            return self._end(event.run_id, event.exit_code, now)
        active, interval = self.ledger.active.get(event.run_id), self.rules.poll_interval
        worker = active.worker if active else ""
        is_news = self.failing.fail(worker, event.run_id, event.problem, now + interval)
        logs = [Log(WARNING, log_texts.start_failed(event.run_id, worker, event.problem, interval))] if is_news else []
        self._may_start_later = True
        self._next_poll = min(self._next_poll, now + interval)
        if not event.may_be_of_run or self.failing.is_to_blame(worker, self._cluster.workers):
            self.ledger.starts.pop(event.run_id, None)  # it is not the run's fault
        return [*logs, *self._settle(event.run_id, NOT_STARTED, event.problem)]

    def _end(self, run_id: str, exit_code: int, now: float, message: str = "") -> list[Instruction]:
        if exit_code in (NOT_STARTED, KILLED):
            self.failing.end(run_id, now + self.rules.poll_interval)
        return [*self._works_again(run_id), *self._settle(run_id, exit_code, message)]

    def _start_checked(self, event: StartChecked, _now: float) -> list[Instruction]:
        return [*self._works_again(event.run_id)] if event.has_started else []

    def _works_again(self, run_id: str) -> list[Log]:
        """Lifts the limit of one run at a time for the worker of a run that has started."""
        worker = self.failing.start(run_id)
        return [Log(INFO, f"Worker {worker} can start runs again")] if worker else []

    def _settle(self, run_id: str, exit_code: int, message: str = "") -> list[Instruction]:
        self.ledger.active.pop(run_id, None)
        return [Settle(run_id, exit_code, may_retry=self._shutdown is None, message=message)]

    def _settled(self, event: Settled, now: float) -> list[Instruction]:
        run_id, end = event.run_id, event.result.end
        is_repeated = self.ledger.unsettled.pop(run_id, None) is not None
        if end is End.COMPLETED and event.is_deleted:
            self.ledger.vanished.add(run_id)
        if self.waiting.has_dependents() and self._dependencies.means(run_id):
            self._changed.add(run_id)
        instructions = self._note(run_id, event.result, now, event.last_line, event.is_deleted)
        self._staged_at_end += bool(end is End.STAGED_AGAIN and self._shutdown)
        if end is End.STAGED_AGAIN and not self._shutdown:
            # A repeated settlement is part of a poll, which lists the run next.
            self._next_poll = self._next_poll if is_repeated else now
            if self.ledger.starts.get(run_id, 0) >= MOST_STARTS:
                instructions += self._hold(run_id, StartsFailed(MOST_STARTS, event.last_line))
        return instructions

    def _note(
        self, run_id: str, result: Result, now: float, last_line: str = "", is_deleted: bool | None = None
    ) -> list[Instruction]:
        """Counts, publishes and logs how an attempt ended."""
        self.ledger.outcomes[result.end] += 1
        if result.end is End.RETRIED:
            self.announcer.forget(run_id)
            self.ledger.retrying[run_id] = now + retries.pause_after(result.attempt)
        elif result.end is not End.STAGED_AGAIN:
            self._forget(run_id)
        level, text = log_texts.ended(run_id, result, last_line, is_deleted)
        if result.end is End.STAGED_AGAIN and self.failing.was_tried(run_id):
            level = DEBUG  # the log says that its worker starts no runs
        return [PublishOutcome(run_id, result), Log(level, text)]

    def _forget(self, run_id: str) -> None:
        if not self.ledger.knows(run_id):
            self.announcer.forget(run_id)
            self.ledger.starts.pop(run_id, None)
            self.postponed.forget(run_id)

    def _settle_failed(self, event: SettleFailed, _now: float) -> list[Instruction]:
        self.ledger.unsettled[event.run_id] = event.exit_code
        return [Log(WARNING, f"{event.problem}; it will be tried again")]

    def _run_left(self, event: RunLeft, _now: float) -> list[Instruction]:
        self.ledger.unsettled.pop(event.run_id, None)
        self._unsettleable.add(event.run_id)
        self._forget(event.run_id)
        text = f"{event.problem}; it will be settled when that is possible"
        return [PublishLeft(event.run_id), Log(WARNING, text)]

    # Runs that no worker reports

    def _job_unseen(self, event: JobUnseen, now: float) -> list[Instruction]:
        active = self.ledger.active.pop(event.run_id, None)
        self.failing.end(event.run_id, now + self.rules.poll_interval)
        self._next_poll = now
        if active is None:
            return []
        self.ledger.unseen[event.run_id] = active
        return [Log(WARNING, log_texts.out_of_sight(event.run_id, active.host, event.problem))]

    def _recovered(self, event: ClaimsRecovered, now: float) -> list[Instruction]:
        recovered, unseen = event.recovered, self.ledger.unseen
        instructions: list[Instruction] = []
        for run_id in recovered.staged_again:
            if unseen.pop(run_id, None):
                text = f"Run {run_id} did not start and is staged again"
                instructions += [CloseOutput(run_id), PublishLeft(run_id), Log(INFO, text)]
            else:
                instructions.append(Log(INFO, f"Staged run {run_id} again (it was claimed and did not start)"))
        for run_id, result in recovered.ended:
            if unseen.pop(run_id, None):
                instructions += [CloseOutput(run_id), *self._note(run_id, result, now)]
            elif result.end is End.RETRIED or run_id in self._unsettleable:
                instructions += self._note(run_id, result, now)
        self._unsettleable.difference_update(recovered.staged_again, dict(recovered.ended), recovered.gone)
        for run_id in recovered.gone:
            if unseen.pop(run_id, None):
                instructions += [CloseOutput(run_id), *self._note(run_id, Result(End.GONE), now)]
        instructions += [StopRun(run_id) for run_id in recovered.stops if run_id in self.ledger.active]
        self.ledger.orphans, self.ledger.neighbours = recovered.orphans, recovered.neighbours
        return instructions

    # Workers

    def _workers_changed(self, event: WorkersChanged, _now: float) -> list[Instruction]:
        self._have_workers_changed = True
        self.troubles.clear()
        return [Log(INFO, event.news)] if event.news and not self._shutdown else []

    def _worker_refused(self, event: WorkerRefused, _now: float) -> list[Instruction]:
        return [Log(WARNING, self.troubles.refuse(event))]

    def _cluster_trouble(self, event: ClusterTrouble, _now: float) -> list[Instruction]:
        text = self.troubles.note(event)
        return [Log(WARNING, text)] if text else []

    # The stop

    def _interrupted(self, _event: Interrupted, now: float) -> list[Instruction]:
        """Drains at the first Ctrl-C, if runs are running; ends them at the next."""
        count = len(self.ledger.active)
        if self._shutdown or self._control.is_draining or not count:
            return self._stop_requested(StopRequested(), now)
        self._control = replace(self._control, is_draining=True)
        return [Log(INFO, log_texts.interrupted(count)), RequestDrain()]

    def _stop_requested(self, _event: StopRequested, now: float) -> list[Instruction]:
        if self._shutdown:
            # Requested twice: the user is in a hurry.
            return [KillRun(run_id) for run_id in self.ledger.active]
        self._shutdown = Shutdown(now)
        return []

    def abandon(self, now: float) -> None:
        """Begins a shutdown after an unexpected error, or continues the one that has begun; nothing is published."""
        self._shutdown = self._shutdown or Shutdown(now)
        self._is_abandoned = True

    def _continue_shutdown(self, now: float) -> list[Instruction]:
        assert self._shutdown
        active = tuple(self.ledger.active)
        instructions: list[Instruction] = []
        if self._shutdown.is_new:
            text = f"Ending {len(active)} run(s); Ctrl-C or 'guild stop' once more kills them"
            logs = [Log(INFO, text)] if active else []
            publish = [] if self._is_abandoned else [Publish(at_once=True)]
            instructions = [*publish, *logs, RequestStop((*self.ledger.unseen, *active))]
        instructions += self._shutdown.steps(now, active)
        if not active or self._shutdown.has_given_up:
            self.is_over = True
            instructions += [Settle(run_id, code, False, True) for run_id, code in self.ledger.unsettled.items()]
        return instructions


# An event without a handler, such as PageOpened, only ends the shell's wait.
_HANDLERS: Mapping[type, Any] = {
    RunStaged: Core._run_staged,
    ControlChanged: Core._control_changed,
    ControlRead: Core._control_read,
    Listed: Core._listed,
    LookedUp: Core._looked_up,
    RunningFound: Core._running_found,
    WorkersSeen: Core._workers_seen,
    ClaimAnswered: Core._claim_answered,
    DeletedFound: Core._deleted_found,
    TakersFound: Core._takers_found,
    HomeFailed: Core._home_failed,
    JobEnded: Core._job_ended,
    JobLost: Core._job_lost,
    JobUnseen: Core._job_unseen,
    ClaimChecked: Core._claim_checked,
    StartChecked: Core._start_checked,
    Settled: Core._settled,
    SettleFailed: Core._settle_failed,
    RunLeft: Core._run_left,
    ClaimsRecovered: Core._recovered,
    WorkersChanged: Core._workers_changed,
    WorkerRefused: Core._worker_refused,
    ClusterTrouble: Core._cluster_trouble,
    StopRequested: Core._stop_requested,
    Interrupted: Core._interrupted,
}
