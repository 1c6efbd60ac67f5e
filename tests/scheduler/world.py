"""A world for the core of the scheduler, as values: a Guild home and a cluster that do what a test says.

It carries out instructions as the loop does, without a file, a process or a clock. What it keeps is the truth that the
promise is about: where each run is, and how often it was started.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from guild_dask.cluster.base import WorkerCapacity
from guild_dask.cluster.events import JobEnded, JobLost, JobUnseen, WorkersChanged
from guild_dask.home.claim_record import Claim
from guild_dask.home.control import Control
from guild_dask.home.listing import Listing
from guild_dask.home.outcome import End, Result
from guild_dask.home.recovery import Recovered
from guild_dask.home.run_directory import Staged
from guild_dask.host.processes import ProcessIdentity
from guild_dask.plan.dependencies import Found, RunStatus
from guild_dask.scheduler import instructions as do
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
    RunningFound,
    Settled,
    SettleFailed,
    StartChecked,
    TakersFound,
    WorkersSeen,
)
from guild_dask.scheduler.core import Core, Rules
from guild_dask.scheduler.events import Interrupted, OutsideEvent, RunStaged, StopRequested
from guild_dask.scheduler.ledger import ActiveRun
from guild_dask.worker.job import NOT_STARTED

ME = ProcessIdentity(1, 1.0, "boot", "here")

STAGED, CLAIMED, STARTED, ENDED = "staged", "claimed", "started", "ended"


def staged_run(run_id: str, since: int, *tags: str) -> Staged:
    """Returns a staged run."""
    return Staged(run_id, f"/runs/{run_id}", since, tags)


def _order(run: Staged) -> tuple[int, str]:
    return run.since, run.id


@dataclass
class Run:
    """Where a run is, as its directory and claim would say."""

    staged: Staged
    where: str = STAGED
    starts: int = 0  # of its own process
    attempts: int = 0
    is_foreign: bool = False  # another scheduler has it
    end: End | None = None


@dataclass
class World:
    """The Guild home and the cluster, and the core that works on them."""

    rules: Rules = field(default_factory=lambda: Rules("me", ME))
    workers: dict[str, WorkerCapacity] = field(default_factory=dict)
    now: float = 0.0
    core: Core = field(init=False)
    runs: dict[str, Run] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)  # run id -> worker that has it
    is_home_available: bool = True
    can_look_up: bool = True  # other runs than those that are staged can be read
    control: Control = field(default_factory=Control)
    running_elsewhere: tuple[str, ...] = ()
    most_waiting: int = 0  # runs of each kind for which the cluster may request workers
    refused: dict[str, str] = field(default_factory=dict)  # runs that cannot be claimed, with why
    unreadable: set[str] = field(default_factory=set)  # runs that cannot be read now
    unclaimable: set[str] = field(default_factory=set)  # listed as staged, and never to be had
    retries: int = 0
    log: list[str] = field(default_factory=list)
    done: list[do.Instruction] = field(default_factory=list)
    _listed: dict[str, Staged] = field(default_factory=dict)
    _doubted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.core = Core(self.rules, self.now)
        self.carry_out(self.core.begin())

    # What happens

    def stage(self, run_id: str, *tags: str) -> None:
        self.runs[run_id] = Run(staged_run(run_id, len(self.runs), *tags))
        self.tell(RunStaged(run_id))

    def tag(self, run_id: str, *tags: str) -> None:
        run = self.runs[run_id]
        run.staged = replace(run.staged, tags=tags)

    def delete(self, run_id: str) -> None:
        del self.runs[run_id]

    def take_elsewhere(self, run_id: str) -> None:
        """Another scheduler or queue claims a staged run."""
        run = self.runs[run_id]
        if run.where == STAGED:
            run.where, run.is_foreign = CLAIMED, True

    def start(self, run_id: str) -> None:
        """The run's own process starts."""
        run = self.runs[run_id]
        assert run.where == CLAIMED
        run.where = STARTED
        run.starts += 1

    def end(self, run_id: str, exit_code: int = 0) -> None:
        """The run's job ends on its worker."""
        self.jobs.pop(run_id, None)
        if run_id in self.runs and self.runs[run_id].where == STARTED:
            self.runs[run_id].end = End.COMPLETED if exit_code == 0 else End.FAILED
        self.tell(JobEnded(run_id, exit_code))

    def lose(self, run_id: str) -> None:
        """The run's worker cannot do its job."""
        self.jobs.pop(run_id, None)
        self.tell(JobLost(run_id, "its worker says: no"))

    def refuse(self, run_id: str, problem: str, may_be_of_run: bool = False) -> None:
        """The run's worker cannot start it, because its host is short of something, or for another reason."""
        self.jobs.pop(run_id, None)
        self.tell(JobEnded(run_id, NOT_STARTED, problem=problem, may_be_of_run=may_be_of_run))

    def add_worker(self, name: str, slots: int = 1, **resources: float) -> None:
        self.workers[name] = WorkerCapacity(name, slots, resources, f"host-{name}", label=name)
        self.tell(WorkersChanged(f"Worker {name} has joined"))

    def remove_worker(self, name: str) -> None:
        """A worker goes out of sight; its runs may go on."""
        del self.workers[name]
        for run_id in [each for each, worker in self.jobs.items() if worker == name]:
            del self.jobs[run_id]
            self.tell(JobUnseen(run_id, "its worker is gone"))
        self.tell(WorkersChanged(f"Worker {name} has left"))

    def interrupt(self) -> None:
        """The user presses Ctrl-C."""
        self.tell(Interrupted())

    def stop(self) -> None:
        self.tell(StopRequested())

    def tell(self, event: OutsideEvent | Answer) -> None:
        self.carry_out(self.core.handle(event, self.now))

    def cycle(self, seconds: float = 0.0) -> None:
        """Lets time go by, and the core do what is due."""
        self.now += seconds
        if not self.core.is_over:
            self.carry_out(self.core.begin_cycle(self.now))
            self.carry_out(self.core.end_cycle(self.now))

    # What the core has done

    def carry_out(self, instructions: Iterable[do.Instruction]) -> None:
        ahead = deque(instructions)
        while ahead:
            instruction = ahead.popleft()
            self.done.append(instruction)
            try:
                answer = self._answer(instruction)
            except OSError as e:
                ahead.clear()
                answer = HomeFailed(str(e))
            if answer is not None:
                ahead.extendleft(reversed(self.core.handle(answer, self.now)))

    def _home(self, can_be_read: bool = True) -> None:
        if not (self.is_home_available and can_be_read):
            raise OSError("the disk is full")

    def _answer(self, each: do.Instruction) -> Answer | None:  # noqa: C901, PLR0911, PLR0912  # one case for each kind
        match each:
            case do.Log(text=text):
                self.log.append(text)
            case do.ReadControl():
                return ControlRead(self.control)
            case do.RequestDrain():
                self.control = replace(self.control, is_draining=True)
            case do.Settle():
                return self._settle(each)
            case do.Recover():
                self._home()
                return ClaimsRecovered(self._recover(each))
            case do.ListRuns() | do.RefreshRuns():
                self._home()
                return Listed(self._listing())
            case do.LookUp(references=references):
                self._home(self.can_look_up)
                return LookedUp({name: self._found(name) for name in references})
            case do.FindRunning():
                self._home(self.can_look_up)
                return RunningFound(self.running_elsewhere)
            case do.SeeWorkers():
                return WorkersSeen(ClusterView(tuple(self.workers.values()), most_waiting=self.most_waiting))
            case do.Claim(wanted=wanted):
                self._home()
                return self._claim(wanted)
            case do.Submit(run=active):
                assert active.run.id not in self.jobs, "submitted twice"
                self.jobs[active.run.id] = active.worker
            case do.FindDeleted(run_ids=run_ids):
                return DeletedFound(tuple(run_id for run_id in run_ids if run_id not in self.runs))
            case do.FindTakers(run_ids=run_ids):
                there = [run_id for run_id in run_ids if run_id in self.runs]
                assert all(self.runs[run_id].is_foreign for run_id in there), "our own run counts as another's"
                return TakersFound(dict.fromkeys(there, "other"))
            case do.CheckClaim():
                run = self.runs.get(each.run_id)
                has_started = run is not None and run.where == STARTED
                return ClaimChecked(each.run_id, each.exit_code, each.problem, has_started, each.may_be_of_run)
            case do.CheckStart(run_id=run_id):
                return StartChecked(run_id, run_id in self.runs and self.runs[run_id].where == STARTED)
        return None

    def _listing(self) -> Listing:
        now = {name: run.staged for name, run in self.runs.items() if run.where == STAGED}
        before = {name: run for name, run in self._listed.items() if name not in self._doubted}
        changed = sorted((run for name, run in now.items() if before.get(name) != run), key=_order)
        gone = frozenset((self._listed.keys() | self._doubted) - now.keys())
        self._listed = now
        self._doubted.clear()
        return Listing(tuple(changed), {}, gone)

    def _found(self, name: str) -> Found:
        run = self.runs.get(name)
        if run is None:
            return Found(RunStatus.UNKNOWN)
        statuses = {STAGED: RunStatus.STAGED, CLAIMED: RunStatus.GOES_ON, STARTED: RunStatus.GOES_ON}
        ended = RunStatus.COMPLETED if run.end is End.COMPLETED else RunStatus.FAILED
        return Found(statuses.get(run.where, ended), (name,))

    def _claim(self, wanted: Iterable[tuple[Staged, Claim]]) -> ClaimAnswered:
        taken, missing = [], []
        refused: dict[str, str] = {}
        postponed: dict[str, str] = {}
        for staged, claim in wanted:
            run = self.runs.get(staged.id)
            if run is None or run.where != STAGED or run.staged != staged:
                missing.append(staged.id)
                self._doubted.add(staged.id)
            elif staged.id in self.unclaimable:
                missing.append(staged.id)
            elif staged.id in self.refused:
                refused[staged.id] = self.refused[staged.id]
            elif staged.id in self.unreadable:
                postponed[staged.id] = "cannot read attribute 'flags': Input/output error"
            else:
                run.where = CLAIMED
                run.attempts += 1
                self._doubted.add(staged.id)
                numbered = replace(claim, attempt=run.attempts)
                taken.append(ActiveRun(staged, numbered, f"host-{claim.worker}"))
        return ClaimAnswered(tuple(taken), refused, postponed, tuple(missing))

    def _settle(self, each: do.Settle) -> Settled | SettleFailed:
        if not self.is_home_available:
            if each.is_repeated:
                raise OSError("the disk is full")
            return SettleFailed(each.run_id, each.exit_code, "the disk is full")
        run = self.runs.get(each.run_id)
        if run is None:
            return Settled(each.run_id, Result(End.GONE), is_deleted=True)
        return Settled(each.run_id, self._result(run, each.may_retry), each.message)

    def _result(self, run: Run, may_retry: bool) -> Result:
        if run.where == CLAIMED:
            run.where = STAGED
            return Result(End.STAGED_AGAIN)
        end = run.end or End.FAILED
        if end is not End.COMPLETED and may_retry and run.attempts <= self.retries:
            run.where, run.end = STAGED, None
            return Result(End.RETRIED, 1, None, run.attempts)
        run.where = ENDED
        return Result(end, 0 if end is End.COMPLETED else 1, None, run.attempts)

    def _recover(self, each: do.Recover) -> Recovered:
        """Recovers runs out of sight: none of them goes on."""
        staged, ended, gone = [], [], []
        for run_id in sorted(each.unseen):
            run = self.runs.get(run_id)
            if run is None:
                gone.append(run_id)
            elif run.where == CLAIMED:
                run.where = STAGED
                staged.append(run_id)
            else:
                ended.append((run_id, self._result(run, each.may_retry)))
        return Recovered(tuple(staged), tuple(ended), gone=tuple(gone))

    # What must hold

    def check(self) -> None:
        """Raises AssertionError where the promise is broken."""
        ledger = self.core.ledger
        known = {*ledger.active, *ledger.unseen, *ledger.unsettled}
        for run_id, run in self.runs.items():
            is_ours = run.where in (CLAIMED, STARTED) and not run.is_foreign
            assert not is_ours or run_id in known, f"{run_id} is lost: {run}"
            assert run.starts <= run.attempts, f"{run_id} was started twice"
        for name, worker in self.workers.items():
            assert sum(each == name for each in self.jobs.values()) <= worker.slots, f"{name} has too many runs"
        assert len(known) == len(ledger.active) + len(ledger.unseen) + len(ledger.unsettled)

    def statuses(self) -> Mapping[str, str]:
        return {run_id: run.where for run_id, run in self.runs.items()}
