"""A cluster whose workers are processes of their own, seen through a Dask client: who comes and goes, and runs on them.

What may take time happens in the background, so that a worker that does not answer holds up nobody.
"""

import concurrent.futures
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from distributed import Client, Future

from guild_dask import job
from guild_dask.cluster.background import Background, answers, in_loop_of, is_connected, told
from guild_dask.cluster.kinds import AsManyAsThereAre, Common, WorkerCapacity
from guild_dask.cluster.on_worker import (
    Card,
    capacity_for,
    farewell,
    is_silence,
    known_to_dask,
    problem_of_stranger,
    problem_with,
    welcome,
)
from guild_dask.events import JobAdrift, JobEnded, JobLost, WorkerRefused, WorkersChanged
from guild_dask.terms import Terms

# Two look for workers at a time at most: one that waits for a scheduler, and one that is told of a worker meanwhile.
_THREADS = 2

# Seconds for a worker to say whether it can start runs, to be told something, and to be told that we go. Guild waits 30
# seconds for a scheduler that it stops, most of which its runs may take.
_WELCOME = 60.0
_WORD = 30.0
_FAREWELL = 3.0
_CLOSE = 2.0

# Names in Dask's log of events for workers that come and go.
_MEMBERSHIP = ("add-worker", "remove-worker")


@dataclass(frozen=True)
class _Member:
    """A worker that may start runs."""

    capacity: WorkerCapacity
    node: str


class RemoteCluster(AsManyAsThereAre):
    """The workers of a Dask scheduler, and runs on them."""

    def __init__(self, client: Client, common: Common, connect: Callable[[], Client | None] = lambda: None) -> None:
        self._client = client
        self._common = common
        self._connect = connect  # to a scheduler that may come back; None if it is not there
        self._report = common.report
        self._members: dict[str, _Member] = {}
        self._known: dict[str, Mapping[str, Any]] = {}  # address -> what Dask says of the worker, welcome or not
        self._problems: dict[str, str] = {}  # address -> what was said of a worker that gets no run
        self._silent: set[str] = set()  # addresses of workers that are to be asked again whether they can start runs
        self._futures: dict[str, tuple[str, Future]] = {}  # run id -> worker and future
        self._count = itertools.count()  # no two submissions have the same key
        self._lock = threading.RLock()
        self._looking = threading.Lock()
        self._background = Background("cluster", _THREADS)
        self._welcomes: set[concurrent.futures.Future[None]] = set()  # under way
        client.subscribe_topic("all", self._on_event)
        self.look()

    lifetime: float | None = None  # seconds from the start of a worker to its end, where that is known
    of_host = False  # tells whether each worker is the only one on its host

    # Who is there

    def _on_event(self, event: tuple[float, Any]) -> None:
        """Is called in Dask's own thread for all that happens in the cluster."""
        message = event[1]
        if isinstance(message, Mapping) and message.get("action") in _MEMBERSHIP:
            self._background.start(self.look)

    def look(self) -> None:
        """Finds out which workers there are now, and asks new ones whether they can start runs."""
        with self._looking:
            if not is_connected(self._client) and not self._reconnect():
                return
            try:
                found = dict(self._client.scheduler_info(n_workers=-1)["workers"])
            except (OSError, RuntimeError, ValueError, TimeoutError):
                return  # the connection has just gone, or the scheduler is busy; the next look tells
            gone = {address: about for address, about in self._known.items() if address not in found}
            new = [address for address in found if address not in self._known or address in self._silent]
            self._silent.difference_update([*new, *gone])
            self._known = found
        self._lose_all(gone)
        for address in new:
            welcoming = in_loop_of(self._client, self._welcome(address, found[address]))
            if welcoming:
                self._welcomes.add(welcoming)
                welcoming.add_done_callback(self._welcomes.discard)

    def _reconnect(self) -> bool:
        """Gives up the workers of a scheduler that is gone, and tells whether there is one again."""
        if self._known:
            self._report(WorkersChanged("The Dask scheduler is gone; nothing starts until it is there again"))
        gone, self._known = self._known, {}
        self._lose_all(gone)
        client = self._connect()
        if client is None:
            return False
        with contextlib.suppress(Exception):  # Dask has several for a scheduler that is gone
            self._client.close(timeout=0)
        self._client = client
        client.subscribe_topic("all", self._on_event)
        return True

    def wait_for_welcomes(self, seconds: float) -> None:
        """Waits until the workers that are there have said whether they can start runs, or so many seconds."""
        concurrent.futures.wait(list(self._welcomes), timeout=seconds)

    async def _welcome(self, address: str, about: Mapping[str, Any]) -> None:
        """Asks a worker whether it can start runs. One that does not answer is asked again at the next look."""
        mine = self._common
        try:
            said = await answers(self._client, _WELCOME, [address], welcome, mine.home, mine.token, mine.gpus)
            card: Card = said[address]
            problem = problem_with(card, mine.home)
        except Exception as e:  # noqa: BLE001  # whatever a strange worker makes of it; it is told, and gets no run
            if is_silence(e):
                self._silent.add(address)
            problem = problem_of_stranger(e)
        if problem:
            self._refuse(address, str(about.get("name", address)), problem)
            return
        self._problems.pop(address, None)
        with self._lock:
            capacity = replace(
                capacity_for(address, about, card, (member.capacity for member in self._members.values())),
                lifetime=self.lifetime,
                is_whole_host=self.of_host,
                ends=time.monotonic() + self.lifetime - card.age if self.lifetime else None,
            )
            if address in self._known:
                self._members[address] = _Member(capacity, card.node)
        self._report(WorkersChanged(f"Worker {capacity.described(card.node)} has joined"))

    def _refuse(self, address: str, name: str, problem: str) -> None:
        """Says, once, why a worker gets no run."""
        if address in self._known and self._problems.get(address) != problem:
            self._problems[address] = problem
            self._report(WorkerRefused(name, problem))

    def _lose_all(self, gone: Mapping[str, Mapping[str, Any]]) -> None:
        """Notes that workers are gone."""
        for address in gone:
            self._problems.pop(address, None)
            self._lose(address)

    def _lose(self, address: str) -> None:
        """Notes that a worker is gone. Its runs may go on."""
        with self._lock:
            member = self._members.pop(address, None)
            lost = [run_id for run_id, (worker, _) in self._futures.items() if worker == address]
            futures = [self._futures.pop(run_id)[1] for run_id in lost]
        for future in futures:
            with contextlib.suppress(Exception):  # Dask has several for a scheduler that is gone
                future.release()
        for run_id in lost:
            self._report(JobAdrift(run_id, f"its worker on {member.node if member else address} is gone"))
        if member:
            self._report(WorkersChanged(f"Worker {member.capacity.label} on {member.node} has left"))

    @property
    def address(self) -> str:
        """Returns where the Dask scheduler is, however it was found."""
        return str(self._client.scheduler.address)

    def workers(self) -> list[WorkerCapacity]:
        """Returns the workers there are now."""
        if self._client.status != "running":
            return []  # what was sent now would be sent later, to nobody knows whom
        with self._lock:
            return [member.capacity for member in self._members.values()]

    def terms(self, worker: str) -> Terms:
        """Returns the terms of runs on a worker."""
        member = self._members.get(worker)
        node = member.node if member else worker
        devices = None if self._common.gpus is None else ""  # where some are given out, a run that gets none sees none
        return Terms(node=node, lease=self._common.lease, has_lifeline=True, devices=devices)

    # Runs

    def submit(self, work: job.Job, worker: str, asks: Mapping[str, float]) -> None:
        """Runs a job on a worker, which the plan has found to have room. An event tells its end."""
        run_id = work.run_id
        if not is_connected(self._client):
            self._report(JobLost(run_id, "the Dask scheduler is gone"))
            return
        try:
            future = self._client.submit(
                job.run,
                work,
                key=f"guild-run-{run_id}-{work.claim.attempt}-{next(self._count)}",
                workers=[worker],
                allow_other_workers=False,
                resources=known_to_dask(asks, self._known.get(worker, {}).get("resources", asks)),
                pure=False,
                retries=0,
            )
        except Exception as e:  # noqa: BLE001  # nothing was sent, whatever Dask says
            self._report(JobLost(run_id, f"the Dask cluster does not take it: {e}"))
            return
        with self._lock:
            self._futures[run_id] = (worker, future)
        future.add_done_callback(lambda done: self._settle(run_id, done))
        if worker not in self._known:
            self._background.start(self._lose, worker)

    def _settle(self, run_id: str, future: Future) -> None:
        with self._lock:
            pinned = self._futures.get(run_id)
            if pinned is None or pinned[1] is not future:
                return  # it has been given up
            del self._futures[run_id]
        if future.status == "finished":
            self._report(JobEnded(run_id, future.result().exit_code))
        elif future.status == "error" and isinstance(future.exception(), (OSError, ValueError, ImportError)):
            # These come from the job itself, on a worker that is well.
            self._report(JobLost(run_id, f"its worker says: {future.exception()}"))
        else:
            self._report(JobAdrift(run_id, f"its Dask task is {future.status}"))
        with contextlib.suppress(Exception):
            future.release()

    def stop(self, run_id: str) -> None:
        """Asks a running job to end."""
        self._tell(job.stop, run_id)

    def kill(self, run_id: str) -> None:
        """Ends the processes of a running job at once."""
        self._tell(job.kill, run_id)

    def destroy(self, run_id: str) -> None:
        """Ends a job that kill() has not ended."""
        self._tell(job.destroy, run_id)

    def _tell(self, function: Callable[[str], None], run_id: str) -> None:
        with self._lock:
            worker = self._futures.get(run_id, ("", None))[0]
        if worker:
            in_loop_of(self._client, told(self._client, _WORD, [worker], function, run_id))

    # Now and then

    def prepare(self, environ: Mapping[str, str]) -> None:
        """Does nothing: a worker gets ready when it comes, with the environment of its own job."""

    def tidy(self) -> None:
        """Looks for workers that came or went without a word."""
        if not self._looking.locked():
            self._background.start(self.look)

    def dashboard_link(self) -> str | None:
        """Returns where the dashboard can be seen, or None if there is none."""
        with contextlib.suppress(OSError, RuntimeError, ValueError, KeyError):
            if "dashboard" in self._client.scheduler_info()["services"]:
                return str(self._client.dashboard_link)
        return None

    def close(self) -> None:
        """Lets go of the workers, which are left as they were found."""
        with contextlib.suppress(Exception):
            self._client.unsubscribe_topic("all")
        goodbye = in_loop_of(self._client, told(self._client, _FAREWELL, list(self._members), farewell))
        concurrent.futures.wait([goodbye] if goodbye else [], timeout=_FAREWELL + 1)
        self._background.close()
        with contextlib.suppress(Exception):
            self._client.close(timeout=_CLOSE)
