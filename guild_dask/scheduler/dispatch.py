"""Carries out what the core decides about runs: claims them, sends them to workers, and settles how they ended."""

import contextlib
import functools
import itertools
import logging
import random
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from guild_dask.cluster.base import Cluster
from guild_dask.cluster.events import JobLost
from guild_dask.home import attempts, claims, layout, recovery, run_info, stop_request
from guild_dask.home.claims import Claim
from guild_dask.home.errors import HomeUnavailable, RunUnusable, check_home, may_concern_one_run, trouble_in
from guild_dask.home.outcome import Cause
from guild_dask.home.recovery import Recovered
from guild_dask.home.run_directory import BrokenRun, Staged, cached_operation, our_tags
from guild_dask.home.run_queue import GuildHome
from guild_dask.home.working_directory import working_directory
from guild_dask.host.processes import ProcessIdentity
from guild_dask.host.shortage import text_for
from guild_dask.monitor.output import OutputFollower
from guild_dask.monitor.publisher import Publisher
from guild_dask.monitor.state import RunningRun
from guild_dask.plan import retries
from guild_dask.plan.resources import CPU, LEAST_MEMORY, MEMORY, format_amounts
from guild_dask.plan.tags import requirements_for_tags
from guild_dask.scheduler import tracebacks
from guild_dask.scheduler.answers import ClaimAnswered, RunLeft, Settled, SettleFailed
from guild_dask.scheduler.instructions import Recover, Settle
from guild_dask.scheduler.ledger import ActiveRun
from guild_dask.worker import job
from guild_dask.worker.options import StarterOptions

log = logging.getLogger("guild")

# Seconds from TERM to KILL of a run's processes.
GRACE = 10.0

# What reports of workers say about starters that did not follow a run to its end.
_LOSSES = {job.LOST: Cause.GUILD_FAILED, job.KILLED: Cause.KILLED}


@dataclass(frozen=True)
class Identity:
    """Who this scheduler is, and what its runs inherit from the user's shell."""

    run_id: str
    process: ProcessIdentity
    environ: Mapping[str, str]
    directory: str


def _serials() -> "itertools.count[int]":
    """Returns serial numbers from a random start, so that a scheduler restarted under its id does not repeat them."""
    return itertools.count(random.getrandbits(48))


@dataclass(frozen=True)
class Dispatcher:
    """The Guild home, the cluster and the observers, as one scheduler uses them for its runs."""

    identity: Identity
    home: GuildHome
    cluster: Cluster
    follower: OutputFollower
    publisher: Publisher
    retries: int | None = None  # as the user requested; None: not requested
    time_limit: float | None = None  # seconds, for runs that request none; None: none
    warm: bool = True  # runs may start warm
    preload: tuple[str, ...] = ()  # modules that are loaded once on each worker
    serials: "itertools.count[int]" = field(default_factory=_serials)  # one for each claim

    # Claims

    def claim(self, wanted: Sequence[tuple[Staged, Claim]]) -> ClaimAnswered:
        """Takes runs out of the queue; raises HomeUnavailable if none could be."""
        self.home.check_space()
        postponed: dict[str, str] = {}
        directories = self._directories([run for run, _ in wanted], postponed)
        outputs = self._open_outputs(list(directories))
        try:
            claimed = self.home.claim([(run, self._completed(claim)) for run, claim in wanted if run.id in directories])
            taken = tuple(
                ActiveRun(run, claim, self._host_of(claim.worker), outputs.pop(run.id), directories[run.id])
                for run, claim in claimed.taken
            )
        finally:
            self._close_outputs(outputs)
        postponed |= claimed.postponed
        missing = tuple(run_id for run_id in outputs if run_id not in claimed.refused and run_id not in postponed)
        return ClaimAnswered(taken, claimed.refused, postponed, missing, claimed.problem or "")

    def _directories(self, runs: Iterable[Staged], postponed: dict[str, str]) -> dict[str, str]:
        """Returns where to start runs; those for which that cannot be seen now are postponed, with the reason."""
        found: dict[str, str] = {}
        for run in runs:
            try:
                found[run.id] = working_directory(run.dir, self.identity.directory)
            except OSError as e:
                if not may_concern_one_run(e):
                    raise HomeUnavailable(f"cannot read run {run.id}: {text_for(e)}") from e
                postponed[run.id] = f"cannot see the directory in which it was staged: {text_for(e)}"
        return found

    def _completed(self, claim: Claim) -> Claim:
        """Returns the core's claim with a serial number of its own, and the lease of runs on its worker."""
        return replace(claim, serial=next(self.serials), lease=self.cluster.options(claim.worker).lease)

    def _host_of(self, worker: str) -> str:
        return self.cluster.options(worker).node or self.identity.process.host

    def _open_outputs(self, run_ids: Sequence[str]) -> dict[str, str]:
        """Returns a file for the output of each run, before any is claimed: without one, none could start."""
        opened: dict[str, str] = {}
        try:
            for run_id in run_ids:
                opened[run_id] = self.follower.follow(run_id)
        except OSError as e:
            self._close_outputs(opened)
            raise HomeUnavailable(f"cannot write to the scheduler's run directory: {e.strerror or e}") from e
        return opened

    def _close_outputs(self, run_ids: Collection[str]) -> None:
        for run_id in run_ids:
            self.follower.finish(run_id)

    def deleted(self, run_ids: Sequence[str]) -> tuple[str, ...]:
        """Returns those of the runs whose directory is not there any more."""
        return tuple(run_id for run_id in run_ids if not self.home.has(run_id))

    def takers(self, run_ids: Sequence[str]) -> dict[str, str]:
        """Returns who took runs that are not staged any more, as far as that can be seen now. It is for the log."""
        found: dict[str, str] = {}
        for run_id in run_ids:
            with contextlib.suppress(OSError, HomeUnavailable):
                taker = self.home.taker(run_id)
                if taker is not None:
                    found[run_id] = taker
        return found

    # Submission

    def submit(self, active: ActiveRun) -> JobLost | None:
        """Sends a claimed run to its worker; returns that it is lost if anything prevents that.

        An error here must neither leave a claimed run without a job nor end the scheduler with all other runs. It may
        be the run's, which is held if it happens again and again; its traceback is on record, as that of any error.
        """
        run_id = active.run.id
        try:
            self._submit(active)
        except HomeUnavailable as e:
            return JobLost(run_id, str(e))
        except Exception as e:  # noqa: BLE001  # see above
            if trouble := trouble_in(e):
                return JobLost(run_id, trouble)
            path = layout.error_log(layout.run_in(self.home.runs_dir, self.identity.run_id))
            log.error("Cannot send run %s to its worker: error in guild-dask itself (details are in %s)", run_id, path)
            tracebacks.add(path, e)
            return JobLost(run_id, repr(e), may_be_of_run=True)
        return None

    def _submit(self, active: ActiveRun) -> None:
        run, claim = active.run, active.claim
        running = self._running(active)
        self.publisher.started(running)
        kind = self.cluster.options(active.worker)
        options = replace(kind, run_info=self._run_info(running), warm=self.warm, preload=self.preload)
        work = job.Job(
            run_dir=run.dir,
            claim=claim,
            claims_folder=str(self.home.claims_folder),
            directory=active.directory,
            environ=None if options.node else self.identity.environ,
            output=active.output,
            options=options_for(run, claim, options, self.time_limit),
        )
        self.cluster.submit(work, active.worker, claim.requests)

    def _running(self, active: ActiveRun) -> RunningRun:
        labels = {each.name: each.label for each in self.cluster.workers()}
        now = time.time()
        return RunningRun(
            run=active.run.id,
            operation=cached_operation(active.run.dir),
            worker=labels.get(active.worker) or active.worker,
            host=active.host,
            since=now,
            waited=max(0.0, now - active.run.since / 1e6),
            attempt=active.claim.attempt,
            requests=active.claim.requests,
            devices=tuple(active.claim.devices),
        )

    def _run_info(self, running: RunningRun) -> str:
        """Returns what the run's own record says about where it runs."""
        facts = {
            "scheduler": self.identity.run_id,
            "worker": running.worker,
            "host": running.host,
            "attempt": running.attempt,
        }
        given = {"devices": ", ".join(running.devices)} if running.devices else {}
        requested = {"requested": format_amounts(running.requests)} if running.requests else {}
        return run_info.text_for({**facts, **given, "waited_seconds": round(running.waited, 1), **requested})

    # Ends

    def settle(self, what: Settle) -> Settled | SettleFailed | RunLeft:
        """Settles an attempt that ended; raises HomeUnavailable only if it is tried again."""
        last_line = self.follower.finish(what.run_id)
        again = functools.partial(self._may_retry, what.may_retry)
        try:
            result = self.home.settle(what.run_id, what.exit_code, again, _LOSSES.get(what.exit_code))
        except HomeUnavailable as e:
            if what.is_repeated:
                raise
            return SettleFailed(what.run_id, what.exit_code, str(e))
        except RunUnusable as e:
            return RunLeft(what.run_id, str(e))
        return Settled(what.run_id, result, last_line or what.message, self._is_deleted(what.run_id))

    def _is_deleted(self, run_id: str) -> bool:
        """Returns whether a run is known to be deleted."""
        try:
            return not self.home.has(run_id)
        except HomeUnavailable:
            return False

    def _may_retry(self, may_retry: bool, run_dir: str, is_loss: bool) -> bool:
        """Returns whether a run that was lost or failed is to be started again; raises HomeUnavailable."""
        if not may_retry:
            return False
        try:
            asked = requirements_for_tags(our_tags(run_dir)).retries
        except BrokenRun as e:
            check_home(e, layout.run_id(run_dir))
            asked = None
        policy = retries.policy_for(self.retries if asked is None else asked)
        return retries.may_try_again(policy, [each.is_loss for each in attempts.counted(run_dir)], is_loss)

    def recover(self, what: Recover) -> Recovered:
        """Recovers runs of dead schedulers and lost workers; raises HomeUnavailable if the claims cannot be read."""
        return recovery.recover(self.home, what.unseen, what.known, functools.partial(self._may_retry, what.may_retry))

    def has_started(self, run_id: str) -> bool:
        """Returns whether a run was started under our claim; True if that cannot be seen now."""
        return self.home.has_started(run_id)

    def request_stop(self, run_ids: Sequence[str]) -> None:
        """Leaves stop requests beside the claims of our runs; where the home is unavailable, signals have to do."""
        for run_id in run_ids:
            with contextlib.suppress(OSError):
                if self.home.is_ours(run_id):
                    stop_request.request_stop(claims.path(self.home.claims_folder, run_id), Cause.SCHEDULER_STOPPED)


def options_for(run: Staged, claim: Claim, options: StarterOptions, time_limit: float | None) -> StarterOptions:
    """Returns the options of a run's starter, given those that the worker's kind decides. Pure."""
    memory, cpus = (float(claim.requests.get(name, 0.0)) for name in (MEMORY, CPU))
    return replace(
        options,
        grace=GRACE,
        attempt=claim.attempt,
        # A search takes as long as its trials together; each of these has the limit.
        time_limit=run.requirements.time_limit or (not run.is_search and time_limit) or 0.0,
        threads=max(1, int(cpus)) if cpus else 0,
        devices=",".join(claim.devices) if claim.devices else options.devices,
        memory=memory if memory >= LEAST_MEMORY else 0.0,
    )
