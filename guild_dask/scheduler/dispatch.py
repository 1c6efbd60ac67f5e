"""The runs that are on workers: sent there with a claim, settled when they end, ended when the scheduler stops."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from guild_dask.cluster.base import Cluster
from guild_dask.home import attempts
from guild_dask.home.claims import Claim
from guild_dask.home.errors import HomeUnavailable, RunUnusable
from guild_dask.home.outcome import End
from guild_dask.home.result import Result
from guild_dask.home.run_directory import BrokenRun, Staged, our_tags
from guild_dask.home.run_queue import GuildHome
from guild_dask.home.start_directory import working_directory
from guild_dask.host.processes import ProcessIdentity
from guild_dask.monitor.output import OutputFollower
from guild_dask.monitor.publisher import Publisher
from guild_dask.plan import devices, retries
from guild_dask.plan.resources import CPU, LEAST_MEMORY, MEMORY
from guild_dask.plan.tags import demands_for_tags
from guild_dask.scheduler import messages
from guild_dask.scheduler.ledger import Flight, Ledger
from guild_dask.worker.job import NOT_STARTED, Job
from guild_dask.worker.options import Terms

log = logging.getLogger("guild")

# Seconds from TERM to KILL of a run's processes.
GRACE = 10.0


@dataclass(frozen=True)
class Identity:
    """Who this scheduler is, and what its runs inherit from the user's shell."""

    run_id: str
    process: ProcessIdentity
    environ: Mapping[str, str]
    directory: str


@dataclass(frozen=True)
class Flights:
    """What takes a claimed run to a worker, and back."""

    identity: Identity
    home: GuildHome
    cluster: Cluster
    follower: OutputFollower
    ledger: Ledger
    publisher: Publisher
    retries: int | None = None  # as the user asked for; None: not asked for
    time_limit: float | None = None  # seconds, for runs that do not ask for another; None: none

    def claim(
        self, run: Staged, worker: str, asks: Mapping[str, float], shares: Mapping[str, float] | None = None
    ) -> Claim:
        """Returns a claim of this scheduler on a run."""
        me = self.identity
        return Claim(
            run_id=run.id,
            scheduler_id=me.run_id,
            scheduler=me.process,
            owner=me.process,
            asks=devices.amounts(asks, has_devices=bool(shares)),
            devices=shares or {},
            serial=next(self.ledger.serials),
            worker=worker,
            lease=self.cluster.terms(worker).lease,
        )

    def open_outputs(self, run_ids: Iterable[str]) -> dict[str, str]:
        """Returns a file for the output of each run, before any is claimed: without one, none could start."""
        opened: dict[str, str] = {}
        try:
            for run_id in run_ids:
                opened[run_id] = self.follower.follow(run_id)
        except OSError as e:
            self.close_outputs(opened)
            raise HomeUnavailable(f"cannot write to the scheduler's run directory: {e.strerror or e}") from e
        return opened

    def close_outputs(self, run_ids: Iterable[str]) -> None:
        """Gives back what open_outputs() made for runs that were not claimed."""
        for run_id in run_ids:
            self.follower.finish(run_id)

    def explain_missing(self, run_ids: Iterable[str]) -> None:
        """Says which runs are gone. A run that another scheduler or queue took is that one's to speak of."""
        for run_id in run_ids:
            if not self.home.has(run_id):
                log.warning("Staged run %s was deleted before it could start", run_id)

    def send(self, run: Staged, worker: str, claim: Claim, output: str) -> None:
        """Sends a claimed run to a worker."""
        self.ledger.starts[run.id] = self.ledger.starts.get(run.id, 0) + 1
        terms = self.cluster.terms(worker)
        flight = Flight(run, worker, claim.asks, terms.node or self.identity.process.host, claim.devices)
        self.ledger.in_flight[run.id] = flight
        where = self.publisher.started(run, worker, flight.host, claim)
        work = Job(
            run_dir=run.dir,
            claim=claim,
            claims_folder=str(self.home.claims_folder),
            directory=working_directory(run.dir, self.identity.directory),
            environ=None if terms.node else self.identity.environ,
            output=output,
            terms=self._terms(run, claim, replace(terms, whereabouts=where)),
        )
        log.debug("Run %s goes to worker %s, attempt %d", run.id, worker, claim.attempt)
        self.cluster.submit(work, worker, claim.asks)

    def _terms(self, run: Staged, claim: Claim, terms: Terms) -> Terms:
        """Returns the terms of a run, given those of its worker."""
        limit = demands_for_tags(run.tags).time_limit or self.time_limit or 0.0
        memory, cpus = (float(claim.asks.get(name, 0.0)) for name in (MEMORY, CPU))
        return replace(
            terms,
            grace=GRACE,
            attempt=claim.attempt,
            time_limit=limit,
            threads=max(1, int(cpus)) if cpus else 0,
            devices=",".join(claim.devices) if claim.devices else terms.devices,
            memory=memory if memory >= LEAST_MEMORY else 0.0,
        )

    def land(self, run_id: str, exit_code: int) -> Result | None:
        """Settles a run that a worker is done with; None if that has to be tried again with settle_rest()."""
        last_line = self.follower.finish(run_id)
        self.ledger.in_flight.pop(run_id, None)
        try:
            return self._settle(run_id, exit_code, last_line)
        except HomeUnavailable as e:
            self.ledger.unsettled[run_id] = exit_code
            log.warning("%s; it will be tried again", e)
        except RunUnusable as e:
            self._leave(run_id, e)
        return None

    def settle_rest(self) -> None:
        """Settles what could not be settled when it landed; raises HomeUnavailable if it still cannot."""
        for run_id, exit_code in list(self.ledger.unsettled.items()):
            try:
                self._settle(run_id, exit_code)
            except RunUnusable as e:
                del self.ledger.unsettled[run_id]
                self._leave(run_id, e)

    def _leave(self, run_id: str, problem: RunUnusable) -> None:
        self.ledger.forget(run_id)
        self.publisher.left(run_id)
        log.warning("%s; it is left to the next scheduler", problem)

    def _settle(self, run_id: str, exit_code: int, last_line: str = "") -> Result:
        was_cut_short = exit_code == NOT_STARTED or exit_code < 0
        result = self.home.settle(run_id, exit_code, may_stage_again=was_cut_short, again=self.again)
        self.ledger.unsettled.pop(run_id, None)
        if result.end is End.COMPLETED and not self.home.has(run_id):
            self.ledger.vanished.add(run_id)
        self.note(run_id, result, last_line)
        return result

    def note(self, run_id: str, result: Result, last_line: str = "") -> None:
        """Counts and says how a run, or an attempt at it, ended."""
        self.ledger.ends[result.end] += 1
        if result.end not in (End.STAGED_AGAIN, End.TRIED_AGAIN):
            self.ledger.forget(run_id)
        self.publisher.ended(run_id, result)
        if result.end is End.TRIED_AGAIN:
            self.ledger.told.pop(run_id, None)
            self.ledger.paused[run_id] = time.monotonic() + retries.pause_after(result.attempt)
        level, text = messages.ended(run_id, result, last_line)
        log.log(level, "%s", text)

    def again(self, run_dir: str, is_loss: bool) -> bool:
        """Tells whether a run that was lost or failed is to be started again."""
        if self.ledger.is_stopping:
            return False
        asked = None
        with contextlib.suppress(BrokenRun):
            asked = demands_for_tags(our_tags(run_dir)).retries
        policy = retries.policy_for(self.retries if asked is None else asked)
        return retries.may_try_again(policy, [each.is_loss for each in attempts.past(run_dir)], is_loss)

    def each(self, end: Callable[[str], None]) -> None:
        """Does one thing to every run in flight: the cluster's stop, kill or destroy."""
        for run_id in list(self.ledger.in_flight):
            end(run_id)


def was_staged_again(result: Result | None) -> bool:
    """Tells whether the run waits again, because it never started."""
    return result is not None and result.end is End.STAGED_AGAIN
