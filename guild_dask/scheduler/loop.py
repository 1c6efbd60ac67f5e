"""The loop: look, plan, claim, submit, wait for one event, settle.

It has one place where it waits, on one queue. What ends the wait: Dask's callbacks (a job ended), the signal handlers
(stop), the watchers (a run was staged; a user asks for something), and the clock (the queue's timeout, which makes it
look at the whole runs directory again).
"""

import functools
import logging
import math
import queue
import time
from collections.abc import Mapping

from guild_dask.cluster.events import ClusterTrouble, JobAdrift, JobEnded, JobLost, WorkerRefused, WorkersChanged
from guild_dask.home import lookup
from guild_dask.home.claims import Claim
from guild_dask.home.errors import HomeUnavailable
from guild_dask.home.heartbeat import BEAT, Presence
from guild_dask.home.listing import Listing
from guild_dask.monitor.publisher import View
from guild_dask.plan.placement import plan
from guild_dask.plan.reasons import IMPOSSIBLE, Obstacle, SetAside, StartsFailed
from guild_dask.scheduler import messages
from guild_dask.scheduler.dispatch import Flights, was_staged_again
from guild_dask.scheduler.events import ControlChanged, Event, RunStaged, StopAsked
from guild_dask.scheduler.ledger import WAITING
from guild_dask.scheduler.lost_runs import Aftercare
from guild_dask.scheduler.requests import Orders
from guild_dask.scheduler.shutdown import end_runs, settle_rest
from guild_dask.scheduler.waiting import WaitingRuns
from guild_dask.scheduler.workers import Workforce
from guild_dask.settings.settings import Settings
from guild_dask.worker.job import NOT_STARTED

log = logging.getLogger("guild")

# How often a run is claimed again after its starter died before it could start it.
MOST_STARTS = 3


class Loop:
    """One scheduler at work."""

    def __init__(
        self,
        settings: Settings,
        flights: Flights,
        presence: Presence,
        orders: Orders,
        events: "queue.SimpleQueue[Event]",
    ) -> None:
        self._settings = settings
        self._flights = flights
        self._presence = presence
        self._orders = orders
        self._events = events
        self._home = flights.home
        self._cluster = flights.cluster
        self._ledger = flights.ledger
        self._publisher = flights.publisher
        find = functools.partial(lookup.found, self._home.runs_dir, self._home.claims_folder, self._ledger.vanished)
        self._aftercare = Aftercare(flights)
        self._workforce = Workforce(flights.cluster, flights.ledger, settings.time_limit)
        self._waiting = WaitingRuns(self._ledger, find, self._workforce.time_of, settings.gpus is not None)
        self._next_look = 0.0
        self._next_beat = 0.0
        self._pause_until = 0.0  # nothing starts before
        self._last_problem: str | None = None
        self._changed: set[str] = set()  # runs that were staged since the last look
        self._blocked_by: list[str] = []  # runs of others, with wait-for-running
        self._is_unavailable = False
        self._may_start_later = False
        self._stop: StopAsked | None = None

    def run(self) -> None:
        """Works until it is told to stop or drained or, with run-once, until there is nothing left to do."""
        started = time.monotonic()
        self._wait_until(started)  # a stop may have come while the cluster was opened
        if self._settings.run_once and not self._stop:
            log.info("Processing staged runs")
        self._publish()
        while not self._stop:
            self._beat()
            self._look_and_start()
            if self._is_done():
                break
            self._say_waiting()
            self._publish()
            self._next_look = min(self._next_look, self._aftercare.next_due())
            self._wait_until(min(self._next_look, self._next_beat, self._publisher.due or math.inf, self._waiting.due))
        self._publish(at_once=True)
        if self._stop:
            end_runs(self._flights, self._wait_until)
            settle_rest(self._flights)
        elif self._settings.run_once:
            log.info("%s", messages.summary(self._ledger.ends, self._waiting.left, time.monotonic() - started))

    def _is_done(self) -> bool:
        """Tells whether run-once has nothing left to do: no run is on its way, and no waiting one could ever start."""
        ledger = self._ledger
        is_busy = ledger.in_flight or ledger.unsettled or ledger.adrift or self._waiting.has_more_to_say
        if is_busy or self._is_unavailable:
            return False
        is_waiting = (
            ledger.paused or self._blocked_by or self._may_start_later or (self._waiting and not self._orders.may_start)
        )
        return self._orders.is_draining or (self._settings.run_once and not is_waiting)

    # Look

    def _beat(self) -> None:
        """Shows other hosts, now and then, that this scheduler lives."""
        if time.monotonic() >= self._next_beat:
            self._presence.beat()
            self._presence.sweep()
            self._next_beat = time.monotonic() + BEAT

    def _look_and_start(self) -> None:
        """Starts what fits. A home that cannot be used is told once and left alone until the next look."""
        try:
            # Before run-once ends, it looks for what its own runs have staged.
            if time.monotonic() >= self._next_look or (self._settings.run_once and not self._ledger.in_flight):
                self._look()
            elif self._changed or self._workforce.has_changed or self._waiting.has_more_to_say:
                self._take_in(self._home.staged_after(self._changed))
            self._start_what_fits()
            self._adjust_workers()
        except HomeUnavailable as e:
            self._next_look = time.monotonic() + self._settings.poll_interval
            if not self._is_unavailable:
                log.warning("%s; trying again every %g seconds", e, self._settings.poll_interval)
            self._is_unavailable = True
        else:
            if self._is_unavailable:
                log.info("The Guild home can be used again")
            self._is_unavailable = False

    def _look(self) -> None:
        self._next_look = time.monotonic() + self._settings.poll_interval
        self._orders.look(len(self._ledger.in_flight))
        self._aftercare.look()
        self._take_in(self._home.staged())

    def _take_in(self, listing: Listing) -> None:
        """Takes in a look at the runs directory, and says what is new."""
        self._changed.clear()
        self._workforce.has_changed = False
        self._waiting.update(self._aftercare.rested(listing))
        running = []
        if self._settings.wait_for_running and self._waiting:
            own = [*self._ledger.in_flight, *self._ledger.adrift, self._flights.identity.run_id]
            running = self._home.running_elsewhere(own)
        self._blocked_by = running
        if running:
            self._waiting.tell_blocked(running)
        else:
            self._waiting.tell_places(self._workforce.all(), self._orders.may_start)

    # Start

    def _start_what_fits(self) -> None:
        """Claims and sends off what fits now. Where a run was not to be had any more, it looks and plans again."""
        while self._orders.may_start and not self._blocked_by and time.monotonic() >= self._pause_until:
            wanted = self._plan()
            outputs = self._flights.open_outputs(wanted)
            claims = {run_id: self._claim_for(run_id, *place) for run_id, place in wanted.items()}
            claimed = self._home.claim([(self._waiting[run_id][0], claim) for run_id, claim in claims.items()])
            for run, claim in claimed.taken:
                self._waiting.start(run.id)
                self._flights.send(run, wanted[run.id][0], claim, outputs.pop(run.id))
            self._flights.close_outputs(outputs)
            for run_id, problem in claimed.refused.items():
                self._set_aside(run_id, SetAside(problem))
            if claimed.problem:
                raise HomeUnavailable(claimed.problem)
            missing = [run_id for run_id in outputs if run_id not in claimed.refused]
            if not outputs:
                return
            if missing:
                self._flights.explain_missing(missing)
                self._look()

    def _adjust_workers(self) -> None:
        """Has workers come and go as the waiting runs need them."""
        may_start = self._orders.may_start and not self._blocked_by
        self._workforce.adjust(self._waiting.first(self._workforce.appetite) if may_start else ())

    def _claim_for(self, run_id: str, worker: str, devices: Mapping[str, float]) -> Claim:
        run, demands = self._waiting[run_id]
        return self._flights.claim(run, worker, demands.amounts, devices)

    def _plan(self) -> dict[str, tuple[str, Mapping[str, float]]]:
        """Returns the runs to start now, each with its worker, and its shares of the worker's devices."""
        workers = self._workforce.all()
        slots = sum(max(0, worker.free_slots) for worker in workers)
        # One more than can start of each kind: it tells whether some could start later.
        decided = plan(self._waiting.first(slots + 1), workers, self._ledger.passed)
        self._ledger.passed = decided.passed
        self._waiting.tell_held(decided.held)
        could_start = any(not isinstance(reason, IMPOSSIBLE) for reason in decided.held.values())
        self._may_start_later = could_start or self._waiting.has_hope
        return {run.id: (worker, decided.devices.get(run.id, {})) for run, worker in decided.starts}

    def _set_aside(self, run_id: str, obstacle: Obstacle) -> None:
        """Leaves a run staged that cannot be started here, and goes on with the others."""
        self._waiting.set_aside(run_id, obstacle)
        log.warning("Leaving run %s staged (%s)", run_id, obstacle)

    # Wait and settle

    def _say_waiting(self) -> None:
        if self._settings.run_once or self._ledger.in_flight or self._waiting:
            return
        if self._ledger.is_news(WAITING, self._ledger.ends.total()):
            log.info("Waiting for staged runs")

    def _publish(self, at_once: bool = False) -> None:
        """Tells others what goes on, if something has changed."""
        phase = "stopping" if self._stop else self._orders.phase
        force = self._workforce
        ledger, waiting = self._ledger, self._waiting
        view = View(force.present(), waiting, ledger.held, self._blocked_by, phase, force.troubles, ledger.paused)
        self._publisher.publish(view, at_once)

    def _wait_until(self, deadline: float) -> None:
        """Waits for one event, then settles all that have come."""
        try:
            event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            while True:
                self._settle(event)
                event = self._events.get_nowait()
        except queue.Empty:
            pass

    def _settle(self, event: Event) -> None:
        if isinstance(event, RunStaged):
            self._changed.add(event.run_id)
        elif isinstance(event, (JobEnded, JobLost)) and not event.had_claim and self._home.has_started(event.run_id):
            # Dask has sent it to a worker twice; the other one has it, or had.
            problem = event.problem if isinstance(event, JobLost) else "its worker was started anew"
            self._settle(JobAdrift(event.run_id, problem))
        elif isinstance(event, JobEnded):
            self._last_problem = None
            self._land(event.run_id, event.exit_code)
        elif isinstance(event, JobLost):
            self._lose(event)
        elif isinstance(event, ControlChanged):
            self._next_look = 0.0
        elif isinstance(event, JobAdrift):
            self._aftercare.lose_sight(event)
            self._next_look = time.monotonic()
        elif isinstance(event, (WorkersChanged, WorkerRefused, ClusterTrouble)):
            self._workforce.take_in(event)
        elif isinstance(event, StopAsked):  # not SomebodyLooks, who needs nothing but to be told, before the next wait
            self._stop_soon(event)

    def _stop_soon(self, event: StopAsked) -> None:
        if self._stop:
            # Asked twice: somebody is in a hurry.
            self._flights.each(self._cluster.kill)
        self._stop = event
        self._ledger.is_stopping = True

    def _land(self, run_id: str, exit_code: int) -> None:
        result = self._flights.land(run_id, exit_code)
        if self._waiting.is_awaited(run_id):
            self._changed.add(run_id)
        if was_staged_again(result) and not self._stop:
            self._next_look = self._pause_until
            if self._ledger.starts.get(run_id, 0) >= MOST_STARTS:
                self._set_aside(run_id, StartsFailed(MOST_STARTS))

    def _lose(self, event: JobLost) -> None:
        """Settles a job that its worker could not do. Nothing starts until the next look, lest it go round."""
        if event.problem != self._last_problem:
            log.warning("Run %s could not be started: %s", event.run_id, event.problem)
        self._last_problem = event.problem
        self._may_start_later = True
        self._pause_until = self._next_look = time.monotonic() + self._settings.poll_interval
        self._ledger.starts.pop(event.run_id, None)  # it is no fault of the run's
        self._land(event.run_id, NOT_STARTED)

    def abandon(self) -> None:
        """Ends what is running after an error that nobody foresaw."""
        self._stop = StopAsked()
        self._ledger.is_stopping = True
        end_runs(self._flights, self._wait_until)
