"""The workers as the plan sees them, with what their runs leave free, and what is wrong with workers. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from guild_dask.cluster.base import WorkerCapacity
from guild_dask.cluster.events import ClusterTrouble, WorkerRefused
from guild_dask.plan.capacity import SEARCH
from guild_dask.plan.placement import Worker
from guild_dask.plan.resources import remaining
from guild_dask.plan.troubles import NoWorkerStarted, Refusal, StartFailed, Trouble, WorkerWithoutRuns, sentence_for
from guild_dask.scheduler.answers import ClusterView
from guild_dask.scheduler.ledger import Ledger

# A worker that could not start more runs than these, one after the other, is to blame, and not the runs.
_MOST_FAULTY_RUNS = 2

# How many workers that cannot start runs are remembered for observers.
_MOST_REFUSED = 20


def workers_for(view: ClusterView, ledger: Ledger, now: float) -> list[Worker]:
    """Returns the workers that are there with what is free on them, and one of each kind that may come."""
    to_come = [
        Worker(each.name, each.slots, each.resources, 0, {}, is_to_come=True, lasts=each.lasts)
        for each in view.prospects
    ]
    return [*(_worker(each, ledger, now) for each in view.workers), *to_come]


def _worker(each: WorkerCapacity, ledger: Ledger, now: float) -> Worker:
    worker = _with_free(each, ledger)
    if each.halt:
        return replace(worker, free_slots=0)
    if each.ends is None:
        return worker
    lasts = each.ends - now - each.margin
    # On a worker that ends soon, runs go on and nothing new starts.
    return replace(worker, lasts=lasts, free_slots=worker.free_slots if lasts > 0 else 0)


def _with_free(each: WorkerCapacity, ledger: Ledger) -> Worker:
    """Returns a worker with what its runs leave free, orphaned runs included.

    A worker that stands for its whole host may come back under another name; its former runs still count.
    """
    taking = [run.claim for run in ledger.active.values() if run.worker == each.name]
    taking += [
        claim
        for claim in ledger.orphans
        if claim.owner.host == each.host and (each.is_whole_host or claim.worker == each.name)
    ]
    free, shares = dict(each.resources), dict.fromkeys(each.devices, 1.0)
    for claim in taking:
        free = remaining(free, claim.requests)
        shares = remaining(shares, claim.devices)
    for claim in (*ledger.orphans, *ledger.neighbours):
        # Slots and amounts belong to one scheduler, but a device exists once per host. A worker that came back under
        # another name may still have runs on its devices.
        if claim.owner.host == each.host and claim not in taking:
            shares = remaining(shares, claim.devices)
    return Worker(each.name, each.slots, each.resources, each.slots - len(taking), free, shares)


@dataclass
class Troubles:
    """What is wrong with workers, as it was last reported."""

    _refused: dict[str, Refusal] = field(default_factory=dict)
    _no_worker: NoWorkerStarted | None = None

    def clear(self) -> None:
        """Notes that workers come again."""
        self._no_worker = None

    def refuse(self, event: WorkerRefused) -> str:
        """Notes that a worker cannot start runs, and returns the line for the log."""
        self._refused = dict([*self._refused.items(), (event.worker, event.refusal)][-_MOST_REFUSED:])
        return sentence_for(WorkerWithoutRuns(event.worker, event.refusal))

    def note(self, event: ClusterTrouble) -> str:
        """Notes that no worker comes, and returns the line for the log if that is news."""
        if event.trouble == self._no_worker:
            return ""
        self._no_worker = event.trouble
        return f"{sentence_for(event.trouble)}; retrying in {event.pause:g} s"

    def current(
        self, workers: Iterable[WorkerCapacity], failing: "FailingWorkers | None" = None
    ) -> tuple[Trouble, ...]:
        """Returns what is wrong now, given the workers that are there, and those of them that start no runs."""
        here = {worker.label: worker for worker in workers}
        refused = {name: refusal for name, refusal in self._refused.items() if name not in here}
        halted = {name: worker.halt for name, worker in here.items() if worker.halt}
        problems = failing.problems if failing else {}
        failed = {label or each.name: problems.get(each.name) for label, each in here.items()}
        halted.update({name: StartFailed(problem) for name, problem in failed.items() if problem})
        without_runs = (WorkerWithoutRuns(name, refusal) for name, refusal in {**refused, **halted}.items())
        return (*without_runs, *([self._no_worker] if self._no_worker else ()))


@dataclass
class _Failing:
    problem: str
    until: float  # the worker gets no run before that time
    runs: frozenset[str]  # those that it could not start since it last started one
    trial: str = ""  # the one run that it has been given since; empty: none


class FailingWorkers:
    """Workers that could not start runs: each gets one run at a time, at polls, until one has started.

    A full disk, or a limit on processes, would else take every waiting run out of the queue and back at each poll.
    """

    def __init__(self) -> None:
        self._failing: dict[str, _Failing] = {}
        # Runs that were tried since all workers failed. One that needs more than there is must not hold up the others.
        self._tried: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._failing)

    @property
    def problems(self) -> dict[str, str]:
        """Returns why the workers could not start their last run."""
        return {name: each.problem for name, each in self._failing.items()}

    @property
    def trials(self) -> tuple[str, ...]:
        """Returns the runs whose start shows whether their workers can start runs again."""
        return tuple(each.trial for each in self._failing.values() if each.trial)

    @property
    def tried_count(self) -> int:
        """Returns the number of runs that may be left out of the next plan."""
        return len(self._tried)

    def was_tried(self, run_id: str) -> bool:
        """Returns whether a run was one of those that could not be started."""
        return run_id in self._tried

    def fail(self, worker: str, run_id: str, problem: str, until: float) -> bool:
        """Notes that a worker could not start a run, and returns whether that is news."""
        before = self._failing.get(worker)
        runs = before.runs if before else frozenset()
        self._failing[worker] = _Failing(problem, until, runs | {run_id})
        self._tried.add(run_id)
        return before is None or before.problem != problem

    def is_to_blame(self, worker: str, present: Iterable[WorkerCapacity]) -> bool:
        """Returns whether a worker, rather than its runs, is the reason: it started none of many, and others work."""
        failing = self._failing.get(worker)
        do_others_work = any(each.name not in self._failing and SEARCH not in each.resources for each in present)
        return failing is not None and len(failing.runs) > _MOST_FAULTY_RUNS and do_others_work

    def submit(self, worker: str, run_id: str) -> None:
        """Notes that a worker was given a run."""
        if worker in self._failing:
            self._failing[worker].trial = run_id

    def end(self, run_id: str, until: float) -> None:
        """Notes that a run has ended that may not have started; another one is tried after that time."""
        for each in self._failing.values():
            if each.trial == run_id:
                each.trial, each.until = "", until

    def start(self, run_id: str) -> str:
        """Notes that a run has started, and returns the worker that can start runs again, or an empty text."""
        name = next((name for name, each in self._failing.items() if each.trial == run_id), "")
        if name:
            del self._failing[name]
            self._tried.clear()
        return name

    def keep(self, present: Iterable[str]) -> None:
        """Forgets workers that have left."""
        present = set(present)
        self._failing = {name: each for name, each in self._failing.items() if name in present}
        self._tried = self._tried if self._failing else set()

    def limited(self, workers: Iterable[Worker], now: float) -> list[Worker]:
        """Returns the workers with at most one free slot on those that could not start runs."""
        return [self._limited(each, now) for each in workers]

    def _limited(self, worker: Worker, now: float) -> Worker:
        failing = self._failing.get(worker.name)
        if failing is None:
            return worker
        most = 0 if failing.trial or now < failing.until else 1
        return replace(worker, free_slots=min(worker.free_slots, most))

    def untried(self, runs: Sequence[str], workers: Iterable[Worker]) -> set[str]:
        """Returns the runs to start now: if all workers fail, those that were not tried, or all if all were."""
        here = [each.name for each in workers if not (each.is_to_come or each.is_for_searches)]
        if any(name not in self._failing for name in here):
            return set(runs)
        return {run_id for run_id in runs if run_id not in self._tried} or set(runs)
