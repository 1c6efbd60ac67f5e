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
from guild_dask.cluster.background import Background
from guild_dask.cluster.events import ClusterTrouble, WorkersChanged
from guild_dask.cluster.kinds import ClusterError, Common, WorkerCapacity
from guild_dask.cluster.remote import RemoteCluster
from guild_dask.cluster.scaling import Need, Requested, need, pause_after, to_give_back
from guild_dask.cluster.security import remove_certificates
from guild_dask.plan import StagedRun

# Seconds for commands of a job queue, and for all else, when we close. A worker that could not be cancelled ends by
# itself when it finds no scheduler.
_LAST_COMMANDS = 2.0
_CLOSE = 8.0


@dataclass(frozen=True)
class PoolTerms:
    """What a pool of workers is made of."""

    worker: WorkerCapacity | None  # what one worker has; None: nobody knows before it comes
    of_each_job: int  # how many workers one job brings
    count: WorkerCount  # of jobs
    # Returns why jobs that were asked for will not come, by their ids. Those that it does not name still may.
    failures_of: Callable[[Sequence[str]], Mapping[str, str]] = lambda _job_ids: {}
    # What Dask is to start under which name, where not all are the same.
    specs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    prefix: str = "guild"  # of the names of the others
    of_host: bool = False  # each worker is the only one on its host
    folder: str | None = None  # of what the workers need, to be removed in the end


class WorkerPool(RemoteCluster):
    """The workers of a Dask cluster that we opened, and close."""

    def __init__(self, cluster: SpecCluster, terms: PoolTerms, common: Common) -> None:
        self._cluster = cluster
        self._terms = terms
        self.lifetime = terms.worker.lifetime if terms.worker else None
        self.of_host = terms.of_host
        self._jobs: dict[str, Requested] = {}
        self._job_ids: dict[str, str] = {}
        self._names = itertools.count(1)
        self._failures = 0
        self._pause_until = 0.0
        self._checking = threading.Lock()
        self._past: dict[str, str] = {}  # address -> name of a worker that is gone and may have runs
        self._refused: dict[str, str] = {}  # job -> why its worker cannot start runs
        self._commands = Background("jobs")  # of its own: a command of the job queue may hang
        super().__init__(_client_of(cluster), common)

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
        self._give_up_refused()
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
        for address in list(self._past):
            if address not in busy:
                self._past.pop(address)
        for name, job in list(self._jobs.items()):
            here = addresses.get(name, [])
            if any(address in self._members for address in here):
                self._failures = self._failures if job.has_come else 0
                is_idle = not any(address in busy for address in here)
                since = (job.idle_since or now) if is_idle else None
                self._jobs[name] = Requested(name, True, since)
            elif job.has_come and not here and not any(self._was_on(address, name) for address in self._past):
                self._drop(name)  # it is over; a new one is asked for if it is needed

    def _lose_all(self, gone: Mapping[str, Mapping[str, Any]]) -> None:
        self._past.update({address: str(about.get("name")) for address, about in gone.items()})
        super()._lose_all(gone)

    def _refuse(self, address: str, name: str, problem: str) -> None:
        """Notes that a job has brought a worker that cannot start runs. One that is silent may still answer."""
        if address in self._silent:
            super()._refuse(address, name, problem)
        else:
            self._refused[self._job_of(name)] = f"worker {name} {problem}"

    def _give_up_refused(self) -> None:
        """Gives back jobs with workers that cannot start runs. Several at a time are one failure."""
        problems = []
        for name in list(self._refused):
            problem = self._refused.pop(name)
            if self._is_missing(name):
                self._drop(name)
                problems.append(problem)
        if problems:
            self._fail(_several(problems))

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
            self._commands.start(self._correct, names)

    def _correct(self, names: Sequence[str]) -> None:
        """Has Dask submit and cancel jobs so that there are those which are asked for."""
        try:
            self._cluster.sync(self._cluster._correct_state)
        except Exception as e:  # noqa: BLE001  # Dask lets out whatever the command of the job queue led to
            self._fail(_cause(e))
        not_taken = []
        for name in names:
            job = self._cluster.workers.get(name)
            job_id = getattr(job, "job_id", None)
            if job_id is not None:
                self._job_ids[name] = str(job_id)
            else:
                not_taken.append(name)
                self._forget(name)
        if not_taken:
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
                with self._lock:
                    self._members.pop(address, None)
        self._forget(name)
        self._commands.start(self._correct, ())

    def _forget(self, name: str) -> None:
        self._jobs.pop(name, None)
        self._job_ids.pop(name, None)
        self._cluster.worker_spec.pop(name, None)

    def _check_missing(self) -> None:
        """Finds out, in the background, whether jobs that have not come still can."""
        missing = [name for name, job in self._jobs.items() if not job.has_come and name in self._job_ids]
        if missing and self._checking.acquire(blocking=False) and not self._commands.start(self._check, missing):
            self._checking.release()

    def _check(self, names: Sequence[str]) -> None:
        """Gives up jobs that will not come. Several at a time are one failure."""
        try:
            ids = {self._job_ids[name]: name for name in names if name in self._job_ids}
            failures = self._terms.failures_of(list(ids))
            lost = {job_id: name for job_id, name in ids.items() if job_id in failures and self._is_missing(name)}
            for name in lost.values():
                self._forget(name)
            if lost:
                self._cluster.sync(self._cluster._correct_state)
                self._fail(_several([failures[job_id] for job_id in lost]))
        except Exception as e:  # noqa: BLE001  # as in _correct
            self._fail(_cause(e))
        finally:
            self._checking.release()

    def _is_missing(self, name: str) -> bool:
        job = self._jobs.get(name)
        return job is not None and not job.has_come

    def dashboard_link(self) -> str | None:
        """Returns where the dashboard can be seen, or None if there is none."""
        server = getattr(self._cluster.scheduler, "http_server", None)
        return str(self._cluster.dashboard_link) if getattr(server, "port", None) else None

    def close(self) -> None:
        """Closes the workers and the scheduler."""
        self._jobs.clear()
        self._background.close()
        self._commands.close(_LAST_COMMANDS)
        with contextlib.suppress(Exception):
            self._client.unsubscribe_topic("all")
            self._client.close(timeout=_LAST_COMMANDS)
        # Dask insists on states that jobs of a queue never have, and would try to close it once more at exit.
        self._cluster._created.clear()
        self._cluster.shutdown_on_close = False
        with contextlib.suppress(Exception):
            self._cluster.close(timeout=_CLOSE)
        if self._terms.folder:
            remove_certificates(self._cluster, self._terms.folder)


def _client_of(cluster: SpecCluster) -> Client:
    """Returns a client of our own cluster; raises ClusterError, and closes the cluster, if there is none."""
    try:
        return Client(cluster, set_as_default=False)
    except Exception as e:
        with contextlib.suppress(Exception):
            cluster.close(timeout=_CLOSE)
        raise ClusterError(f"cannot connect to the Dask scheduler in this process: {e or type(e).__name__}") from e


def _several(problems: Sequence[str]) -> str:
    """Returns the first of several problems, and how many others there are."""
    others = len(problems) - 1
    return f"{problems[0]} (and {others} more)" if others else problems[0]


def _cause(error: Exception) -> str:
    """Returns the line that says what went wrong, of what a command of a job queue printed."""
    text = str(error)
    _, _, printed = text.partition("stderr:\n")
    lines = [line.strip() for line in (printed or text).splitlines() if line.strip()]
    return " / ".join(lines[-2:]) if lines else type(error).__name__
