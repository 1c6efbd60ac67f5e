"""Workers that we ask for ourselves, from a job queue or over SSH: as many as runs need, each given back when idle.

Dask's own `scale` and `adapt` never replace a lost job, hide errors, and may close a worker that has a run. So jobs are
asked for and given back one by one, by name.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distributed import Client, SpecCluster

from guild_dask.choices import WorkerCount
from guild_dask.cluster.kinds import Common, WorkerCapacity
from guild_dask.cluster.remote import RemoteCluster
from guild_dask.cluster.scaling import Need, Requested, need, pause_after, to_give_back
from guild_dask.events import ClusterTrouble, WorkersChanged
from guild_dask.plan import StagedRun


@dataclass(frozen=True)
class PoolTerms:
    """What a pool of workers is made of."""

    worker: WorkerCapacity | None  # what one worker has; None: nobody knows before it comes
    of_each_job: int  # how many workers one job brings
    count: WorkerCount  # of jobs
    # Returns why a job that was asked for will not come, or None if it still may; gets its id, if it has one.
    failure_of: Callable[[str | None], str | None] = lambda _job_id: None
    # What Dask is to start under which name, where not all are the same.
    specs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    prefix: str = "guild"  # of the names of the others


class WorkerPool(RemoteCluster):
    """The workers of a Dask cluster that we opened, and close."""

    def __init__(self, cluster: SpecCluster, terms: PoolTerms, common: Common) -> None:
        self._cluster = cluster
        self._terms = terms
        self.lifetime = terms.worker.lifetime if terms.worker else None
        self._jobs: dict[str, Requested] = {}
        self._job_ids: dict[str, str] = {}
        self._names = itertools.count(1)
        self._failures = 0
        self._pause_until = 0.0
        self._checking = threading.Lock()
        super().__init__(Client(cluster, set_as_default=False), common)

    def prospects(self) -> list[WorkerCapacity]:
        """Returns a worker such as may come."""
        return [self._terms.worker] if self._terms.worker else []

    @property
    def appetite(self) -> int:
        """Returns how many waiting runs it is of use to know of."""
        count, worker = self._terms.count, self._terms.worker
        return count.most * self._terms.of_each_job * worker.slots if worker and count.is_elastic else 0

    def adjust(self, waiting: Sequence[StagedRun], busy: Container[str]) -> Sequence[StagedRun]:
        """Asks for the workers that waiting runs need, and gives idle ones back. `busy` are workers that have runs."""
        now = time.monotonic()
        self._note_presence(busy, now)
        self._check_missing()
        for name in to_give_back(self._jobs, self._terms.count.least, now):
            self._drop(name)
        count = self._terms.count
        room = 0 if now < self._pause_until else count.most - len(self._jobs)
        # Dask knows of a worker before it has been asked whether it can start runs.
        ready = {self._job_of(member.capacity.label) for member in list(self._members.values())}
        expected = sum(name not in ready for name in self._jobs)
        worker = self._terms.worker
        needed = need(waiting, worker, expected, room, self._terms.of_each_job) if worker else Need(0, waiting)
        self._ask_for(min(room, max(needed.jobs, count.least - len(self._jobs))))
        return needed.left

    def _note_presence(self, busy: Container[str], now: float) -> None:
        """Notes which jobs have workers, and since when these have nothing to do."""
        addresses: dict[str, list[str]] = {}
        for address, about in list(self._known.items()):
            addresses.setdefault(self._job_of(str(about.get("name"))), []).append(address)
        for name, job in list(self._jobs.items()):
            here = addresses.get(name, [])
            if here:
                self._failures = 0
                is_idle = not any(address in busy for address in here)
                since = (job.idle_since or now) if is_idle else None
                self._jobs[name] = Requested(name, True, since)
            elif job.has_come and not any(self._was_on(address, name) and address in busy for address in self._past):
                self._drop(name)  # it is over; a new one is asked for if it is needed

    def _job_of(self, worker_name: str) -> str:
        """Returns the job that a worker came with. Several workers of one job have a number behind its name."""
        if worker_name in self._jobs or self._terms.of_each_job == 1:
            return worker_name
        return worker_name.rpartition("-")[0]

    def _was_on(self, address: str, name: str) -> bool:
        return self._job_of(self._past[address]) == name

    def _ask_for(self, number: int) -> None:
        given = [name for name in self._terms.specs if name not in self._jobs]
        names = (
            given[:number]
            if self._terms.specs
            else [f"{self._terms.prefix}-{next(self._names)}" for _ in range(number)]
        )
        for name in names:
            self._jobs[name] = Requested(name)
            self._cluster.worker_spec[name] = dict(self._terms.specs.get(name) or self._cluster.new_spec)
        if names:
            self._in_background(self._correct, names)

    def _correct(self, names: Sequence[str]) -> None:
        """Has Dask submit and cancel jobs so that there are those which are asked for."""
        try:
            self._cluster.sync(self._cluster._correct_state)
        except Exception as e:  # noqa: BLE001  # Dask lets out whatever the command of the job queue led to
            self._fail(_cause(e))
        for name in names:
            job = self._cluster.workers.get(name)
            job_id = getattr(job, "job_id", None)
            if job_id is not None:
                self._job_ids[name] = str(job_id)
            elif job is not None and hasattr(job, "job_id"):
                self._forget(name)  # it was not taken
                with contextlib.suppress(Exception):
                    self._cluster.sync(self._cluster._correct_state)
        taken = [self._job_ids[name] for name in names if name in self._job_ids]
        if taken and not self._terms.specs:
            plural = "s" if len(taken) > 1 else ""
            self._report(WorkersChanged(f"Asked for {len(taken)} worker job{plural}: {', '.join(taken)}"))

    def _fail(self, problem: str) -> None:
        self._failures += 1
        pause = pause_after(self._failures)
        self._pause_until = time.monotonic() + pause
        self._report(ClusterTrouble(problem, pause))

    def _drop(self, name: str) -> None:
        """Gives a job back. It is no more planned with from this moment on."""
        for address, about in list(self._known.items()):
            if self._job_of(str(about.get("name"))) == name:
                self._hide(address)
        self._forget(name)
        self._in_background(self._correct, ())

    def _forget(self, name: str) -> None:
        self._jobs.pop(name, None)
        self._job_ids.pop(name, None)
        self._cluster.worker_spec.pop(name, None)

    def _check_missing(self) -> None:
        """Finds out, in the background, whether jobs that have not come still can."""
        missing = [name for name, job in self._jobs.items() if not job.has_come and name in self._job_ids]
        if missing and self._checking.acquire(blocking=False) and not self._in_background(self._check, missing):
            self._checking.release()

    def _check(self, names: Sequence[str]) -> None:
        try:
            for name in names:
                failure = self._terms.failure_of(self._job_ids.get(name))
                job = self._jobs.get(name)
                if failure and job and not job.has_come:
                    self._forget(name)
                    self._cluster.sync(self._cluster._correct_state)
                    self._fail(failure)
        except Exception as e:  # noqa: BLE001  # as in _correct
            self._fail(_cause(e))
        finally:
            self._checking.release()

    def dashboard_link(self) -> str | None:
        """Returns where the dashboard can be seen, or None if there is none."""
        server = getattr(self._cluster.scheduler, "http_server", None)
        return str(self._cluster.dashboard_link) if getattr(server, "port", None) else None

    def close(self) -> None:
        """Closes the workers and the scheduler."""
        self._is_closed = True
        self._jobs.clear()
        with contextlib.suppress(Exception):
            self._client.close(timeout=5)
        self._threads.shutdown(wait=True, cancel_futures=True)
        # Dask insists on states that jobs of a queue never have, and would try to close it once more at exit.
        self._cluster._created.clear()
        with contextlib.suppress(Exception):
            self._cluster.close(timeout=20)


def _cause(error: Exception) -> str:
    """Returns the line that says what went wrong, of what a command of a job queue printed."""
    text = str(error)
    _, _, printed = text.partition("stderr:\n")
    lines = [line.strip() for line in (printed or text).splitlines() if line.strip()]
    return " / ".join(lines[-2:]) if lines else type(error).__name__
