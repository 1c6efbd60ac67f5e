"""Guild's runs as a queue: list what is staged, claim it, stage it again, and tell how it ended.

All that changes a run's place in the queue happens inside Guild's own `run-status` lock, so that Guild's queues and
other schedulers on the same Guild home never take the same run.
"""

import contextlib
import enum
import os
import pathlib
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import psutil
from guild import config, lock

from guild_dask import claims, processes, rundir, scheduler_run, snapshot
from guild_dask.listing import Listing, RunsDirectory
from guild_dask.presence import Presence
from guild_dask.problems import HomeUnavailable, RunUnusable, problem_for
from guild_dask.rundir import BrokenRun, Staged

LOCK_TIMEOUT = 5.0


class End(enum.Enum):
    """How a run, or the attempt to start it, ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    COULD_NOT_START = "could not start"
    TERMINATED = "terminated"
    STAGED_AGAIN = "staged again"
    GONE = "gone"


@dataclass(frozen=True)
class Result:
    """How a run ended, with its exit code where it has one."""

    end: End
    exit_code: int | None = None


@dataclass(frozen=True)
class Claimed:
    """The runs that were claimed, those that cannot be, and why it stopped before the end, if it did."""

    runs: tuple[Staged, ...]
    refused: dict[str, str]  # those whose own directory does not allow it, with why
    problem: str | None = None


@dataclass(frozen=True)
class Recovered:
    """What dead schedulers left: runs that are staged again, and claims of runs that go on without them."""

    staged_again: tuple[str, ...]
    orphans: tuple[claims.Claim, ...]


class GuildHome:
    """The runs of one Guild home, for one scheduler, which sees what is selected of them."""

    def __init__(
        self, home: str, presence: Presence, select: Callable[[Listing], Listing] = lambda found: found
    ) -> None:
        self.runs_dir = os.path.join(home, "runs")
        self.claims_folder = pathlib.Path(home, "dask", "claims")
        self._home = home
        self._presence = presence
        self._directory = RunsDirectory(self.runs_dir)
        self._select = select

    def staged(self) -> Listing:
        """Returns all staged runs."""
        return self._select(self._directory.look())

    def staged_after(self, changed: Iterable[str]) -> Listing:
        """Returns all staged runs, given that only these have changed since the last look."""
        return self._select(self._directory.look_at(changed))

    def running_elsewhere(self, own: Iterable[str]) -> list[str]:
        """Returns the runs that run now and are neither among the given ones nor queues or schedulers."""
        own = set(own)
        folders = ((name, os.path.join(self.runs_dir, name)) for name in self._directory.names() if name not in own)
        return [name for name, run_dir in folders if _is_running_elsewhere(run_dir) and not rundir.is_queue(run_dir)]

    def claim(self, wanted: Iterable[tuple[Staged, claims.Claim]]) -> Claimed:
        """Takes runs out of the queue, each with its claim; those that somebody took, deleted or tagged anew are left.

        All of them take the lock once.
        """
        taken: list[Staged] = []
        refused: dict[str, str] = {}
        wanted = list(wanted)
        if not wanted:
            return Claimed((), {})
        with self._lock():
            for run, claim in wanted:
                if not self._directory.is_unchanged(run):
                    continue
                try:
                    self._claim(run, claim)
                except FileNotFoundError:
                    continue  # somebody took it or deleted it
                except OSError as e:
                    problem = problem_for(e, f"cannot claim run {run.id}")
                    if isinstance(problem, HomeUnavailable):
                        return Claimed(tuple(taken), refused, str(problem))
                    refused[run.id] = str(problem)
                else:
                    taken.append(run)
        return Claimed(tuple(taken), refused)

    def _claim(self, run: Staged, claim: claims.Claim) -> None:
        # A crash in between leaves a claim of a dead owner, and the run is staged again.
        claims.take(self.claims_folder, rundir.marker(run.dir, "STAGED"), claim)
        try:
            rundir.set_marker(run.dir, "PENDING")
        except OSError:
            claims.give_back(self.claims_folder, run.id, rundir.marker(run.dir, "STAGED"))
            raise
        self._directory.forget(run.id)

    def exists(self, run: Staged) -> bool:
        """Tells whether the run's directory is still there."""
        return os.path.isdir(run.dir)

    def settle(self, run_id: str, exit_code: int, may_stage_again: bool) -> Result:
        """Returns how the attempt at a claimed run ended, after taking its claim away.

        A run that never started is staged again if it may be; else it ends as `error`, as Guild shows it.
        """
        run_dir = self._run_dir(run_id)
        if claims.scheduler_of(self.claims_folder, run_id) not in (self._presence.scheduler_id, None):
            return Result(End.GONE, exit_code)  # another scheduler took us for dead, and the run is its own
        started = claims.is_started(self.claims_folder, run_id)
        if not started and may_stage_again and os.path.isdir(run_dir):
            with self._lock():
                self._stage_again(run_dir)
            return Result(End.STAGED_AGAIN)
        # No lock: nobody else changes a run that is neither staged nor abandoned.
        with _translated("cannot settle run %s", run_id):
            result = self._end(run_dir, started, exit_code)
            claims.remove(self.claims_folder, run_id)
        return result

    def _end(self, run_dir: str, started: bool, exit_code: int) -> Result:
        if not os.path.isdir(run_dir):
            # Batches are deleted when they succeed; anything else was deleted by the user.
            return Result(End.COMPLETED if exit_code == 0 else End.GONE, exit_code)
        rundir.clear_marker(run_dir, "PENDING")
        if not started:
            snapshot.restore(run_dir, self._saved(run_dir))
            return Result(End.COULD_NOT_START, exit_code)
        if exit_code < 0:
            self._record_end(run_dir, exit_code)
        return _result(run_dir, exit_code)

    def _record_end(self, run_dir: str, exit_status: int) -> None:
        """Records the end of a run that started and whose Guild process died, unless that one has done so itself."""
        if rundir.last_ended(run_dir) < claims.written(self.claims_folder, os.path.basename(run_dir)):
            rundir.record_end(run_dir, exit_status)

    def _stage_again(self, run_dir: str) -> None:
        """Stages a run that was claimed and never started. Is called inside the lock."""
        run_id = os.path.basename(run_dir)
        with _translated("cannot stage run %s again", run_id):
            snapshot.restore(run_dir, self._saved(run_dir))
            rundir.clear_marker(run_dir, "PENDING")
            claims.give_back(self.claims_folder, run_id, rundir.marker(run_dir, "STAGED"))
        self._directory.forget(run_id)

    def recover(self) -> Recovered:
        """Looks after claims whose scheduler is dead: stages again what never started, and finds what still runs."""
        abandoned, orphans = [], []
        for found in claims.all_claims(self.claims_folder):
            claim = found.claim
            if claim is None:
                abandoned.append(found)
            elif not self._presence.is_alive(claim.scheduler_id, claim.scheduler):
                # None is another host, where nobody but the starter itself knows whether a run that started goes on.
                lives = processes.is_alive(claim.owner)
                started = lives is False and found.is_started
                if lives or (started and _is_operation_alive(self._run_dir(found.run_id), claim.owner.pid)):
                    orphans.append(claim)
                elif lives is False or not found.is_started:
                    abandoned.append(found)
        return Recovered(tuple(self._take_over(abandoned) if abandoned else ()), tuple(orphans))

    def _take_over(self, abandoned: list[claims.Found]) -> list[str]:
        """Stages again those of the abandoned runs that never started; returns their ids."""
        staged_again = []
        with self._lock():
            # Another scheduler may have been here first, and may even have claimed a run again.
            still_there = list(claims.all_claims(self.claims_folder))
            for found in abandoned:
                run_dir = self._run_dir(found.run_id)
                if found not in still_there:
                    continue
                with contextlib.suppress(RunUnusable):  # it stays as it is, and does not hold up the others
                    if _has_never_started(run_dir, found):
                        self._stage_again(run_dir)
                        staged_again.append(found.run_id)
                    else:
                        self._close(found, run_dir)
        return staged_again

    def _close(self, found: claims.Found, run_dir: str) -> None:
        """Closes the claim of a run that started and is over, or that somebody else has taken care of."""
        with _translated("cannot close the claim on run %s", found.run_id):
            if found.is_started and os.path.isdir(run_dir):
                self._record_end(run_dir, -signal.SIGKILL)
            claims.remove(self.claims_folder, found.run_id)
            if found.claim:
                scheduler_run.remove_output(self._run_dir(found.claim.scheduler_id), found.run_id)

    def _saved(self, run_dir: str) -> pathlib.Path:
        return claims.path(self.claims_folder, os.path.basename(run_dir)).with_suffix(claims.SAVED)

    def _run_dir(self, run_id: str) -> str:
        return os.path.join(self.runs_dir, run_id)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        try:
            run_status = lock.Lock(lock.RUN_STATUS, timeout=LOCK_TIMEOUT, guild_home=self._home)
            run_status.acquire()
        except lock.Timeout as e:
            raise HomeUnavailable(f"another process has held {e.lock_file} for {LOCK_TIMEOUT:g} seconds") from e
        except OSError as e:
            raise HomeUnavailable(f"cannot use the lock in {self._home}: {e.strerror or e}") from e
        try:
            yield
        finally:
            run_status.release()


def _is_running_elsewhere(run_dir: str) -> bool:
    if rundir.has(run_dir, "LOCK.remote"):
        return True
    pid = rundir.locked_by(run_dir)
    # Steps and trials are runs too; those of our own runs descend from this process.
    return pid is not None and bool(psutil.pid_exists(pid)) and not processes.is_below(pid, os.getpid())


def _has_never_started(run_dir: str, found: claims.Found) -> bool:
    """Tells whether a claimed run waits in vain: it is there, not staged, and nobody has started it since."""
    if found.is_started or not os.path.isdir(run_dir) or rundir.has(run_dir, "STAGED"):
        return False
    # The user may have started a run by hand that hung as `pending`.
    return rundir.last_started(run_dir) < found.written


def _is_operation_alive(run_dir: str, starter_pid: int) -> bool:
    """Tells whether the operation's own process lives on without the one that started it."""
    run_id = os.path.basename(run_dir)
    pid = rundir.locked_by(run_dir)
    if pid is not None:
        return processes.variable_of(pid, "RUN_ID") == run_id
    # Guild notes the process just after it has started it; in between, only the process itself says whose it is: by
    # its environment or, before even that is its own, by the starter's session.
    return processes.exists_in_session(starter_pid) or processes.exists_with("RUN_ID", run_id)


def _result(run_dir: str, exit_code: int) -> Result:
    try:
        status = rundir.attribute(run_dir, "exit_status")
    except BrokenRun:
        status = None
    if not isinstance(status, int):
        return Result(End.FAILED, exit_code)
    if status == 0:
        return Result(End.COMPLETED, 0)
    return Result(End.TERMINATED if status < 0 else End.FAILED, status)


@contextlib.contextmanager
def _translated(message: str, *args: object) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise problem_for(e, message % args) from e


def guild_home() -> str:
    """Returns the Guild home of this process."""
    return str(config.guild_home())
