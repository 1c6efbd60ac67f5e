"""The runs that are on workers: sent there with a claim, settled when they end, ended when the scheduler stops."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from guild_dask import job, messages
from guild_dask.claims import Claim
from guild_dask.cluster import LocalCluster
from guild_dask.ledger import Flight, Ledger
from guild_dask.output import OutputFollower
from guild_dask.problems import HomeUnavailable, RunUnusable
from guild_dask.processes import ProcessIdentity
from guild_dask.publisher import Publisher
from guild_dask.rundir import Staged, working_directory
from guild_dask.runs import End, GuildHome, Result
from guild_dask.starter import NOT_STARTED

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
    cluster: LocalCluster
    follower: OutputFollower
    ledger: Ledger
    publisher: Publisher

    def claim(self, run_id: str, asks: Mapping[str, float]) -> Claim:
        """Returns a claim of this scheduler on a run, for the next attempt at it."""
        me = self.identity
        return Claim(run_id, me.run_id, me.process, me.process, self.ledger.attempts.get(run_id, 0) + 1, asks)

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

    def send(self, run: Staged, worker: str, claim: Claim, output: str) -> None:
        """Sends a claimed run to a worker."""
        self.ledger.attempts[run.id] = claim.attempt
        self.ledger.in_flight[run.id] = Flight(run, worker, claim.asks)
        work = job.Job(
            run_dir=run.dir,
            claim=claim,
            claims_folder=str(self.home.claims_folder),
            directory=working_directory(run.dir, self.identity.directory),
            environ=self.identity.environ,
            output=output,
            grace=GRACE,
        )
        log.debug("Run %s goes to worker %s, attempt %d", run.id, worker, claim.attempt)
        self.publisher.started(run, worker, self.identity.process.host, claim)
        self.cluster.submit(work, worker, claim.asks)

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
        self.publisher.left(run_id)
        log.warning("%s; it is left to the next scheduler", problem)

    def _settle(self, run_id: str, exit_code: int, last_line: str = "") -> Result:
        was_cut_short = exit_code == NOT_STARTED or exit_code < 0
        result = self.home.settle(run_id, exit_code, may_stage_again=was_cut_short)
        self.ledger.unsettled.pop(run_id, None)
        self.ledger.ends[result.end] += 1
        self.publisher.ended(run_id, result)
        level, text = messages.ended(run_id, result, last_line)
        log.log(level, "%s", text)
        return result

    def each(self, end: Callable[[str], None]) -> None:
        """Does one thing to every run in flight: the cluster's stop, kill or destroy."""
        for run_id in self.ledger.in_flight:
            end(run_id)


def was_staged_again(result: Result | None) -> bool:
    """Tells whether the run waits again, because it never started."""
    return result is not None and result.end is End.STAGED_AGAIN
