"""A cluster whose workers are separate processes, seen through a Dask client: membership, and runs on the workers.

What may take time happens in the background, so that a worker that does not answer delays nothing else.
"""

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from distributed import Client

from guild_dask.cluster.background import Background, call_workers, in_loop_of, is_connected, try_to_call
from guild_dask.cluster.base import Common, FixedWorkers, WorkerCapacity
from guild_dask.cluster.events import JobLost, JobUnseen, WorkerRefused, WorkersChanged
from guild_dask.cluster.handshake import (
    WorkerInfo,
    capacity_for,
    is_no_answer,
    problem_for_error,
    problem_with,
    register,
    unregister,
)
from guild_dask.cluster.tasks import Tasks, known_to_dask
from guild_dask.plan.troubles import Closing, Paused, Refusal
from guild_dask.worker import runner
from guild_dask.worker.job import Job
from guild_dask.worker.options import StarterOptions

# At most two threads refresh the list of workers: one may wait for the scheduler while the other handles an event.
_THREADS = 2

# Seconds to notify workers that the scheduler leaves, and to close the client. Guild waits 30 seconds for a scheduler
# that it stops, and its runs may need most of that time.
_UNREGISTER = 3.0
_CLOSE = 2.0

# Seconds between two checks for a stop request while the cluster is opened.
_CHECK = 0.1

# Dask's states of a worker that accepts no task, and how they are reported. A worker that has just joined is in none of
# them, although it is not yet `running`.
_HALTS: Mapping[Any, Refusal] = {"paused": Paused(), "closing_gracefully": Closing()}

# Names in Dask's event log for workers that join and leave.
_MEMBERSHIP = ("add-worker", "remove-worker")


@dataclass(frozen=True)
class _Member:
    """A worker that may start runs."""

    capacity: WorkerCapacity
    node: str


class KnownWorker(NamedTuple):
    """A worker that Dask knows, whether or not it may start runs."""

    address: str
    name: str
    is_member: bool  # it has answered that it can start runs
    is_silent: bool  # it has not answered, and will be asked again


@dataclass(frozen=True)
class WorkerTraits:
    """What is known of all workers of a cluster, and callbacks for those that leave or cannot start runs."""

    lifetime: float | None = None  # seconds from the start of a worker to its end, where that is known
    is_whole_host: bool = False  # each worker is the only one on its host
    # Called with the names of lost workers by address, before their runs are reported.
    on_lost: Callable[[Mapping[str, str]], object] = lambda _names: None
    # Called with the name of a worker that cannot start runs, and why; None: that is reported as an event.
    on_refused: Callable[[str, Refusal], object] | None = None


class RemoteCluster(FixedWorkers):
    """The workers of a Dask scheduler, and runs on them."""

    def __init__(
        self,
        client: Client,
        common: Common,
        connect: Callable[[], Client | None] = lambda: None,
        traits: WorkerTraits = WorkerTraits(),  # it is immutable
        close_after: Callable[[], object] = lambda: None,
    ) -> None:
        self.client = client
        self._common = common
        self._connect = connect  # to a scheduler that may come back; None if it is not there
        self._traits = traits
        self._close_after = close_after  # closes what was opened with the client
        self._report = common.report
        self._members: dict[str, _Member] = {}
        self._known: dict[str, Mapping[str, Any]] = {}  # address -> what Dask knows of the worker, member or not
        self._problems: dict[str, Refusal] = {}  # address -> the problem that was reported of a worker
        self._halts: dict[str, Refusal] = {}  # address -> why the worker accepts no run now
        self._silent: set[str] = set()  # addresses of workers that did not answer and will be asked again
        self._tasks = Tasks(common.report, common.timeouts.result)
        self._lock = threading.RLock()
        self._refreshing = threading.Lock()
        self._background = Background("cluster", _THREADS)
        self._registrations: set[concurrent.futures.Future[None]] = set()  # under way
        client.subscribe_topic("all", self._on_event)
        self.refresh()

    # Which workers are there

    def _on_event(self, event: tuple[float, Any]) -> None:
        """Is called in Dask's own thread for every event of the cluster."""
        message = event[1]
        if isinstance(message, Mapping) and message.get("action") in _MEMBERSHIP:
            self._background.start(self.refresh)

    def refresh(self) -> None:
        """Refreshes the list of workers, and asks new ones whether they can start runs."""
        with self._refreshing:
            if not is_connected(self.client) and not self._reconnect():
                return
            try:
                found = dict(self.client.scheduler_info(n_workers=-1)["workers"])
            except (OSError, RuntimeError, ValueError, TimeoutError):
                return  # the connection was just lost, or the scheduler is busy; the next refresh finds out
            gone = {each: about for each, about in self._known.items() if not _is_same(about, found.get(each))}
            new = [each for each in found if each in gone or each in self._silent or each not in self._known]
            self._silent.difference_update([*new, *gone])
            self._known = found
            self._lose_all(gone)
            halts = {address: _HALTS.get(about.get("status")) for address, about in found.items()}
            self._note_halts({address: halt for address, halt in halts.items() if halt})
        for address in new:
            registering = in_loop_of(self.client, self._register(address, found[address]))
            if registering:
                self._registrations.add(registering)
                registering.add_done_callback(self._registrations.discard)

    def _note_halts(self, halts: dict[str, Refusal]) -> None:
        """Notes which workers accept no run now, such as one whose memory is nearly full."""
        before, self._halts = self._halts, halts
        for address, member in list(self._members.items()):
            if (halt := halts.get(address)) != before.get(address):
                what = f"{halt}, and gets no run" if halt else "accepts runs again"
                self._report(WorkersChanged(f"Worker {member.capacity.label} on {member.node} {what}"))

    def _reconnect(self) -> bool:
        """Gives up the workers of a lost scheduler, and returns whether a scheduler could be reached again."""
        if self._known:
            self._report(WorkersChanged("The Dask scheduler is gone; no run starts until it is back"))
        gone, self._known = self._known, {}
        self._lose_all(gone)
        client = self._connect()
        if client is None:
            return False
        with contextlib.suppress(Exception):  # Dask has several for a scheduler that is gone
            self.client.close(timeout=0)
        self.client = client
        client.subscribe_topic("all", self._on_event)
        return True

    def wait_for_registrations(self, seconds: float) -> None:
        """Waits until all present workers have answered, the time is over, or the user asks for a stop."""
        until = time.monotonic() + seconds
        while self._registrations and time.monotonic() < until and not self._common.is_stopping():
            concurrent.futures.wait(list(self._registrations), timeout=_CHECK)

    async def _register(self, address: str, about: Mapping[str, Any]) -> None:
        """Registers with a worker that can start runs. One that does not answer is tried again at the next refresh."""
        mine = self._common
        try:
            infos = await call_workers(
                self.client, mine.timeouts.handshake, [address], register, mine.home, mine.token, mine.gpus
            )
            info: WorkerInfo = infos[address]
            problem = problem_with(info, mine.home)
        except Exception as e:  # noqa: BLE001  # a foreign worker may raise anything; it is reported, and gets no run
            if is_no_answer(e):
                self._silent.add(address)
            problem = problem_for_error(e)
        if problem:
            self._refuse(address, str(about.get("name", address)), problem)
            return
        self._problems.pop(address, None)
        with self._lock:
            capacity = replace(
                capacity_for(address, about, info, (member.capacity for member in self._members.values())),
                lifetime=self._traits.lifetime,
                is_whole_host=self._traits.is_whole_host,
                ends=time.monotonic() + self._traits.lifetime - info.age if self._traits.lifetime else None,
            )
            if not _is_same(about, self._known.get(address)):
                return  # it has left meanwhile, or another one has its address
            self._members[address] = _Member(capacity, info.node)
        self._report(WorkersChanged(f"Worker {capacity.described(info.node)} has joined"))

    def _refuse(self, address: str, name: str, problem: Refusal) -> None:
        """Reports, once, why a worker gets no run. One that is silent may still answer."""
        if self._traits.on_refused and address not in self._silent:
            self._traits.on_refused(name, problem)
            return
        if address in self._known and self._problems.get(address) != problem:
            self._problems[address] = problem
            self._report(WorkerRefused(name, problem))

    def _lose_all(self, gone: Mapping[str, Mapping[str, Any]]) -> None:
        """Notes that workers are gone."""
        self._traits.on_lost({address: str(about.get("name")) for address, about in gone.items()})
        for address in gone:
            self._problems.pop(address, None)
            self._lose(address)

    def _lose(self, address: str) -> None:
        """Notes that a worker is gone. Its runs may still be running."""
        with self._lock:
            member = self._members.pop(address, None)
        for run_id in self._tasks.give_up(address):
            self._report(JobUnseen(run_id, f"its worker on {member.node if member else address} is gone"))
        if member:
            self._report(WorkersChanged(f"Worker {member.capacity.label} on {member.node} has left"))

    @property
    def address(self) -> str:
        """Returns the address of the Dask scheduler."""
        return str(self.client.scheduler.address)

    def workers(self) -> list[WorkerCapacity]:
        """Returns the workers that are there now."""
        if self.client.status != "running":
            return []  # Dask would send a task later, to whatever scheduler is there then
        with self._lock:
            members = list(self._members.items())
        return [replace(member.capacity, halt=self._halts.get(address)) for address, member in members]

    def known_workers(self) -> list[KnownWorker]:
        """Returns all workers that Dask knows now."""
        return [
            KnownWorker(address, str(about.get("name")), address in self._members, address in self._silent)
            for address, about in list(self._known.items())
        ]

    def drop(self, address: str) -> None:
        """Takes a worker out of workers(), although it is still there. What it runs goes on."""
        with self._lock:
            self._members.pop(address, None)

    def options(self, worker: str) -> StarterOptions:
        """Returns the options of runs on a worker."""
        member = self._members.get(worker)
        node = member.node if member else worker
        devices = None if self._common.gpus is None else ""  # where GPUs are assigned, a run without one sees none
        return StarterOptions(node=node, lease=self._common.lease, has_lifeline=True, devices=devices)

    # Runs

    def submit(self, work: Job, worker: str, requests: Mapping[str, float]) -> None:
        """Runs a job on a worker that has a free slot for it. An event reports its end."""
        if not is_connected(self.client):
            self._report(JobLost(work.run_id, "the Dask scheduler is gone"))
            return
        resources = known_to_dask(requests, self._known.get(worker, {}).get("resources", requests))
        if self._tasks.submit(self.client, work, worker, resources) and worker not in self._known:
            self._background.start(self._lose, worker)

    def stop(self, run_id: str) -> None:
        """Requests the end of a running job."""
        self._tasks.call(self.client, runner.stop, run_id)

    def kill(self, run_id: str) -> None:
        """Ends the processes of a running job at once."""
        self._tasks.call(self.client, runner.kill, run_id)

    def destroy(self, run_id: str) -> None:
        """Ends a job that kill() has not ended."""
        self._tasks.call(self.client, runner.destroy, run_id)

    # Periodic work

    def prepare(self, environ: Mapping[str, str]) -> None:
        """Does nothing: a worker gets ready when it joins, with the environment of its own job."""

    def tidy(self) -> None:
        """Looks for workers that joined or left without an event."""
        if not self._refreshing.locked():
            self._background.start(self.refresh)

    def dashboard_link(self) -> str | None:
        """Returns where the dashboard can be seen, or None if there is none."""
        with contextlib.suppress(OSError, RuntimeError, ValueError, KeyError):
            if "dashboard" in self.client.scheduler_info()["services"]:
                return str(self.client.dashboard_link)
        return None

    def add_pages(self, routes: Sequence[Any], first: str) -> str | None:
        """Returns None: the dashboard is in the process of the Dask scheduler."""
        return None

    def close(self) -> None:
        """Leaves the workers as they were found, and closes what was opened with the client."""
        self._unsubscribe()
        goodbye = in_loop_of(
            self.client, try_to_call(self.client, _UNREGISTER, list(self._members), unregister, self._common.token)
        )
        concurrent.futures.wait([goodbye] if goodbye else [], timeout=_UNREGISTER + 1)
        self.stop_refreshing()
        with contextlib.suppress(Exception):
            self.client.close(timeout=_CLOSE)
        self._close_after()

    def stop_refreshing(self) -> None:
        """Ends the search for workers that joined or left."""
        self._background.close()

    def disconnect(self, seconds: float) -> None:
        """Closes the connection without unregistering at the workers, which end with the cluster."""
        self._unsubscribe()
        with contextlib.suppress(Exception):
            self.client.close(timeout=seconds)

    def _unsubscribe(self) -> None:
        with contextlib.suppress(Exception):
            self.client.unsubscribe_topic("all")


def _is_same(before: Mapping[str, Any], now: Mapping[str, Any] | None) -> bool:
    """Returns whether a worker is the same process. A restarted one may have its address, but not its directory."""
    return now is not None and before.get("local_directory") == now.get("local_directory")
