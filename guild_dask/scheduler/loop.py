"""The shell around the core: waits for one event at a time, and carries out what the core decides.

It waits in one place, on one queue. What ends the wait: the cluster (a job ended, a worker came or went), the signal
handlers (stop), the watchers (a run was staged, a user asks for something), the page (it was opened), and the clock.
"""

import contextlib
import logging
import math
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from guild_dask.home import control, lookup
from guild_dask.home.errors import HomeUnavailable, trouble_in
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.scheduler import instructions as do
from guild_dask.scheduler.answers import (
    Answer,
    ClaimChecked,
    ClaimsRecovered,
    ClusterView,
    ControlRead,
    DeletedFound,
    HomeFailed,
    Listed,
    LookedUp,
    RunningFound,
    StartChecked,
    TakersFound,
    WorkersSeen,
)
from guild_dask.scheduler.core import Core
from guild_dask.scheduler.dispatch import Dispatcher
from guild_dask.scheduler.events import OutsideEvent
from guild_dask.scheduler.view import view_of

log = logging.getLogger("guild")


class Loop:
    """One scheduler at work."""

    def __init__(
        self,
        core: Core,
        dispatcher: Dispatcher,
        heartbeat: Heartbeat,
        events: "queue.SimpleQueue[OutsideEvent]",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core = core
        self._dispatcher = dispatcher
        self._home = dispatcher.home
        self._cluster = dispatcher.cluster
        self._publisher = dispatcher.publisher
        self._heartbeat = heartbeat
        self._events = events
        self._clock = clock
        self._is_abandoned = False  # an unexpected error has happened
        self._actions: dict[type, Callable[[Any], Answer | OutsideEvent | None]] = {
            do.RenewHeartbeat: self._renew_heartbeat,
            do.ReadControl: self._read_control,
            do.Settle: dispatcher.settle,
            do.TidyCluster: lambda _: self._cluster.tidy(),
            do.Recover: lambda each: ClaimsRecovered(dispatcher.recover(each)),
            do.ListRuns: lambda _: Listed(self._home.staged()),
            do.RefreshRuns: lambda each: Listed(self._home.staged_after(each.run_ids)),
            do.LookUp: self._look_up,
            do.FindRunning: lambda each: RunningFound(tuple(self._home.running_elsewhere(each.own))),
            do.SeeWorkers: lambda _: WorkersSeen(self._view_of_cluster()),
            do.Claim: lambda each: dispatcher.claim(each.wanted),
            do.Submit: lambda each: dispatcher.submit(each.run),
            do.FindDeleted: lambda each: DeletedFound(dispatcher.deleted(each.run_ids)),
            do.FindTakers: lambda each: TakersFound(dispatcher.takers(each.run_ids)),
            do.CheckClaim: self._check_claim,
            do.RequestDrain: self._request_drain,
            do.CheckStart: lambda each: StartChecked(each.run_id, dispatcher.has_started(each.run_id)),
            do.RequestStop: lambda each: dispatcher.request_stop(each.run_ids),
            do.StopRun: lambda each: self._cluster.stop(each.run_id),
            do.KillRun: lambda each: self._cluster.kill(each.run_id),
            do.DestroyRun: lambda each: self._cluster.destroy(each.run_id),
            do.CloseOutput: lambda each: self._close_output(each.run_id),
            do.PublishOutcome: lambda each: self._publisher.ended(each.run_id, each.result),
            do.PublishLeft: lambda each: self._publisher.left(each.run_id),
            do.AdjustWorkers: self._adjust,
            do.Log: lambda each: log.log(each.level, "%s", each.text),
            do.Publish: lambda each: self._publisher.publish(self._view, each.at_once),
        }

    def run(self) -> None:
        """Works until it is stopped or drained or, with run-once, until there is nothing left to do."""
        self._wait_until(self._clock())  # a stop may have come while the cluster was opened
        self._carry_out(self._core.begin())
        self._work()

    def abandon(self) -> None:
        """Ends the runs after an unexpected error. Further errors are logged, and keep no run from being ended."""
        self._is_abandoned = True
        self._core.abandon(self._clock())
        self._work()

    def _work(self) -> None:
        while not self._core.is_over:
            self._carry_out(self._core.begin_cycle(self._clock()))
            self._carry_out(self._core.end_cycle(self._clock()))
            if not self._core.is_over:
                self._wait_until(min(self._core.due, self._publisher.due or math.inf))

    def _carry_out(self, instructions: Iterable[do.Instruction]) -> None:
        """Carries out instructions in order, each followed by what its answer leads to."""
        ahead = deque(instructions)
        while ahead:
            instruction = ahead.popleft()
            try:
                answer = self._actions[type(instruction)](instruction)
            except HomeUnavailable as e:
                ahead.clear()
                answer = HomeFailed(str(e))
            except Exception as e:
                problem = trouble_in(e)
                if not self._is_abandoned and not problem:
                    raise
                log.debug("%s failed: %r", type(instruction).__name__, e)
                # The other instructions are carried out: a run that was claimed must be submitted.
                answer = HomeFailed(problem) if problem else None
            if answer is not None:
                ahead.extendleft(reversed(self._core.handle(answer, self._clock())))

    def _wait_until(self, deadline: float) -> None:
        """Waits for one event, then handles all that have come."""
        try:
            event = next_event(self._events, max(0.0, deadline - self._clock()))
            while True:
                self._carry_out(self._core.handle(event, self._clock()))
                event = self._events.get_nowait()
        except queue.Empty:
            pass

    def _read_control(self, _instruction: do.ReadControl) -> ControlRead:
        home = self._heartbeat.home
        return ControlRead(control.state(home, self._heartbeat.scheduler_id), control.changed_runs(home))

    def _request_drain(self, _instruction: do.RequestDrain) -> None:
        with contextlib.suppress(OSError):
            control.send(self._heartbeat.home, self._heartbeat.scheduler_id, "drain")

    def _renew_heartbeat(self, _instruction: do.RenewHeartbeat) -> None:
        self._heartbeat.renew()
        self._heartbeat.sweep()

    def _look_up(self, each: do.LookUp) -> LookedUp:
        return LookedUp(lookup.found(self._home.runs_dir, self._home.claims_folder, each.vanished, each.references))

    def _check_claim(self, each: do.CheckClaim) -> ClaimChecked:
        has_started = self._dispatcher.has_started(each.run_id)
        return ClaimChecked(each.run_id, each.exit_code, each.problem, has_started, each.may_be_of_run)

    def _close_output(self, run_id: str) -> None:
        self._dispatcher.follower.finish(run_id)

    def _adjust(self, each: do.AdjustWorkers) -> None:
        self._cluster.adjust(each.waiting, each.busy)

    def _view_of_cluster(self) -> ClusterView:
        cluster = self._cluster
        return ClusterView(tuple(cluster.workers()), tuple(cluster.prospects()), cluster.most_waiting)

    def _view(self) -> Any:
        return view_of(self._core, self._view_of_cluster(), self._clock())


def next_event(events: "queue.SimpleQueue[OutsideEvent]", timeout: float) -> OutsideEvent:
    """Returns the next event; raises queue.Empty if none comes in so many seconds."""
    # In Python 3.10, a get() that the kernel interrupts for longer than its timeout may wait for ever; not if
    # get_nowait() has just found the queue empty.
    with contextlib.suppress(queue.Empty):
        return events.get_nowait()
    return events.get(timeout=timeout)
