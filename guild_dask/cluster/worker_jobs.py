"""The jobs that bring workers: requested, checked and given back one by one, by name.

Dask's own `scale` and `adapt` never replace a lost job, hide errors, and may close a worker that has a run.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from distributed import SpecCluster

from guild_dask.cluster.background import Background
from guild_dask.cluster.base import WorkerCapacity
from guild_dask.cluster.events import ClusterEvent, ClusterTrouble, WorkersChanged
from guild_dask.cluster.scaling import FIRST_PAUSE, Requested, to_give_back
from guild_dask.plan.retries import pause_after
from guild_dask.plan.troubles import NoWorkerStarted
from guild_dask.settings.cluster_spec import WorkerCount

# Seconds for commands of the job queue to end when the cluster is closed. A worker whose job could not be cancelled
# ends by itself when it finds no scheduler.
LAST_COMMANDS = 2.0

# Lines of what a job queue says when it refuses a job.
_LONGEST_COMPLAINT = 8


@dataclass(frozen=True)
class PoolTerms:
    """What a pool of workers is made of."""

    worker: WorkerCapacity | None  # what one worker has; None: it is not known before the worker joins
    of_each_job: int  # how many workers one job brings
    count: WorkerCount  # of jobs
    # Returns why requested jobs have failed, by their ids. Workers of jobs that it does not name may still join.
    failures_of: Callable[[Sequence[str]], Mapping[str, str]] = lambda _job_ids: {}
    # What Dask is to start under which name, where not all are the same.
    specs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    prefix: str = "guild"  # of the names of the others
    of_host: bool = False  # each worker is the only one on its host
    folder: str | None = None  # of files that the workers need, removed when the pool is closed


class WorkerJobs:
    """The jobs that are requested from a Dask cluster. Commands of the job queue run in a thread of their own."""

    def __init__(
        self,
        cluster: SpecCluster,
        terms: PoolTerms,
        report: Callable[[ClusterEvent], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._terms = terms
        self._report = report
        self._clock = clock
        self._requested: dict[str, Requested] = {}
        self._ids: dict[str, str] = {}  # name -> id, of the jobs that the queue has taken
        self._names = itertools.count(1)
        self._failures = 0  # in a row
        self._pause_until = 0.0
        self._checking = threading.Lock()
        self._commands = Background("jobs")  # of its own: a command of the job queue may hang

    def requested(self) -> dict[str, Requested]:
        """Returns the requested jobs by name, whether or not their workers have joined."""
        return dict(self._requested)

    def may_request(self) -> int:
        """Returns how many more jobs may be requested now: 0 in the pause after a failure."""
        return 0 if self._clock() < self._pause_until else self._terms.count.most - len(self._requested)

    def is_missing(self, name: str) -> bool:
        """Returns whether a job is requested and none of its workers has joined."""
        job = self._requested.get(name)
        return job is not None and not job.has_come

    def job_of(self, worker_name: str) -> str:
        """Returns the name of the job that a worker came with. Several workers of one job have a number behind it."""
        if worker_name in self._requested or self._terms.of_each_job == 1:
            return worker_name
        return worker_name.rpartition("-")[0]

    def note_joined(self, name: str, is_idle: bool) -> None:
        """Notes that a worker of a job is there, and whether all of the job's workers are idle now."""
        job = self._requested.get(name)
        if job is None:
            return
        if not job.has_come:
            self._failures = 0
        since = (job.idle_since or self._clock()) if is_idle else None
        self._requested[name] = Requested(name, True, since)

    def idle_for_long(self) -> list[str]:
        """Returns the names of the jobs that are to be given back."""
        return to_give_back(self._requested, self._terms.count.least, self._clock())

    def request(self, number: int) -> None:
        """Requests more jobs, in the background."""
        given = [name for name in self._terms.specs if name not in self._requested]
        names = (
            given[:number]
            if self._terms.specs
            else [f"{self._terms.prefix}-{next(self._names)}" for _ in range(number)]
        )
        for name in names:
            self._requested[name] = Requested(name)
            self._cluster.worker_spec[name] = dict(self._terms.specs.get(name) or self._cluster.new_spec)
        if names:
            self._commands.start(self._correct, names)

    def _correct(self, names: Sequence[str]) -> None:
        """Makes Dask submit and cancel jobs until they are those that are requested."""
        try:
            self._cluster.sync(self._cluster._correct_state)
        except Exception as e:  # noqa: BLE001  # Dask raises various errors if a command of the job queue fails
            self.fail([_cause(e)])
        not_taken = []
        for name in names:
            job = self._cluster.workers.get(name)
            job_id = getattr(job, "job_id", None)
            if job_id is not None:
                self._ids[name] = str(job_id)
            else:
                not_taken.append(name)
                self._forget(name)
        if not_taken:
            with contextlib.suppress(Exception):
                self._cluster.sync(self._cluster._correct_state)
        taken = [self._ids[name] for name in names if name in self._ids]
        if taken and not self._terms.specs:
            plural = "s" if len(taken) > 1 else ""
            self._report(WorkersChanged(f"Requested {len(taken)} worker job{plural}: {', '.join(taken)}"))

    def fail(self, problems: Sequence[NoWorkerStarted]) -> None:
        """Reports problems, several at a time as one failure, and begins a pause that grows with each failure."""
        self._failures += 1
        pause = pause_after(self._failures, FIRST_PAUSE)
        self._pause_until = self._clock() + pause
        self._report(ClusterTrouble(replace(problems[0], others=len(problems) - 1), pause))

    def give_back(self, name: str) -> None:
        """Cancels a job, in the background."""
        self._forget(name)
        self._commands.start(self._correct, ())

    def _forget(self, name: str) -> None:
        self._requested.pop(name, None)
        self._ids.pop(name, None)
        self._cluster.worker_spec.pop(name, None)

    def check_missing(self) -> None:
        """Finds out, in the background, whether jobs whose workers have not joined are over."""
        missing = [name for name, job in self.requested().items() if not job.has_come and name in self._ids]
        if missing and self._checking.acquire(blocking=False) and not self._commands.start(self._check, missing):
            self._checking.release()

    def _check(self, names: Sequence[str]) -> None:
        """Gives up jobs that are over. Several at a time are one failure."""
        try:
            ids = {self._ids[name]: name for name in names if name in self._ids}
            failures = self._terms.failures_of(list(ids))
            lost = {job_id: name for job_id, name in ids.items() if job_id in failures and self.is_missing(name)}
            if lost:
                # The pause begins first: a job that is forgotten makes room for another one.
                self.fail([NoWorkerStarted(failures[job_id]) for job_id in lost])
            for name in lost.values():
                self._forget(name)
            if lost:
                self._cluster.sync(self._cluster._correct_state)
        except Exception as e:  # noqa: BLE001  # as in _correct
            self.fail([_cause(e)])
        finally:
            self._checking.release()

    def close(self) -> None:
        """Forgets all jobs, and waits a short time for commands that are under way."""
        self._requested.clear()
        self._commands.close(LAST_COMMANDS)


def _cause(error: Exception) -> NoWorkerStarted:
    """Returns the last lines that a command of the job queue printed, as the cause."""
    text = str(error)
    _, _, printed = text.partition("stderr:\n")
    return NoWorkerStarted(complaint_in(printed or text) or type(error).__name__)


def complaint_in(printed: str) -> str:
    """Returns the last message of a job queue's command, and the one before it, each from its beginning.

    Messages of one command mostly begin with the same word (`sbatch:`, `ERROR:`, `#`), and may have several lines.
    """
    lines = [line.rstrip() for line in printed.splitlines() if line.strip()][-_LONGEST_COMPLAINT:]
    if not lines:
        return ""
    mark = lines[-1].split()[0]
    alike = [number for number, line in enumerate(lines[:-1]) if line.split()[0] == mark]
    first = alike[-1] if alike else max(len(lines) - 2, 0)
    while first > 0 and not _is_sentence(lines[first]):
        first -= 1
    return " / ".join(line.strip() for line in lines[first:])


def _is_sentence(line: str) -> bool:
    """Returns whether a line may begin a message: it has words, and is not indented."""
    return not line[0].isspace() and any(character.isalpha() for character in line)
