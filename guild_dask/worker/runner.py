"""Runs jobs in a worker's process: starts a starter for each, waits for it, and ends it on request.

Jobs run in threads of a Dask worker, but nothing here knows Dask. A starter is a process in a session of its own: a
Ctrl-C in the scheduler's terminal does not reach it, and it outlives a scheduler that is killed.
"""

import contextlib
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from guild_dask.home import claims, end_note, layout
from guild_dask.home.outcome import Cause
from guild_dask.host import files, processes
from guild_dask.worker import fork_client, starter
from guild_dask.worker.guard import LOST_BYTE, STOP_BYTE
from guild_dask.worker.job import KILLED, NOT_STARTED, Ended, Job, Report, report_for_text
from guild_dask.worker.operation import TIME_TO_EXPLAIN


class Starter(Protocol):
    """The process that starts one run: a child of this process, or forked from the forkserver."""

    pid: int

    def wait(self) -> Report:
        """Waits for its end, and returns its report, or that it was killed."""


class _SpawnedStarter:
    """A starter that is our child, and our end of the pipe for its report."""

    def __init__(self, process: "subprocess.Popen[bytes]", reports: int) -> None:
        self.pid = process.pid
        self._process = process
        self._reports = reports

    def wait(self) -> Report:
        """Returns its report. One that ends without has not come so far as to start anything, or was killed."""
        code = self._process.wait()
        # Not to its end: a process that the run left behind may have the pipe open.
        os.set_blocking(self._reports, False)
        with open(self._reports, "rb", buffering=0) as reports:
            text = reports.read(select.PIPE_BUF) or b""
        problem = f"the process that starts it exited with code {code}"
        report = report_for_text(text.decode("utf-8", "replace"))
        return report or (Report(KILLED) if code < 0 else Report(NOT_STARTED, problem))


@dataclass(frozen=True)
class _Started:
    """A starter whose gate is open, and our end of its lifeline (None if its job has none)."""

    starter: processes.ProcessIdentity
    lifeline: int | None


class Runner:
    """The jobs of one worker process. Every method may be called from any thread."""

    def __init__(self, forkserver: fork_client.ForkServer) -> None:
        # Forks starters where it can. One for each Runner, which closes it.
        self._forkserver = forkserver

        # The environment of jobs that bring none. Set by prepare(), before the first such job arrives.
        self._environ: Mapping[str, str] = os.environ

        # Set by lose_all(), and never cleared: no gate is opened any more. Changed and decided by under _lock.
        self._closing = threading.Event()

        # The starters whose gates are open, by run; at most one for each run, since only one can own its claim. An
        # entry is removed when its own job is over, which closes the lifeline. Guarded by _lock.
        self._started: dict[str, _Started] = {}

        # All living starters, including those that wait at their gates. reap() leaves them to their jobs. A pid is
        # added while _spawning is held, before reap() can see the process.
        self._pids: set[int] = set()

        # The starters that became the owner of a claim. A subset of _pids.
        self._owners: set[int] = set()

        # The runs that were asked to stop: their gates stay closed. An entry may come before its job, and is removed
        # with the run's last job. Guarded by _lock.
        self._refused: set[str] = set()

        # The number of jobs for each run that are here, started or not; no entry is 0. Guarded by _idle.
        self._jobs: dict[str, int] = {}

        self._lock = threading.Lock()

        # Notified whenever a job is over.
        self._idle = threading.Condition()

        # Held while a process is started: until its pid is in _pids, reap() must not run.
        self._spawning = threading.Lock()

        # Guarded by _spawning.
        self._reaper = processes.Reaper()

    def run(self, job: Job) -> Ended:
        """Starts the run, waits for its end, and returns how it ended."""
        with self._idle:
            self._jobs[job.run_id] = self._jobs.get(job.run_id, 0) + 1
        process = None
        try:
            try:
                process = self._start(job)
            except Exception as e:  # noqa: BLE001  # the gate is closed, so nothing has started
                report = starter.report_for_error(e)
                return Ended(report.code, False, report.problem, report.may_be_of_run)
            report = process.wait()
            if report.code == KILLED:
                _end_orphans(process.pid, job)
                self.reap()
                self._explain(process.pid, job)
            return Ended(report.code, process.pid in self._owners, report.problem, report.may_be_of_run)
        finally:
            self._forget(job.run_id, process.pid if process else 0)

    def _explain(self, pid: int, job: Job) -> None:
        """Leaves the cause of a killed starter's end beside its claim, for other hosts.

        A job queue that ends a job kills its processes one after the other: this one may be next.
        """
        if job.options.lease:
            is_lost = self._closing.wait(TIME_TO_EXPLAIN)
            found = claims.present(pathlib.Path(job.claims_folder), job.run_id)
            is_its = found is not None and found.claim is not None and found.claim.owner.pid == pid
            if found and is_its and found.is_started and end_note.read(_claim_path(job)) is None:
                end_note.write(_claim_path(job), Cause.SIGNAL if is_lost else Cause.KILLED)

    def _forget(self, run_id: str, pid: int) -> None:
        """Forgets a job that is over. Another job for the same run, whose starter has started, keeps its state."""
        self._forget_starter(run_id, pid)
        with self._lock:
            if run_id not in self._started:
                self._refused.discard(run_id)
        with self._idle:
            self._jobs[run_id] -= 1
            if not self._jobs[run_id]:
                del self._jobs[run_id]
            self._idle.notify_all()

    def _forget_starter(self, run_id: str, pid: int) -> None:
        with self._lock:
            self._pids.discard(pid)
            self._owners.discard(pid)
            started = self._started.get(run_id)
            if started and started.starter.pid == pid:
                del self._started[run_id]
                if started.lifeline is not None:
                    os.close(started.lifeline)

    def _start(self, job: Job) -> Starter:
        """Returns the job's starter, which waits at its gate until its identity is in the claim."""
        files.refresh(os.path.dirname(job.output))
        with open(job.output, "ab") as output:
            # A forkserver that dies may have forked a starter without reporting it. That starter has a gate of its own,
            # which stays closed.
            descriptor = output.fileno()
            found = self._let_through(job, descriptor, self._fork) or self._let_through(job, descriptor, self._spawn)
        if found is None:
            raise OSError("cannot start a process for it")
        return found

    def _let_through(self, job: Job, output: int, begin: Callable[[Job, int, int], Starter | None]) -> Starter | None:
        """Begins a starter, and opens its gate once its identity is in the claim; None if it could not be begun."""
        gate, opener = os.pipe()
        starting = None
        try:
            with self._spawning:
                starting = begin(job, gate, output)
                owner = processes.identity(starting.pid) if starting else None
                self._pids.update([starting.pid] if starting else [])
            if owner and self._hand_over(job, owner):
                self._open_gate(job, owner, opener)
            return starting
        except Exception:
            self._forget_starter(job.run_id, starting.pid if starting else 0)
            raise
        finally:
            os.close(gate)
            os.close(opener)  # a starter at a closed gate ends without starting anything

    def _hand_over(self, job: Job, owner: processes.ProcessIdentity) -> bool:
        """Makes the starter the claim's owner; False if the claim is not ours any more, or the run must not start."""
        with self._lock:
            if job.run_id in self._refused or self._closing.is_set():
                return False
        if not claims.hand_over(pathlib.Path(job.claims_folder), job.claim, owner):
            return False
        self._owners.add(owner.pid)
        files.refresh(layout.attributes(job.run_dir))  # for Guild, which starts the run next
        # Another scheduler may take ours for dead and stage the run again after the claim was read and before the owner
        # was written to it. From here on, a scheduler that claims the run writes another owner, which the starter sees.
        return not files.exists(layout.marker(job.run_dir, layout.STAGED))

    def _open_gate(self, job: Job, owner: processes.ProcessIdentity, opener: int) -> None:
        """Lets the starter begin, unless the run was asked to stop meanwhile.

        A lifeline is a copy of our end of the gate, which the kernel closes if we die. It is made only for a gate that
        is opened: a starter at a closed gate would wait until the lifeline is closed, too.
        """
        with self._lock:
            if job.run_id in self._refused or self._closing.is_set():
                return
            lifeline = os.dup(opener) if job.options.has_lifeline else None
            self._started[job.run_id] = _Started(owner, lifeline)
            os.write(opener, b"!")

    def _fork(self, job: Job, gate: int, output: int) -> Starter | None:
        request = fork_client.Request(
            job.run_dir, _claim_path(job), _directory(job), self._environ_of(job), job.options
        )
        return self._forkserver.start(request, gate, output)

    def _spawn(self, job: Job, gate: int, output: int) -> Starter | None:
        reports, reporting = os.pipe()
        arguments = [str(gate), str(reporting), str(_claim_path(job)), job.run_dir, job.options.as_text()]
        try:
            process = subprocess.Popen(
                [sys.executable, "-u", starter.__file__, *arguments],
                cwd=_directory(job),
                env=dict(self._environ_of(job)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(gate, reporting),
                start_new_session=True,
            )
        except BaseException:
            os.close(reports)
            raise
        finally:
            os.close(reporting)
        return _SpawnedStarter(process, reports)

    def _environ_of(self, job: Job) -> Mapping[str, str]:
        if job.environ is not None:
            return job.environ
        return {**self._environ, "GUILD_HOME": layout.home_of_claims(job.claims_folder)}

    def prepare(self, environ: Mapping[str, str]) -> None:
        """Gets ready to start runs with this environment, which is also that of jobs that bring none."""
        self._environ = environ
        with self._spawning:
            self._forkserver.prepare(environ)

    def reap(self) -> None:
        """Reaps dead processes that this process adopted from starters, some seconds after their death."""
        # A child that is being started is not in _pids yet.
        if self._spawning.acquire(blocking=False):
            try:
                self._reaper.reap({self._forkserver.pid, *self._pids})
            finally:
                self._spawning.release()

    def close(self) -> None:
        """Ends the forkserver process. Runs go on."""
        self._forkserver.close()

    def stop(self, run_id: str) -> None:
        """Stops the run: a run that has not started does not start; else TERM, and KILL after its grace period."""
        if not self._send(run_id, STOP_BYTE):
            self._signal(run_id, signal.SIGTERM)

    def lose_all(self) -> None:
        """Ends all runs because the worker closes: they are lost, not stopped. No other run starts."""
        with self._lock:
            self._closing.set()
            started = list(self._started)
        for run_id in started:
            self._send(run_id, LOST_BYTE)

    def _send(self, run_id: str, request: bytes) -> bool:
        """Sends a request through the starter's lifeline; False if it has none. A signal would not name its sender."""
        with self._lock:
            self._refused.add(run_id)
            started = self._started.get(run_id)
            if started is None or started.lifeline is None:
                return False
            with contextlib.suppress(OSError):
                os.write(started.lifeline, request)
        return True

    def wait_until_idle(self) -> None:
        """Returns when no job is left."""
        with self._idle:
            self._idle.wait_for(lambda: not self._jobs)

    def running(self) -> list[str]:
        """Returns the runs that have a job here."""
        return list(self._jobs)

    def starter_of(self, run_id: str) -> processes.ProcessIdentity | None:
        """Returns the starter that may start the run; None before its gate is opened, and after its end."""
        with self._lock:
            started = self._started.get(run_id)
        return started.starter if started else None

    def kill(self, run_id: str) -> None:
        """Kills the run's processes; its starter is left to record that."""
        self.stop(run_id)
        found = self.starter_of(run_id)
        # Parents first: a shell whose command is killed would go on with its next one, or exit as if all were well.
        for each in dict.fromkeys((*processes.descendants(found.pid), *_strays(run_id))) if found else ():
            processes.send(each, signal.SIGKILL)

    def destroy(self, run_id: str) -> None:
        """Kills the run's processes and its starter."""
        self.kill(run_id)
        self._signal(run_id, signal.SIGKILL)

    def _signal(self, run_id: str, number: signal.Signals) -> None:
        with self._lock:
            self._refused.add(run_id)
        found = self.starter_of(run_id)
        if found and _may_be_there(found):
            with contextlib.suppress(ProcessLookupError):
                os.kill(found.pid, number)


def _may_be_there(starter: processes.ProcessIdentity) -> bool:
    try:
        return processes.is_still_there(starter)
    except OSError:  # this host is short of something; nothing has waited for it yet
        return True


def _claim_path(job: Job) -> pathlib.Path:
    return claims.path(pathlib.Path(job.claims_folder), job.run_id)


def _directory(job: Job) -> str:
    # Where it is missing on this host, or cannot be entered: its `.` is seen only by who may enter it.
    return job.directory if os.path.isdir(os.path.join(job.directory, ".")) else job.run_dir


def _end_orphans(starter_pid: int, job: Job) -> None:
    """Kills what is left of the run of a killed starter: its output is not read any more, nor its end recorded."""
    # Twice: a process that is being handed from one parent to the next is below neither, and one that is about to die
    # may just have started another.
    for _ in range(2):
        for process in dict.fromkeys((*_strays(job.run_id), *processes.in_session(starter_pid))):
            processes.send(process, signal.SIGKILL)


def _strays(run_id: str) -> list[Any]:
    """Returns processes of a run that are below this one, but may not be below its starter."""
    below = processes.descendants(os.getpid())
    return [each for each in below if processes.variable_of(each.pid, "RUN_ID") == run_id]


# The runner of this process. A worker has one, whatever schedulers send jobs to it.
RUNNER = Runner(fork_client.ForkServer())


# Dask sends a function to a worker as the name of its module and its own, and the worker looks it up there. So these
# use the runner of the process in which they are called.


def run(job: Job) -> Ended:
    """Starts the run on this worker, waits for its end, and returns how it ended."""
    return RUNNER.run(job)


def stop(run_id: str) -> None:
    """Stops a run of this worker."""
    RUNNER.stop(run_id)


def kill(run_id: str) -> None:
    """Kills the processes of a run of this worker; its starter is left to record that."""
    RUNNER.kill(run_id)


def destroy(run_id: str) -> None:
    """Kills the processes of a run of this worker, and its starter."""
    RUNNER.destroy(run_id)
