"""Guild's runs as a queue: list what is staged, claim it, settle how it ended, and stage it again.

Runs enter and leave the queue inside Guild's own `run-status` lock, so that Guild's queues and other schedulers on the
same Guild home never take the same run.
"""

import contextlib
import errno
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from guild import config

from guild_dask.home import attempts, claims, end_note, layout, run_directory, run_info, snapshot, stop_request
from guild_dask.home.errors import HomeUnavailable, check_home, may_concern_one_run, problem_for, translated
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.home.listing import Listing, RunsDirectory
from guild_dask.home.liveness import Liveness, is_silent, liveness
from guild_dask.home.outcome import Cause, ClaimState, End, Evidence, Outcome, Result, Retries, outcome_for
from guild_dask.home.run_directory import Staged
from guild_dask.home.status import ENDED, Status, living_process, status
from guild_dask.home.status_lock import StatusLock
from guild_dask.host import files, processes, shortage
from guild_dask.plan.devices import are_taken
from guild_dask.plan.units import format_size

# Bytes that must be free before runs are claimed: what the claims, the starters and Guild write about some runs.
LEAST_SPACE = 1_000_000

# Returns whether a run in a directory is to be started again after an attempt that was lost (True) or failed (False).
Again = Callable[[str, bool], bool]


def never(_run_dir: str, _is_loss: bool) -> bool:
    """Returns False: no run is started again."""
    return False


@dataclass(frozen=True)
class Claimed:
    """The runs that were claimed, those that cannot be, and the problem that kept the others from being claimed."""

    taken: tuple[tuple[Staged, claims.Claim], ...]
    refused: dict[str, str]  # runs whose own directory prevents it, with the reason
    postponed: dict[str, str] = field(default_factory=dict)  # runs that cannot be read now, with the reason
    problem: str | None = None


class GuildHome:
    """The runs of one Guild home, for one scheduler, which sees the selected ones."""

    def __init__(
        self, home: str, heartbeat: Heartbeat, select: Callable[[Listing], Listing] = lambda found: found
    ) -> None:
        self.runs_dir = layout.runs_dir(home)
        self.claims_folder = layout.claims_folder(home)
        self._home = home
        self.heartbeat = heartbeat
        self._directory = RunsDirectory(self.runs_dir)
        self._status_lock = StatusLock(home)
        self._select = select

    def staged(self) -> Listing:
        """Polls for staged runs, and returns what has changed since the last poll."""
        return self._selected(self._directory.poll())

    def staged_after(self, changed: Iterable[str]) -> Listing:
        """Returns what has changed, given that only these runs may have."""
        return self._selected(self._directory.read(changed))

    def _selected(self, listing: Listing) -> Listing:
        try:
            return self._select(listing)
        except HomeUnavailable:
            # The next poll must find all of it again.
            for run_id in (*(run.id for run in listing.staged), *listing.gone):
                self._directory.forget(run_id)
            raise

    def running_elsewhere(self, own: Iterable[str]) -> list[str]:
        """Returns the runs that run now and are neither among the given ones nor queues, schedulers or searches."""
        own = set(own)
        folders = ((name, layout.run_in(self.runs_dir, name)) for name in self._directory.names() if name not in own)
        with translated("cannot read %s", self.runs_dir):
            found = [(name, run_dir) for name, run_dir in folders if _is_running_elsewhere(run_dir)]
        return [name for name, each in found if not (run_directory.is_queue(each) or run_directory.is_search(each))]

    def check_space(self) -> None:
        """Raises HomeUnavailable if there is too little space for the records of runs that start."""
        for folder in (self.runs_dir, self._home):
            try:
                shortage.check_space(folder, LEAST_SPACE)
            except OSError as e:
                what = f"cannot write {format_size(LEAST_SPACE)} to {folder}"
                raise HomeUnavailable(f"{what}: {shortage.text_for(e)}") from e

    def claim(self, wanted: Iterable[tuple[Staged, claims.Claim]]) -> Claimed:
        """Claims runs; those that were taken, deleted or tagged since they were read are left out.

        Each claim is for the next attempt at its run. All of them take the lock once. Raises HomeUnavailable if none
        could be claimed.
        """
        taken: list[tuple[Staged, claims.Claim]] = []
        refused: dict[str, str] = {}
        postponed: dict[str, str] = {}
        wanted = [(run, claim) for run, claim in wanted if self._can_be_read(run, refused, postponed)]
        if not wanted:
            return Claimed((), refused, postponed)
        with self.lock():
            in_use = self._devices_of_others() if any(claim.devices for _, claim in wanted) else {}
            for run, claim in wanted:
                if not self._directory.is_unchanged(run) or (not claim.lease and are_taken(claim.devices, in_use)):
                    continue
                try:
                    numbered = _numbered(run, claim, postponed)
                    if numbered is None:
                        continue
                    self._claim(run, numbered)
                except (FileNotFoundError, FileExistsError):
                    self._directory.forget(run.id)
                    continue  # it was taken or deleted, or was staged while it still runs
                except (OSError, MemoryError) as e:
                    problem = problem_for(e, f"cannot claim run {run.id}")
                    if isinstance(problem, HomeUnavailable):
                        return Claimed(tuple(taken), refused, postponed, str(problem))
                    refused[run.id] = str(problem)
                else:
                    taken.append((run, numbered))
        return Claimed(tuple(taken), refused, postponed)

    def _can_be_read(self, run: Staged, refused: dict[str, str], postponed: dict[str, str]) -> bool:
        """Returns whether Guild can read a run's records; if not, the run is refused or postponed, with the reason."""
        try:
            run_directory.check_attributes(run.dir)
        except run_directory.BrokenRun as e:
            if may_concern_one_run(e.__cause__):  # other runs can be read, or the home's trouble shows soon
                postponed[run.id] = str(e)
                return False
            check_home(e, run.id)
            if self.has(run.id):  # one that was deleted meanwhile is left out
                refused[run.id] = str(e)
                return False
        return True

    def _devices_of_others(self) -> dict[str, float]:
        """Returns the shares of this host's devices that runs of other schedulers use. Called inside the lock."""
        me = self.heartbeat.process
        try:
            found = [each.claim for each in claims.all_claims(self.claims_folder)]
        except OSError as e:
            raise HomeUnavailable(f"cannot read {self.claims_folder}: {e.strerror or e}") from e
        others = [claim for claim in found if claim and not claim.lease and claim.scheduler != me]
        here = [claim for claim in others if claim.owner.host == me.host]
        in_use: dict[str, float] = {}
        for name, share in (pair for claim in here for pair in claim.devices.items()):
            in_use[name] = in_use.get(name, 0.0) + share
        return in_use

    def _claim(self, run: Staged, claim: claims.Claim) -> None:
        if self._goes_on(run):
            raise FileExistsError(errno.EEXIST, "it was staged while it runs", run.dir)
        # A crash in between leaves a claim with a dead owner; recovery stages the run again.
        try:
            claims.take(self.claims_folder, layout.marker(run.dir, layout.STAGED), claim)
            run_directory.set_marker(run.dir, layout.PENDING)
        except OSError:
            self.put_back(run.id)
            raise
        self._directory.forget(run.id)

    def _goes_on(self, run: Staged) -> bool:
        """Returns whether a staged run is still running: it was staged by a Guild that does not know of claims."""
        found = claims.present(self.claims_folder, run.id)
        if found is None or found.claim is None or not found.is_started:
            return False
        lives = liveness(found, run.dir)
        if lives is not Liveness.UNKNOWN or not found.claim.lease:
            return lives is Liveness.ALIVE
        has_note = end_note.read(claims.path(self.claims_folder, run.id)) is not None
        return not has_note and not is_silent(self.claims_folder, found, self.heartbeat.now())

    def has(self, run_id: str) -> bool:
        """Returns whether the run's directory exists; raises HomeUnavailable if that cannot be seen."""
        with translated("cannot read run %s", run_id):
            return run_directory.is_there(self.run_dir(run_id))

    def taker(self, run_id: str) -> str | None:
        """Returns the scheduler that took a staged run; empty for a Guild queue or a user, None if none of them did.

        Raises OSError if the home cannot be read.
        """
        found = claims.present(self.claims_folder, run_id)
        if found and found.claim:
            return None if found.claim.scheduler == self.heartbeat.process else found.claim.scheduler_id
        run_dir = self.run_dir(run_id)
        if not run_directory.is_there(run_dir) or status(run_dir) is Status.STAGED:
            return None
        return run_info.last_scheduler(run_dir)

    def settle(self, run_id: str, exit_code: int, again: Again = never, lost: Cause | None = None) -> Result:
        """Returns how the attempt at a claimed run ended, after removing its claim.

        A run that was lost, or failed, after it started is staged again if `again` says so. For one that was `lost` for
        a cause, the exit code means nothing.
        """
        with translated("cannot settle run %s", run_id):
            found = self._ours(run_id)
            code = None if lost else exit_code
            evidence = Evidence(self.has(run_id), state_of(found), code, lost)
            outcome = outcome_for(self.with_evidence_of_start(evidence, found, again))
            if found is None:
                return outcome.result  # another scheduler considered us dead, and has taken the run over
            if not outcome.is_staged and not outcome.is_deleted:
                # No lock: no other process changes a run that is neither staged nor abandoned.
                self.carry_out(run_id, outcome)
                return outcome.result
            with self.lock():  # which may take long, so that the claim is checked again
                is_done = self.is_ours(run_id) and self.carry_out(run_id, outcome)
        return outcome.result if is_done else replace(outcome.result, end=End.GONE)

    def with_evidence_of_start(self, evidence: Evidence, found: claims.Found | None, again: Again) -> Evidence:
        """Returns the evidence with all that is known about a run that started; of other runs, nothing more matters.

        Raises OSError if the records cannot be read.
        """
        if not found or not found.is_started or not evidence.is_there:
            return evidence
        run_dir, beside = self.run_dir(found.run_id), claims.path(self.claims_folder, found.run_id)
        evidence = replace(
            evidence,
            attempt=_attempt_of(found, run_dir),
            own_exit=end_note.read_exit(beside, found.claim.owner) if found.claim else None,
            is_leased=found.claim is not None and found.claim.lease > 0,
            is_recorded=self.has_recorded_end(found),
            status=run_directory.recorded_status(run_dir),
            note=end_note.read(beside),
            stop_request=stop_request.recorded_cause(beside),
        )
        if evidence.has_completed:
            return evidence
        decided = attempts.on_record(run_dir, evidence.attempt)
        if decided:
            return replace(evidence, decided=Result(End.RETRIED, decided.exit_status, decided.cause))
        return replace(evidence, retries=Retries(again(run_dir, True), again(run_dir, False)))

    def carry_out(self, run_id: str, outcome: Outcome) -> bool:
        """Writes an outcome and removes the claim; False if a run that is to be staged has started.

        Called inside the lock if the run is to be staged, or was deleted. After each step, another scheduler can take
        over if this one dies.
        """
        run_dir = self.run_dir(run_id)
        result = outcome.result
        if result.end is End.STAGED_AGAIN or outcome.is_deleted:
            with translated("cannot stage run %s again", run_id):
                is_put_back = self.put_back(run_id)
            if is_put_back or not outcome.is_deleted:
                return is_put_back
        if outcome.note:
            end_note.write(claims.path(self.claims_folder, run_id), outcome.note)
        if outcome.exit_status is not None:
            run_directory.record_end(run_dir, outcome.exit_status)
        if result.end is End.RETRIED:
            self._stage_started_again(run_dir, result)
            return True
        if result.end is not End.GONE or outcome.is_deleted:
            for each in self._possible_dirs(run_id):
                run_directory.clear_markers(each, layout.PENDING, layout.REMOTE_LOCK)
        if result.end is End.COULD_NOT_START:
            with run_directory.opened(run_dir) as run:
                snapshot.restore(run, self._saved(run_dir))
            # Without an exit status, it is an error for Guild. That of a former attempt would say otherwise.
            attempts.keep_former(run_dir, attempts.number_for_claim(run_dir))
        claims.remove(self.claims_folder, run_id)
        return True

    def _ours(self, run_id: str) -> claims.Found | None:
        """Returns our claim on a run, or None if there is none; an unreadable claim counts as ours."""
        found = claims.present(self.claims_folder, run_id)
        if found and found.claim and found.claim.scheduler != self.heartbeat.process:
            return None
        return found

    def is_ours(self, run_id: str) -> bool:
        """Returns whether we have a claim on a run; raises OSError if the claims cannot be read."""
        return self._ours(run_id) is not None

    def has_started(self, run_id: str) -> bool:
        """Returns whether a run was started under our claim; True if the claims cannot be read now."""
        try:
            found = self._ours(run_id)
        except OSError:
            return True
        return found is not None and found.is_started

    def has_recorded_end(self, found: claims.Found) -> bool:
        """Returns whether Guild has recorded the end of a run since it was claimed."""
        end = run_directory.recorded_end(self.run_dir(found.run_id))
        before = found.claim.before if found.claim else None
        return bool(end) and (before is None or end != run_directory.recorded_start_for_text(before).end)

    def put_back(self, run_id: str) -> bool:
        """Stages a run that was claimed and never started; False if it has started, or is not claimed.

        A run that was deleted meanwhile is staged in Guild's trash, so that it is staged if the user restores it.
        Called inside the lock.
        """
        if not claims.withdraw(self.claims_folder, run_id):
            return False
        for run_dir in self._possible_dirs(run_id):
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                run_directory.opened(run_dir) as run,
            ):
                snapshot.restore(run, self._saved(run_dir))
                files.remove_in(run, layout.PENDING, layout.REMOTE_LOCK)
                claims.give_back(self.claims_folder, run_id, layout.STAGED, run)
                run_directory.keep_position(run_dir)
                break
        else:
            claims.remove(self.claims_folder, run_id)  # it is deleted for good
        self._directory.forget(run_id)
        return True

    def _possible_dirs(self, run_id: str) -> Sequence[str]:
        """Returns where a run's directory may be, in an order that finds it while the user deletes or restores it."""
        return 2 * (self.run_dir(run_id), layout.deleted_run_dir(self._home, run_id))

    def _stage_started_again(self, run_dir: str, result: Result) -> None:
        """Stages a run whose attempt is over, for another one in the same directory. Called inside the lock."""
        run_id = layout.run_id(run_dir)
        with translated("cannot stage run %s again", run_id):
            found = claims.present(self.claims_folder, run_id)
            host = found.claim.owner.host if found and found.claim else ""
            if not attempts.on_record(run_dir, result.attempt):
                attempts.add(run_dir, attempts.attempt_for(result.attempt, result.cause, result.exit_code, host))
            run_directory.forget_end(run_dir)
            run_directory.clear_markers(run_dir, layout.PENDING, layout.LOCK, layout.REMOTE_LOCK)
            claims.give_back_started(self.claims_folder, run_id, layout.marker(run_dir, layout.STAGED))
        self._directory.forget(run_id)

    def _saved(self, run_dir: str) -> pathlib.Path:
        return claims.path(self.claims_folder, layout.run_id(run_dir)).with_suffix(claims.SAVED)

    def run_dir(self, run_id: str) -> str:
        """Returns the directory of a run."""
        return layout.run_in(self.runs_dir, run_id)

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Holds Guild's own lock; raises HomeUnavailable if the lock cannot be acquired."""
        return self._status_lock.held()


def stage_ended(home: str, run_ids: Iterable[str]) -> dict[str, str]:
    """Stages runs that have ended again, each in its own directory, as `guild run --restart RUN --stage` does.

    Returns why runs could not be staged; raises HomeUnavailable if no run could be.
    """
    problems: dict[str, str] = {}
    with StatusLock(home).held():
        for run_id in run_ids:
            try:
                problems[run_id] = _stage_ended(home, run_id)
            except OSError as e:
                problems[run_id] = f"cannot write to its directory: {e.strerror or e}"
    return {run_id: problem for run_id, problem in problems.items() if problem}


def unstage(home: str, run_id: str) -> None:
    """Makes a staged run a pending one that has never started, which no scheduler starts.

    Does nothing if it is not staged any more.
    """
    run_dir = layout.run_dir(home, run_id)
    with StatusLock(home).held():
        if run_directory.is_staged(run_dir):
            run_directory.forget_end(run_dir)
            run_directory.clear_markers(run_dir, layout.LOCK)
            run_directory.set_marker(run_dir, layout.PENDING)
            run_directory.clear_markers(run_dir, layout.STAGED)


def _stage_ended(home: str, run_id: str) -> str:
    """Stages a run, and returns why it cannot be; empty if it was staged. Called inside the lock."""
    run_dir = layout.run_dir(home, run_id)
    if not os.path.isdir(layout.guild_dir(run_dir)):
        return "it was deleted"
    if claims.present(layout.claims_folder(home), run_id):
        return "a scheduler runs it, or is about to settle it"
    found = status(run_dir)
    if found not in ENDED:
        return f"it is {found.value}"
    run_directory.set_staged(run_dir)
    return ""


def state_of(found: claims.Found | None) -> ClaimState:
    """Returns how far a run has come under a claim."""
    if found is None:
        return ClaimState.NONE
    return ClaimState.STARTED if found.is_started else ClaimState.CLAIMED


def _attempt_of(found: claims.Found, run_dir: str) -> int:
    """Returns the number of the attempt that a claim is for. An unreadable claim is for the next one."""
    return found.claim.attempt if found.claim else attempts.next_number(run_dir)


def _numbered(run: Staged, claim: claims.Claim, postponed: dict[str, str]) -> claims.Claim | None:
    """Returns a claim for the next attempt at its run; None if that cannot be told now: the run is postponed."""
    try:
        number, before = attempts.number_for_claim(run.dir), run_directory.recorded_start(run.dir)
    except OSError as e:
        if not may_concern_one_run(e):
            raise
        postponed[run.id] = f"cannot read its records: {shortage.text_for(e)}"
        return None
    return replace(claim, attempt=number, before=before.as_text())


def _is_running_elsewhere(run_dir: str) -> bool:
    """Returns whether a process of a run is at work that is not below this one.

    This is not Guild's status: a run with a living process counts, even if it has an exit status or was staged again.
    """
    if run_directory.seems_to_have(run_dir, layout.REMOTE_LOCK):
        return True
    pid = living_process(run_dir)
    # Steps and trials are runs, too; those of our own runs descend from this process.
    return pid is not None and not processes.is_below(pid, os.getpid())


def guild_home() -> str:
    """Returns the Guild home of this process."""
    return str(config.guild_home())
