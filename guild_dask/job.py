"""What a worker does for one run: starts its starter, waits for it, and ends it when told to.

Runs in a thread of a Dask worker, and knows nothing of Dask. The starter is a process in a session of its own: a
Ctrl-C in the scheduler's terminal does not reach it, and it outlives a scheduler that is killed.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from guild_dask import claims, processes, starter, warm
from guild_dask.freshness import look_anew
from guild_dask.guard import LOST_BYTE, STOP_BYTE
from guild_dask.terms import Terms


@dataclass(frozen=True)
class Job:
    """One attempt at a run."""

    run_dir: str
    claim: claims.Claim
    claims_folder: str
    directory: str  # where the user staged the run: what Guild takes as the current directory
    environ: Mapping[str, str] | None  # None: that of the job which the worker is part of
    output: str  # the file that takes what Guild and the operation print
    terms: Terms = field(default_factory=Terms)

    @property
    def run_id(self) -> str:
        return self.claim.run_id


@dataclass(frozen=True)
class Ended:
    """The starter's exit code: Guild's own, NOT_STARTED, or minus the signal that killed it."""

    exit_code: int
    had_claim: bool = True  # False: the run was not this job's to start, and may be another's that goes on


class Starter(Protocol):
    """The process of one run's start, ours or forked from a template."""

    pid: int

    def wait(self) -> int:
        """Returns the exit code, or minus the signal that killed it."""


class _Own:
    """What is this worker's own."""

    environ: Mapping[str, str] = os.environ
    is_closing = False


@dataclass(frozen=True)
class _Under:
    """A starter that may start its run, and our end of its lifeline, if it has one."""

    starter: processes.ProcessIdentity
    lifeline: int | None


_own = _Own()
_template = warm.Template()
_starters: dict[str, _Under] = {}  # by run
_pids: set[int] = set()  # of all starters, those at their gates included
_had_claim: set[int] = set()  # of those that became the owner of a claim
_refused: set[str] = set()
_busy: dict[str, int] = {}  # how many jobs for each run are here, started or not
_lock = threading.Lock()
_idle = threading.Condition()
_spawning = threading.Lock()


def run(job: Job) -> Ended:
    """Starts the run, waits for its end, and returns how it ended."""
    with _idle:
        _busy[job.run_id] = _busy.get(job.run_id, 0) + 1
    process = None
    try:
        process = _start(job)
        exit_code = process.wait()
        if exit_code < 0:
            _end_orphans(process.pid, job)
            reap()
        return Ended(exit_code, had_claim=process.pid in _had_claim)
    finally:
        _forget(job.run_id, process.pid if process else 0)


def _forget(run_id: str, pid: int) -> None:
    """Forgets a job that is over. Another one for the same run, which was let through, is left as it is."""
    _forget_starter(run_id, pid)
    with _lock:
        if run_id not in _starters:
            _refused.discard(run_id)
    with _idle:
        _busy[run_id] -= 1
        if not _busy[run_id]:
            del _busy[run_id]
        _idle.notify_all()


def _forget_starter(run_id: str, pid: int) -> None:
    with _lock:
        _pids.discard(pid)
        _had_claim.discard(pid)
        under = _starters.get(run_id)
        if under and under.starter.pid == pid:
            del _starters[run_id]
            if under.lifeline is not None:
                os.close(under.lifeline)


def _start(job: Job) -> Starter:
    """Returns the starter, which waits at its gate until its identity is in the claim."""
    look_anew(os.path.dirname(job.output))
    with open(job.output, "ab") as output:
        # A template that dies may leave a starter behind without a word. It has a gate of its own, which stays closed.
        found = _let_through(job, output.fileno(), _warm) or _let_through(job, output.fileno(), _cold)
    if found is None:
        raise OSError("cannot start a process for it")
    return found


def _let_through(job: Job, output: int, begin: Callable[[Job, int, int], Starter | None]) -> Starter | None:
    """Has a starter begun, and opens its gate once its identity is in the claim; None if it could not be begun."""
    gate, opener = os.pipe()
    starting = None
    try:
        with _spawning:
            starting = begin(job, gate, output)
            owner = processes.identity(starting.pid) if starting else None
            _pids.update([starting.pid] if starting else [])
        if owner and _hand_over(job, owner):
            _open_gate(job, owner, opener)
        return starting
    except OSError:
        _forget_starter(job.run_id, starting.pid if starting else 0)
        raise
    finally:
        os.close(gate)
        os.close(opener)  # a starter at a closed gate ends without starting anything


def _hand_over(job: Job, owner: processes.ProcessIdentity) -> bool:
    """Makes the starter the claim's owner; False if the run is not ours to start any more, or is to be stopped."""
    with _lock:
        if job.run_id in _refused or _own.is_closing:
            return False
    if not claims.hand_over(pathlib.Path(job.claims_folder), job.claim, owner):
        return False
    _had_claim.add(owner.pid)
    look_anew(f"{job.run_dir}/.guild", f"{job.run_dir}/.guild/attrs")  # also for Guild, which starts it next
    # Another scheduler may take ours for dead and stage the run again just after the claim was read, and before the
    # owner was written to it. From here on, whoever claims the run writes another owner, which the starter sees.
    return not os.path.exists(f"{job.run_dir}/.guild/STAGED")


def _open_gate(job: Job, owner: processes.ProcessIdentity, opener: int) -> None:
    """Lets the starter begin. Where its life hangs on ours, our end of the pipe stays open for as long as we live."""
    lifeline = os.dup(opener) if job.terms.has_lifeline else None
    with _lock:
        _starters[job.run_id] = _Under(owner, lifeline)
        if job.run_id not in _refused and not _own.is_closing:
            os.write(opener, b"!")


def _warm(job: Job, gate: int, output: int) -> Starter | None:
    claim = claims.path(pathlib.Path(job.claims_folder), job.run_id)
    request = warm.Request(job.run_dir, claim, _directory(job), _environ(job), job.terms)
    return _template.start(request, gate, output)


def _cold(job: Job, gate: int, output: int) -> Starter | None:
    claim = claims.path(pathlib.Path(job.claims_folder), job.run_id)
    return subprocess.Popen(
        [sys.executable, "-u", starter.__file__, str(gate), str(claim), job.run_dir, job.terms.as_text()],
        cwd=_directory(job),
        env=dict(_environ(job)),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=(gate,),
        start_new_session=True,
    )


def _directory(job: Job) -> str:
    return job.directory if os.path.isdir(job.directory) else job.run_dir


def _environ(job: Job) -> Mapping[str, str]:
    if job.environ is not None:
        return job.environ
    return {**_own.environ, "GUILD_HOME": str(pathlib.Path(job.claims_folder).parent.parent)}


def prepare(environ: Mapping[str, str]) -> None:
    """Gets ready to start runs with this environment, which is also that of jobs which bring none."""
    _own.environ = environ
    with _spawning:
        _template.prepare(environ)


def reap() -> None:
    """Lets go of processes that this one adopted from starters, and that have died."""
    # A child that is being started is not on record yet.
    if _spawning.acquire(blocking=False):
        try:
            processes.reap_adopted({_template.pid, *_pids})
        finally:
            _spawning.release()


def close() -> None:
    """Ends the template process of this worker. Runs go on."""
    _template.close()


def stop(run_id: str) -> None:
    """Asks for the run's end: not started if it has not, else TERM and after its grace period KILL."""
    if not _tell(run_id, STOP_BYTE):
        _signal(run_id, signal.SIGTERM)


def lose_all() -> None:
    """Ends the runs of this worker because it is told to go: they are lost, not stopped. None starts any more."""
    _own.is_closing = True
    for run_id in list(_starters):
        _tell(run_id, LOST_BYTE)


def _tell(run_id: str, what: bytes) -> bool:
    """Tells a starter what to do through its lifeline; False if it has none. A signal could come from anybody."""
    with _lock:
        _refused.add(run_id)
        under = _starters.get(run_id)
        if under is None or under.lifeline is None:
            return False
        with contextlib.suppress(OSError):
            os.write(under.lifeline, what)
    return True


def wait_until_idle() -> None:
    """Returns when this worker has no run left."""
    with _idle:
        _idle.wait_for(lambda: not _busy)


def running() -> list[str]:
    """Returns the runs that this worker has at the moment."""
    return list(_busy)


def kill(run_id: str) -> None:
    """Ends the run's processes at once; its starter is left to record that."""
    stop(run_id)
    with _lock:
        under = _starters.get(run_id)
    for descendant in processes.descendants(under.starter.pid) if under else ():
        processes.send(descendant, signal.SIGKILL)


def destroy(run_id: str) -> None:
    """Ends the run's processes and its starter at once."""
    kill(run_id)
    _signal(run_id, signal.SIGKILL)


def _signal(run_id: str, number: signal.Signals) -> None:
    with _lock:
        _refused.add(run_id)
        under = _starters.get(run_id)
    if under and processes.is_still_there(under.starter):
        with contextlib.suppress(ProcessLookupError):
            os.kill(under.starter.pid, number)


def _end_orphans(starter_pid: int, job: Job) -> None:
    """Ends what a starter that was killed left behind: nobody reads its output or records its end any more."""
    # Twice: what is handed from one parent to the next in this moment is below neither, and what is about to die may
    # just have started another.
    for _ in range(2):
        below = processes.descendants(os.getpid())
        strays = [each for each in below if processes.variable_of(each.pid, "RUN_ID") == job.run_id]
        for process in {*processes.in_session(starter_pid), *strays}:
            processes.send(process, signal.SIGKILL)
