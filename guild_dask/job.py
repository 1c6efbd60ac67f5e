"""What a worker does for one run: starts its starter, waits for it, and ends it when told to.

Runs in a thread of a Dask worker, and knows nothing of Dask. The starter is a process in a session of its own: a
Ctrl-C in the scheduler's terminal does not reach it, and it outlives a scheduler that is killed.
"""

import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from guild_dask import claims, processes, starter


@dataclass(frozen=True)
class Job:
    """One attempt at a run."""

    run_dir: str
    claim: claims.Claim
    claims_folder: str
    directory: str  # where the user staged the run: what Guild takes as the current directory
    environ: Mapping[str, str]
    output: str  # the file that takes what Guild and the operation print
    grace: float  # seconds between TERM and KILL

    @property
    def run_id(self) -> str:
        return self.claim.run_id


@dataclass(frozen=True)
class Ended:
    """The starter's exit code: Guild's own, NOT_STARTED, or minus the signal that killed it."""

    exit_code: int


_starters: dict[str, "subprocess.Popen[bytes]"] = {}
_refused: set[str] = set()
_lock = threading.Lock()


def run(job: Job) -> Ended:
    """Starts the run, waits for its end, and returns how it ended."""
    try:
        process = _start(job)
        exit_code = process.wait()
        if exit_code < 0:
            _end_orphans(process.pid, job)
        return Ended(exit_code)
    finally:
        with _lock:
            _starters.pop(job.run_id, None)
            _refused.discard(job.run_id)


def _start(job: Job) -> "subprocess.Popen[bytes]":
    """Returns the starter, which waits at its gate until its identity is in the claim."""
    gate, opener = os.pipe()
    path = claims.path(pathlib.Path(job.claims_folder), job.run_id)
    command = [sys.executable, "-u", starter.__file__, str(gate), str(path), job.run_dir, str(job.grace)]
    try:
        with open(job.output, "ab") as output:
            process = subprocess.Popen(
                command,
                cwd=job.directory if os.path.isdir(job.directory) else job.run_dir,
                env=dict(job.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(gate,),
                start_new_session=True,
            )
        owner = processes.identity(process.pid)
        with _lock:
            _starters[job.run_id] = process
            may_start = owner is not None and job.run_id not in _refused
        if owner and may_start:
            claims.write(pathlib.Path(job.claims_folder), replace(job.claim, owner=owner))
            os.write(opener, b"!")
    finally:
        os.close(gate)
        os.close(opener)  # a starter at a closed gate ends without starting anything
    return process


def stop(run_id: str) -> None:
    """Asks for the run's end: not started if it has not, else TERM and after its grace period KILL."""
    _signal(run_id, signal.SIGTERM)


def kill(run_id: str) -> None:
    """Ends the run's processes at once; its starter is left to record that."""
    with _lock:
        process = _starters.get(run_id)
    for descendant in processes.descendants(process.pid) if process else ():
        processes.send(descendant, signal.SIGKILL)
    _signal(run_id, signal.SIGTERM)


def destroy(run_id: str) -> None:
    """Ends the run's processes and its starter at once."""
    kill(run_id)
    _signal(run_id, signal.SIGKILL)


def _signal(run_id: str, number: signal.Signals) -> None:
    with _lock:
        _refused.add(run_id)
        process = _starters.get(run_id)
        if process and process.poll() is None:
            process.send_signal(number)


def _end_orphans(starter_pid: int, job: Job) -> None:
    """Ends what a starter that was killed left behind: nobody reads its output or records its end any more."""
    for process in processes.descendants(os.getpid()):
        if processes.session(process.pid) == starter_pid or processes.variable_of(process.pid, "RUN_ID") == job.run_id:
            processes.send(process, signal.SIGKILL)
