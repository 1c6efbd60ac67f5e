"""The loop: look, plan, claim, submit, wait for one event, settle.

It has one place where it waits, on one queue. What ends the wait: Dask's callbacks (a job ended), the
signal handlers (stop), the watcher (a run was staged), and the clock (the queue's timeout, which makes it look at the
whole runs directory again).
"""

import logging
import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from guild_dask import job, messages
from guild_dask.claims import Claim
from guild_dask.cluster import LocalCluster
from guild_dask.events import Event, JobEnded, JobLost, RunStaged, StopAsked
from guild_dask.ledger import WAITING, Flight, Ledger
from guild_dask.listing import HomeUnavailable, Listing
from guild_dask.output import OutputFollower
from guild_dask.plan import IMPOSSIBLE, Worker, plan
from guild_dask.processes import ProcessIdentity
from guild_dask.rundir import Staged, working_directory
from guild_dask.runs import End, GuildHome
from guild_dask.settings import Settings
from guild_dask.starter import NOT_STARTED
from guild_dask.waiting import WaitingRuns

log = logging.getLogger("guild")

# Seconds from TERM to KILL of a run's processes, to KILL by the scheduler itself, and to the end of its patience.
# Guild waits 30 seconds for a scheduler that it stops.
GRACE = 10.0
LAST_RESORT = 15.0
GIVE_UP = 20.0

# How often a run is claimed again after its starter died before it could start it.
MOST_STARTS = 3


@dataclass(frozen=True)
class Identity:
    """Who this scheduler is, and what its runs inherit from the user's shell."""

    run_id: str
    process: ProcessIdentity
    environ: Mapping[str, str]
    directory: str


@dataclass(frozen=True)
class Surroundings:
    """All that the loop works with; whoever opened these closes them."""

    identity: Identity
    home: GuildHome
    cluster: LocalCluster
    follower: OutputFollower
    events: "queue.SimpleQueue[Event]"


class Loop:
    """One scheduler at work."""

    def __init__(self, settings: Settings, surroundings: Surroundings) -> None:
        self._settings = settings
        self._identity = surroundings.identity
        self._home = surroundings.home
        self._cluster = surroundings.cluster
        self._follower = surroundings.follower
        self._events = surroundings.events
        self._ledger = Ledger()
        self._waiting = WaitingRuns(self._ledger)
        self._next_look = 0.0
        self._changed: set[str] = set()  # runs that were staged since the last look
        self._is_blocked = False  # by runs of others, with wait-for-running
        self._is_unavailable = False
        self._may_start_later = False
        self._stop: StopAsked | None = None

    def run(self) -> None:
        """Works until it is told to stop or, with run-once, until there is nothing left to do."""
        started = time.monotonic()
        if self._settings.run_once:
            log.info("Processing staged runs")
        while not self._stop:
            self._look_and_start()
            if self._is_done():
                break
            self._say_waiting()
            self._wait_until(self._next_look)
        if self._stop:
            self._end_runs()
        elif self._settings.run_once:
            log.info("%s", messages.summary(self._ledger.ends, len(self._waiting), time.monotonic() - started))

    def _is_done(self) -> bool:
        """Tells whether run-once has nothing left to do: no run is on its way, and no waiting one could ever start."""
        idle = not self._ledger.in_flight and not self._ledger.unsettled and not self._is_unavailable
        return self._settings.run_once and idle and not self._is_blocked and not self._may_start_later

    # Look and start

    def _look_and_start(self) -> None:
        """Starts what fits. A home that cannot be used is told once and left alone until the next look."""
        try:
            # Before run-once ends, it looks for what its own runs have staged.
            if time.monotonic() >= self._next_look or (self._settings.run_once and not self._ledger.in_flight):
                self._look()
            elif self._changed:
                self._take_in(self._home.staged_after(self._changed))
            self._start_what_fits()
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
        for run_id, exit_code in list(self._ledger.unsettled.items()):
            self._settle_run(run_id, exit_code)
        self._cluster.tidy()
        recovered = self._home.recover()
        for run_id in recovered.staged_again:
            log.info("Staged run %s again (its scheduler died before it started)", run_id)
        self._ledger.orphans = recovered.orphans
        self._take_in(self._home.staged())

    def _take_in(self, listing: Listing) -> None:
        """Takes in a look at the runs directory, and says what is new."""
        self._changed.clear()
        self._waiting.update(listing)
        running = []
        if self._settings.wait_for_running and self._waiting:
            running = self._home.running_elsewhere([*self._ledger.in_flight, self._identity.run_id])
        self._is_blocked = bool(running)
        if running:
            self._waiting.tell_blocked(running)
        else:
            self._waiting.tell_places(self._workers())

    def _workers(self) -> list[Worker]:
        return [
            self._ledger.free(worker.name, worker.slots, worker.resources, counts_orphans=True)
            for worker in self._cluster.workers()
        ]

    def _start_what_fits(self) -> None:
        """Claims and submits what fits now. Where a run was not to be had any more, it looks and plans again."""
        while not self._is_blocked:
            workers = self._workers()
            slots = sum(max(0, worker.free_slots) for worker in workers)
            # One more than can start of each kind: it tells whether some could start later.
            waiting = [run for run in self._waiting.first(slots + 1) if self._may_try(run.id)]
            decided = plan(waiting, workers, self._ledger.passed)
            wanted = {run.id: worker for run, worker in decided.starts}
            claimed = self._home.claim([(self._waiting[run_id][0], self._claim(run_id)) for run_id in wanted])
            self._ledger.passed = decided.passed
            self._may_start_later = any(not isinstance(reason, IMPOSSIBLE) for reason in decided.held.values())
            for run in claimed.runs:
                self._submit(run, wanted[run.id])
            if claimed.problem:
                raise HomeUnavailable(claimed.problem)
            if len(claimed.runs) == len(wanted):
                return
            self._explain_missing([self._waiting[run_id][0] for run_id in wanted if run_id in self._waiting])
            self._look()

    def _may_try(self, run_id: str) -> bool:
        return self._ledger.attempts.get(run_id, 0) < MOST_STARTS

    def _claim(self, run_id: str) -> Claim:
        me = self._identity
        attempt = self._ledger.attempts.get(run_id, 0) + 1
        return Claim(run_id, me.run_id, me.process, me.process, attempt, self._waiting[run_id][1].amounts)

    def _submit(self, run: Staged, worker: str) -> None:
        claim = self._claim(run.id)
        self._waiting.take(run.id)
        self._ledger.attempts[run.id] = claim.attempt
        self._ledger.in_flight[run.id] = Flight(run, worker, claim.asks)
        try:
            output = self._follower.follow(run.id)
        except OSError as e:
            self._events.put(JobLost(run.id, f"cannot write its output: {e.strerror or e}"))
            return
        work = job.Job(
            run_dir=run.dir,
            claim=claim,
            claims_folder=str(self._home.claims_folder),
            directory=working_directory(run.dir, self._identity.directory),
            environ=self._identity.environ,
            output=output,
            grace=GRACE,
        )
        log.debug("Run %s goes to worker %s, attempt %d", run.id, worker, claim.attempt)
        self._cluster.submit(work, worker, claim.asks)

    def _explain_missing(self, runs: list[Staged]) -> None:
        """Says which runs are gone. A run that another scheduler or queue took is that one's to speak of."""
        for run in runs:
            if not self._home.exists(run):
                log.warning("Staged run %s was deleted before it could start", run.id)

    # Wait and settle

    def _say_waiting(self) -> None:
        if self._settings.run_once or self._ledger.in_flight or self._waiting:
            return
        if self._ledger.is_news(WAITING, self._ledger.ends.total()):
            log.info("Waiting for staged runs")

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
        if isinstance(event, StopAsked):
            if self._stop:
                # Asked twice: somebody is in a hurry.
                self._each_in_flight(self._cluster.kill)
            self._stop = event
        elif isinstance(event, RunStaged):
            self._changed.add(event.run_id)
        elif isinstance(event, JobEnded):
            self._end_flight(event.run_id, event.exit_code)
        elif isinstance(event, JobLost):
            log.warning("Run %s: %s", event.run_id, event.problem)
            self._end_flight(event.run_id, NOT_STARTED)

    def _end_flight(self, run_id: str, exit_code: int) -> None:
        last_line = self._follower.finish(run_id)
        self._ledger.in_flight.pop(run_id, None)
        try:
            self._settle_run(run_id, exit_code, last_line)
        except HomeUnavailable as e:
            self._ledger.unsettled[run_id] = exit_code
            log.warning("%s; trying again every %g seconds", e, self._settings.poll_interval)

    def _settle_run(self, run_id: str, exit_code: int, last_line: str = "") -> None:
        was_cut_short = exit_code == NOT_STARTED or exit_code < 0
        result = self._home.settle(run_id, exit_code, may_stage_again=was_cut_short)
        self._ledger.unsettled.pop(run_id, None)
        self._ledger.ends[result.end] += 1
        level, text = messages.ended(run_id, result, last_line)
        log.log(level, "%s", text)
        if result.end is End.STAGED_AGAIN and not self._stop:
            self._next_look = 0.0
            if self._ledger.attempts.get(run_id, 0) >= MOST_STARTS:
                log.warning("Leaving run %s staged (its process died %d times before it started)", run_id, MOST_STARTS)

    # Stop

    def _end_runs(self) -> None:
        """Ends what is running; what has not started is staged again. Each step is for those that outlived the last."""
        asked = time.monotonic()
        if self._ledger.in_flight:
            log.info("Ending %d run(s); asking again ends them at once", len(self._ledger.in_flight))
        self._each_in_flight(self._cluster.stop)
        self._wait_for_flights(asked + LAST_RESORT)
        self._each_in_flight(self._cluster.kill)
        self._wait_for_flights(asked + GIVE_UP)
        self._each_in_flight(self._cluster.destroy)
        self._wait_for_flights(asked + GIVE_UP + 1)

    def _each_in_flight(self, end: Callable[[str], None]) -> None:
        for run_id in self._ledger.in_flight:
            end(run_id)

    def _wait_for_flights(self, deadline: float) -> None:
        while self._ledger.in_flight and time.monotonic() < deadline:
            self._wait_until(deadline)
