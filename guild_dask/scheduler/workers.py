"""The workers as the plan sees them, and what is wrong with workers. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from guild_dask.cluster.base import WorkerCapacity
from guild_dask.cluster.events import ClusterTrouble, WorkerRefused
from guild_dask.plan.placement import Worker
from guild_dask.plan.troubles import NoWorkerStarted, Refusal, Trouble, WorkerWithoutRuns
from guild_dask.scheduler.answers import ClusterView
from guild_dask.scheduler.ledger import Ledger

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
    worker = ledger.free(
        each.name, each.host, each.slots, each.resources, each.devices, is_whole_host=each.is_whole_host
    )
    if each.halt:
        return replace(worker, free_slots=0)
    if each.ends is None:
        return worker
    lasts = each.ends - now - each.margin
    # On a worker that ends soon, runs go on and nothing new starts.
    return replace(worker, lasts=lasts, free_slots=worker.free_slots if lasts > 0 else 0)


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
        return f"Worker {event.worker} gets no run: it {event.refusal}"

    def note(self, event: ClusterTrouble) -> str:
        """Notes that no worker comes, and returns the line for the log if that is news."""
        if event.trouble == self._no_worker:
            return ""
        self._no_worker = event.trouble
        return f"No worker started: {event.trouble.error_text}; retrying in {event.pause:g} s"

    def current(self, workers: Iterable[WorkerCapacity]) -> tuple[Trouble, ...]:
        """Returns what is wrong now, given the workers that are there."""
        here = {worker.label: worker for worker in workers}
        refused = {name: refusal for name, refusal in self._refused.items() if name not in here}
        halted = {name: worker.halt for name, worker in here.items() if worker.halt}
        without_runs = (WorkerWithoutRuns(name, refusal) for name, refusal in {**refused, **halted}.items())
        return (*without_runs, *([self._no_worker] if self._no_worker else ()))
