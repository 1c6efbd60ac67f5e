"""How many workers to request, and which to give back. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from guild_dask.cluster.base import WorkerCapacity
from guild_dask.plan.placement import StagedRun, Worker, plan

# Seconds after which an idle worker is given back, and the shortest pause after a failed request.
IDLE = 60.0
FIRST_PAUSE = 10.0


@dataclass(frozen=True)
class Requested:
    """A requested job, which brings one or more workers."""

    name: str
    has_come: bool = False
    idle_since: float | None = None  # None: it has a run, or has not joined


@dataclass(frozen=True)
class Need:
    """How many jobs to request, and the runs that would still wait."""

    jobs: int
    left: Sequence[StagedRun]


def need(
    waiting: Sequence[StagedRun], worker: WorkerCapacity, expected: int, may_request: int, of_each_job: int = 1
) -> Need:
    """Returns what to request, at most `may_request` jobs, for waiting runs that do not fit on the expected workers."""
    to_come = [_idle(worker, f"expected-{n}") for n in range(expected * of_each_job)]
    to_request = [_idle(worker, f"new-{n}") for n in range(max(0, may_request) * of_each_job)]
    rest = _left(waiting, to_come)
    starts = plan(rest, to_request).starts
    used = {name for _, name in starts}
    placed = {run.id for run, _ in starts}
    return Need(-(-len(used) // of_each_job), [run for run in rest if run.id not in placed])


def _left(waiting: Sequence[StagedRun], workers: Sequence[Worker]) -> Sequence[StagedRun]:
    placed = {run.id for run, _ in plan(waiting, workers).starts} if workers else set()
    return [run for run in waiting if run.id not in placed]


def to_give_back(jobs: Mapping[str, Requested], least: int, now: float) -> list[str]:
    """Returns the jobs to give back: idle for long, the longest first, and never below `least` jobs."""
    idle = [(job.idle_since, name) for name, job in jobs.items() if job.idle_since is not None]
    long_idle = [name for since, name in sorted(idle) if now - since >= IDLE]
    return long_idle[: max(0, len(jobs) - least)]


def _idle(worker: WorkerCapacity, name: str) -> Worker:
    return Worker(name, worker.slots, worker.resources, worker.slots, worker.resources, lasts=worker.lasts)
