"""The loop: look, plan, claim, submit, wait for one event, settle.

It has one place where it waits, on one queue. Three sources put events there: Dask's callbacks (a job ended), the
signal handlers (stop), and the clock (the queue's timeout, which makes it look at the runs directory again).
"""

import logging
import queue
import time
from collections.abc import Mapping
from dataclasses import dataclass

from guild_dask import job, messages, processes
from guild_dask.claims import Claim
from guild_dask.cluster import LocalCluster
from guild_dask.events import Event, JobEnded, JobLost, StopAsked
from guild_dask.ledger import Flight, Ledger
from guild_dask.output import OutputFollower
from guild_dask.plan import NotDefined, Plan, StagedRun, Worker, is_impossible, plan
from guild_dask.resources import Request, request_for_specs
from guild_dask.rundir import Staged, working_directory
from guild_dask.runs import End, GuildHome, HomeUnavailable, Listing, Result
from guild_dask.settings import Settings
from guild_dask.starter import NOT_STARTED

log = logging.getLogger("guild")

# Between TERM and KILL of a run's processes, and until the scheduler ends them itself. Guild waits 30 seconds for all.
GRACE = 10.0
LAST_RESORT = 18.0

# How often a run is claimed again after its starter died before it could start it.
MOST_STARTS = 3


@dataclass(frozen=True)
class Identity:
    """Who this scheduler is, and what its runs inherit from the user's shell."""

    run_id: str
    process: processes.ProcessIdentity
    environ: Mapping[str, str]
    directory: str


class Loop:
    """One scheduler at work."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        home: GuildHome,
        cluster: LocalCluster,
        follower: OutputFollower,
        events: "queue.SimpleQueue[Event]",
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._home = home
        self._cluster = cluster
        self._follower = follower
        self._events = events
        self._ledger = Ledger()
        self._listing = Listing((), {})
        self._requests: dict[str, tuple[Staged, Request]] = {}
        self._next_look = 0.0
        self._is_blocked = False
        self._is_unavailable = False
        self._stop: StopAsked | None = None

    def run(self) -> None:
        """Works until it is told to stop or, with run-once, until there is nothing left to do."""
        started = time.monotonic()
        if self._settings.run_once:
            log.info("Processing staged runs")
        while not self._stop:
            did_start = self._look_and_start()
            if not did_start and not self._ledger.in_flight:
                if self._settings.run_once and not self._is_blocked:
                    break
                self._say_waiting()
            self._wait()
        if self._stop:
            self._end_runs()
        elif self._settings.run_once:
            log.info(messages.summary(self._ledger.ends, len(self._listing.staged), time.monotonic() - started))

    # Look

    def _look_and_start(self) -> bool:
        """Starts what fits and tells whether it started anything; a home that cannot be used is told and left alone."""
        try:
            if time.monotonic() >= self._next_look or self._must_look():
                self._look()
            started = self._start_what_fits()
        except HomeUnavailable as e:
            if not self._is_unavailable:
                log.warning("%s; trying again every %g seconds", e, self._settings.poll_interval)
            self._is_unavailable = True
            self._next_look = time.monotonic() + self._settings.poll_interval
            return False
        if self._is_unavailable:
            log.info("The Guild home can be used again")
        self._is_unavailable = False
        return started

    def _must_look(self) -> bool:
        """Before run-once ends, what its own runs have staged is looked for."""
        return self._settings.run_once and not self._ledger.in_flight

    def _look(self) -> None:
        self._next_look = time.monotonic() + self._settings.poll_interval
        recovered = self._home.recover()
        for run_id in recovered.staged_again:
            log.info("Staged run %s again (its scheduler died before it started)", run_id)
        self._ledger.orphans = recovered.orphans
        self._listing = self._home.staged()
        known = self._requests
        self._requests = {run.id: self._request(run, known.get(run.id)) for run in self._listing.staged}
        self._ledger.forget_all_but([*self._requests, *self._listing.broken])
        for run_id, problem in self._listing.broken.items():
            if self._ledger.is_news(run_id, problem):
                log.warning("Ignoring staged run %s: %s", run_id, problem)
        self._is_blocked = self._look_for_running()
        if not self._is_blocked:
            self._announce()

    def _request(self, run: Staged, known: tuple[Staged, Request] | None) -> tuple[Staged, Request]:
        return known if known and known[0] == run else (run, request_for_specs(run.specs))

    def _look_for_running(self) -> bool:
        """Tells whether other runs keep ours from starting."""
        if not self._settings.wait_for_running or not self._listing.staged:
            return False
        running = self._home.running_elsewhere([*self._ledger.in_flight, self._identity.run_id])
        for run in self._listing.staged if running else ():
            if self._ledger.is_news(run.id, "waits for running"):
                log.info("Found staged run %s (waiting for runs to finish: %s)", run.id, ", ".join(running))
        return bool(running)

    def _announce(self) -> None:
        """Says once for each waiting run that it is in the plan, or why it cannot be."""
        workers = self._workers()
        for run, request in self._requests.values():
            if request.unreadable and self._ledger.is_news(f"{run.id} tags", run.specs):
                for part in request.unreadable:
                    log.warning("%s", part)
            reason = is_impossible(StagedRun(run.id, request.amounts), workers)
            if not self._ledger.is_news(run.id, reason or dict(request.amounts)):
                continue
            if reason is None:
                log.info("%s", messages.starting(run.id, request.amounts))
            elif isinstance(reason, NotDefined):
                log.info("Ignorning staged run %s (%s)", run.id, reason)
            else:
                log.warning("Leaving run %s staged (%s)", run.id, reason)

    # Start

    def _workers(self) -> list[Worker]:
        return [
            self._ledger.free(worker.name, worker.slots, worker.resources, counts_orphans=True)
            for worker in self._cluster.workers()
        ]

    def _start_what_fits(self) -> bool:
        """Claims and submits what fits now. A claim that fails makes it look and plan again."""
        while not self._is_blocked:
            decided = self._plan()
            wanted = {run.id: worker for run, worker in decided.starts}
            taken = self._home.claim([(self._requests[run_id][0], self._claim(run_id)) for run_id in wanted])
            for run in taken:
                self._submit(run, wanted[run.id])
            self._ledger.passed = decided.passed
            if len(taken) == len(wanted):
                return bool(taken)
            self._explain_missing([self._requests[run_id][0] for run_id in wanted if run_id in self._requests])
            self._look()
        return False

    def _plan(self) -> Plan:
        waiting = [
            StagedRun(run.id, request.amounts)
            for run, request in self._requests.values()
            if self._ledger.attempts.get(run.id, 0) < MOST_STARTS
        ]
        return plan(waiting, self._workers(), self._ledger.passed)

    def _claim(self, run_id: str) -> Claim:
        me = self._identity
        attempt = self._ledger.attempts.get(run_id, 0) + 1
        return Claim(run_id, me.run_id, me.process, me.process, attempt, self._requests[run_id][1].amounts)

    def _submit(self, run: Staged, worker: str) -> None:
        claim = self._claim(run.id)
        asks = self._requests.pop(run.id)[1].amounts
        self._ledger.attempts[run.id] = claim.attempt
        self._ledger.in_flight[run.id] = Flight(run, worker, asks)
        work = job.Job(
            run_dir=run.dir,
            claim=claim,
            claims_folder=str(self._home.claims_folder),
            directory=working_directory(run.dir, self._identity.directory),
            environ=self._identity.environ,
            output=self._follower.follow(run.id),
            grace=GRACE,
        )
        log.debug("Run %s goes to worker %s, attempt %d", run.id, worker, claim.attempt)
        self._cluster.submit(work, worker, asks)

    def _explain_missing(self, runs: list[Staged]) -> None:
        """Says which runs are gone. A run that another scheduler or queue took is that one's to speak of."""
        for run in runs:
            if not self._home.exists(run):
                log.warning("Staged run %s was deleted before it could start", run.id)

    # Wait and settle

    def _say_waiting(self) -> None:
        if (
            not self._settings.run_once
            and not self._requests
            and self._ledger.is_news("waiting", self._ledger.ends.total())
        ):
            log.info("Waiting for staged runs")

    def _wait(self, deadline: float | None = None) -> None:
        """Waits for one event, then settles all that have come. The timeout is the next look."""
        until = self._next_look if deadline is None else deadline
        try:
            event = self._events.get(timeout=max(0.0, until - time.monotonic()))
            while True:
                self._settle(event)
                event = self._events.get_nowait()
        except queue.Empty:
            pass

    def _settle(self, event: Event) -> None:
        if isinstance(event, StopAsked):
            if self._stop:
                self._kill_runs()
            self._stop = event
        elif isinstance(event, JobEnded):
            self._settle_run(event.run_id, event.exit_code)
        elif isinstance(event, JobLost):
            log.warning("Run %s could not be started: %s", event.run_id, event.problem)
            self._settle_run(event.run_id, NOT_STARTED)

    def _settle_run(self, run_id: str, exit_code: int) -> None:
        self._follower.finish(run_id)
        self._ledger.in_flight.pop(run_id, None)
        never_tried = exit_code == NOT_STARTED or exit_code < 0
        try:
            result = self._home.settle(run_id, exit_code, may_stage_again=never_tried)
        except HomeUnavailable as e:
            # The claim stays; when this scheduler is gone, the next one sees to it.
            log.warning("%s", e)
            return
        self._ledger.ends[result.end] += 1
        self._tell(run_id, result)
        if result.end is End.STAGED_AGAIN:
            self._next_look = 0.0
            if not self._stop and self._ledger.attempts.get(run_id, 0) >= MOST_STARTS:
                log.warning("Leaving run %s staged (its process died %d times before it started)", run_id, MOST_STARTS)

    def _tell(self, run_id: str, result: Result) -> None:
        level, text = messages.ended(run_id, result)
        log.log(level, "%s", text)

    # Stop

    def _end_runs(self) -> None:
        """Ends what is running; what has not started yet is staged again. Returns when all is settled."""
        flights = list(self._ledger.in_flight)
        for run_id in flights:
            self._cluster.stop(run_id)
        last_resort = time.monotonic() + LAST_RESORT
        while self._ledger.in_flight and time.monotonic() < last_resort:
            self._wait(last_resort)
        if self._ledger.in_flight:
            self._kill_runs()
        while self._ledger.in_flight and time.monotonic() < last_resort + GRACE:
            self._wait(last_resort + GRACE)

    def _kill_runs(self) -> None:
        for run_id in list(self._ledger.in_flight):
            self._cluster.kill(run_id)
