"""The operation that a starter starts: its state, and how it is ended with all of its descendants."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from guild_dask.home import end_note, layout, run_info, stop_request
from guild_dask.home.outcome import NO_EXCESS, Cause, Excess
from guild_dask.host import shortage, signals
from guild_dask.host.cgroups import Cgroup, cgroup_for_run
from guild_dask.worker import final_record, guild_stop
from guild_dask.worker.final_record import StarterEvidence
from guild_dask.worker.guard import Guard, send_term
from guild_dask.worker.job import NOT_STARTED
from guild_dask.worker.options import StarterOptions

if TYPE_CHECKING:
    from guild_dask.worker.warm_client import WarmProcess

# Seconds between TERM to the operation's own process and TERM to its descendants, as with `guild stop`.
CHILDREN_AFTER = 5.0

# Seconds for processes that a run leaves behind to exit by themselves, as helper processes of Python do when the
# process that they serve is gone.
_TIME_TO_FOLLOW = 2.0

# Seconds in which the other processes of a job get their signals, too, when a job queue ends the job.
TIME_TO_EXPLAIN = 2.0

# Bytes that Guild and this process write about a run beside what the run prints, at most.
SPACE = 1 << 16

# Threads that are started when the operation has begun: two of Guild's, which read its output, and one that ends it.
_THREADS = 3

# Seconds between checks for processes that are left.
_INTERVAL = 0.1


class Operation:
    """The operation that this process starts, and why it is ended."""

    def __init__(self, run_dir: str, claim: pathlib.Path, options: StarterOptions) -> None:
        self.run_dir = run_dir
        self.run_id = layout.run_id(run_dir)
        self.claim = claim
        self.options = options
        self.guard = Guard(claim, options, self.cut_short)
        self.cause: Cause | None = None
        self.excess = NO_EXCESS
        self._had_exited = False  # whether the operation's process was not there any more when the cause was noted
        self.identity: Any = None  # of this process, once it may start the run
        self.is_starting = False  # True from begin() on, unless the claim could not be marked as started
        self.is_stopping = False  # True once the run is being ended; never False again
        self.ended = threading.Event()  # set when the operation's process has ended, after exit_status
        self.exit_status: int | None = None  # of the operation's process
        self._pid: int | None = None  # of the operation's process
        self._directory = _identity_of(run_dir)
        self.shortage = ""  # what kept the operation's process from being started, if something did
        self.threads = shortage.ReservedThreads(0)  # for Guild, and to end the operation; set by begin()
        self._own: set[int] = set()  # processes that Guild started itself, and waits for
        self._spawning = 0  # the number of processes being started, whose pids are not in _own yet
        self._sweep = threading.Lock()  # held by the one thread that ends processes
        self._cgroup: Cgroup | None = None  # set by begin() for a run that requests memory
        self._warm: WarmProcess | None = None  # the operation's process, if it was forked from a warm server

    @contextlib.contextmanager
    def spawning(self, process: "subprocess.Popen[Any]", is_operation: bool) -> Iterator[None]:
        """Surrounds the start of a process by Guild: the operation's own, or another."""
        self._spawning += 1
        try:
            with self._cgroup.entered() if self._cgroup and is_operation else contextlib.nullcontext():
                yield
        finally:
            pid = getattr(process, "pid", 0)
            self._pid = pid if is_operation else self._pid
            self._own.add(pid)
            self._spawning -= 1

    def supervise(self, process: "WarmProcess") -> bool:
        """Takes in the operation's process, which was forked from a warm server, and lets it begin.

        False if its supervisor is gone: then it cannot have begun, and a fresh process must be started.
        """
        if self._cgroup:
            self._cgroup.take(process.pid)
        try:
            process.begin()
        except OSError:
            process.close()
            return False
        self._warm = process
        self.guard.limits.add(process.supervisor)
        return True

    @property
    def _roots(self) -> list[int]:
        """Returns the processes below which all processes of the run are; they are not part of it themselves."""
        return [os.getpid(), *([self._warm.supervisor] if self._warm else [])]

    def _strays(self) -> list[Any]:
        """Returns processes of the run that are below none of its roots: those whose supervisor was killed."""
        from guild_dask.home import run_processes

        return list(run_processes.all_of(self.run_dir)) if self._warm and self._warm.is_lost else []

    def _has_processes(self) -> bool:
        from guild_dask.host import memory, processes

        if processes.has_children() or self._strays():
            return True
        return self._warm is not None and bool(memory.below(self._warm.supervisor))

    def _processes(self) -> list[Any]:
        """Returns all living processes of the run, parents before their children."""
        from guild_dask.host import processes

        strays = self._strays()
        roots = [*self._roots, *(each.pid for each in strays)]
        return [*strays, *(each for root in roots for each in processes.descendants(root))]

    def on_child(self, _number: int, _frame: object) -> None:
        """Reaps adopted processes that have died. The handler of SIGCHLD."""
        from guild_dask.host import processes

        if not self._spawning:
            processes.reap_adopted(self._own)

    @contextlib.contextmanager
    def beginning(self, process: "subprocess.Popen[Any]") -> Iterator[None]:
        """Surrounds the start of the operation's process; takes the start back if the operating system refuses it."""
        try:
            self.begin()
            with self.spawning(process, True):
                yield
        except Exception as e:
            # An OSError of Popen means that there is no process, whether or not there was one.
            if self._warm is None and (isinstance(e, OSError) or not hasattr(process, "pid")):
                self._take_back(shortage.shortage_in(e))
            raise

    def _take_back(self, what_is_short: str) -> None:
        from guild_dask.home import claims

        self.shortage = what_is_short
        self.threads.release()
        if what_is_short and self.is_starting:
            with contextlib.suppress(OSError):
                self.is_starting = not claims.mark_not_started(self.claim, self.identity)

    def begin(self) -> None:
        """Marks the run as started, immediately before its process is; raises SystemExit if it must not start.

        What is needed once there is a process is reserved before; raises OSError or RuntimeError if it is not there.
        """
        if self.is_stopping:
            raise SystemExit(NOT_STARTED)
        from guild_dask.home import attempts, claims, run_directory

        shortage.check_space(self.run_dir, SPACE)
        self.threads = shortage.ReservedThreads(_THREADS)
        # The kernel takes some milliseconds to move us into a cgroup, so only a run with a memory limit gets one.
        self._cgroup = cgroup_for_run() if self.options.memory else None
        if self._was_deleted():
            raise SystemExit(NOT_STARTED)
        # From here on a signal does not interrupt the start, but ends the process once it is there.
        self.is_starting = True
        if not claims.mark_started(self.claim, self.identity):
            self.is_starting = False
            raise SystemExit(NOT_STARTED)
        # Not earlier: a run that does not start keeps its former end.
        attempts.keep_former(self.run_dir, self.options.attempt)
        # Until Guild has recorded the new process, there is none: an earlier one's pid would hide that it is alive.
        run_directory.clear_markers(self.run_dir, layout.LOCK)
        if self.options.node:
            run_info.set_node(self.run_dir, self.options.node)
        run_info.write(self.run_dir, self.options.run_info)
        self.guard.begin(self._cgroup)
        if self.guard.is_too_late:
            self.kill_self()

    def _was_deleted(self) -> bool:
        """Returns whether the user deleted the run since this process began.

        Guild, which had read the run before, makes its directory anew. That one is removed: the run is in the trash.
        """
        if _identity_of(self.run_dir) == self._directory:
            return False
        home = layout.home_of_run(self.run_dir)
        if self._directory and _identity_of(layout.deleted_run_dir(home, self.run_id)) == self._directory:
            shutil.rmtree(self.run_dir, ignore_errors=True)
        return True

    def end(self, exit_status: int) -> None:
        """Notes that the operation's process has ended, before it is reaped. Processes that it started may go on."""
        if self.exit_status is None:
            self.exit_status = exit_status
            self._record_own_exit(exit_status)
            may_be_stopped = self._may_be_stopped_by_guild()
            if may_be_stopped and exit_status and self.cause is None:
                self.is_stopping = True
                self.cause = Cause.STOPPED  # the user stopped it, and it failed on the request
            self.ended.set()
            if exit_status < 0 or may_be_stopped:
                # It was stopped. Guild still waits for processes that hold its output open.
                self.stop_soon()

    def _record_own_exit(self, exit_code: int) -> None:
        """Records an exit that nothing but the operation itself decided, before anything else can happen to it."""
        if self._is_own_end(exit_code) and (self.cause is None or self._had_exited):
            end_note.write_exit(self.claim, end_note.Exit(exit_code, self.identity))

    @property
    def was_over(self) -> bool:
        """Returns whether the operation had exited by itself before something was to cut it short."""
        return self._had_exited and self._is_own_end(self.exit_status or 0)

    def _is_own_end(self, exit_status: int) -> bool:
        """Returns whether an exit status says that nothing but the operation itself ended it.

        A job queue may have ended the child of an operation that is a shell, or of one that ends as a shell does.
        """
        return exit_status >= 0 and not (self.options.node and signals.may_be_sent(exit_status))

    def _may_be_stopped_by_guild(self) -> bool:
        """Returns whether the user may have stopped an operation that has failed, or that left processes behind.

        `guild stop` signals the operation's own process, and waits until that is reaped: it is still running now.
        """
        return bool(self.exit_status or self._has_left_processes()) and self._is_guild_stopping()

    def _has_left_processes(self) -> bool:
        from guild_dask.host import memory

        return any(pid != self._pid for root in self._roots for pid in memory.below(root)) or bool(self._strays())

    def _is_guild_stopping(self) -> bool:
        from guild_dask.host import processes

        home = layout.home_of_run(self.run_dir)
        return any(guild_stop.may_stop(each, self.run_id, home) for each in processes.commands_of_user())

    def cut_short(self, cause: Cause, excess: Excess = NO_EXCESS) -> None:
        """Ends the run for a cause, through SIGTERM: its handler knows whether the operation has started."""
        if self.cause is None:
            # A stop request in the home is the better reason than what the lifeline or a limit reports.
            wanted = None if cause is Cause.CUT_OFF else stop_request.requested_cause(self.claim)
            self._note(*((wanted, NO_EXCESS) if wanted else (cause, excess)))
        send_term()

    def _note(self, cause: Cause, excess: Excess = NO_EXCESS) -> None:
        self._had_exited = self.ended.is_set() or self._has_exited()
        self.cause, self.excess = cause, excess

    def _has_exited(self) -> bool:
        if self._warm:
            return self._warm.has_exited
        return self._pid is not None and not _is_running(self._pid)

    def _cause_of_signal(self) -> Cause:
        """Returns the cause for a signal of unknown sender: a job queue on another node, the user on this host."""
        return Cause.SIGNAL if self.options.node else Cause.KILLED

    def on_signal(self, _number: int, _frame: object) -> None:
        self.is_stopping = True
        if self.cause is None:
            self._note(stop_request.requested_cause(self.claim) or self._cause_of_signal())
        if not self.is_starting:
            raise SystemExit(NOT_STARTED)
        self.stop_soon()

    def wait_for_explanation(self) -> None:
        """Waits for the cause if a signal of unknown sender ended the operation, or its child, on another host.

        A job queue that ends a job signals its processes one after the other: this one, or the worker, may be next.
        """
        is_unexplained = self.cause is None and signals.may_be_sent(self.exit_status or 0)
        deadline = time.monotonic() + (TIME_TO_EXPLAIN if is_unexplained and self.options.node else 0)
        while not self.is_stopping and time.monotonic() < deadline:
            threading.Event().wait(_INTERVAL)

    def stop_soon(self) -> None:
        # The reserved thread may end the operation already; then no other is needed.
        with contextlib.suppress(RuntimeError):
            self.threads.thread(target=self._stop, daemon=True).start()

    def _stop(self) -> None:
        self.stop()
        if self.is_cut_off:
            self.kill_self()

    def lose(self) -> None:
        """Notes that Guild has failed over the operation, which is not followed any more and has to end."""
        self.is_stopping = True
        if self.cause is None:
            self._note(Cause.GUILD_FAILED)

    @property
    def is_cut_off(self) -> bool:
        """Returns whether another host may own the run by now, so that Guild must no longer write to its directory."""
        return self.cause is Cause.CUT_OFF

    def kill_self(self) -> None:
        """Kills this process. The run's end is recorded by the scheduler that recovers it. Does not return."""
        self.cause = self.cause or Cause.CUT_OFF
        self.is_stopping = True
        self.close()
        os.kill(os.getpid(), signal.SIGKILL)

    def give_up(self) -> None:
        """Records that nothing was started, if the claim was handed over to this process: its worker may be dead."""
        from guild_dask.host import processes

        self.identity = self.identity or processes.identity(os.getpid())
        self.close()

    def close(self) -> None:
        """Stops watching the run, and records its end if it has started and is still ours."""
        self.guard.close()
        if self._cgroup:
            self._cgroup.remove()
        if not self._is_ours():
            return
        if not self.is_starting:
            if self.options.lease:
                end_note.write(self.claim, self.cause)  # its worker may die before it can report that nothing started
            return
        # A cause whose signal has not been handled has not cut anything short.
        cause = self.cause if self.is_stopping else None
        evidence = StarterEvidence(cause, self.excess, self.was_over, self.exit_status, self.options.node)
        seconds, largest = self._warm.usage() if self._warm else (0.0, 0)
        memory = max(self.guard.limits.peak_memory, largest)
        final_record.write(final_record.record_for(evidence), self.run_dir, self.claim, memory, seconds)

    def _is_ours(self) -> bool:
        """Returns whether this process still owns the claim, so that it may write to the run."""
        from guild_dask.home import claims

        try:
            return not self.options.lease or claims.is_owned_by(self.claim, self.identity)
        except OSError:
            return False

    def end_what_is_left(self) -> None:
        """Ends the processes that are left when Guild is done with the operation.

        They would use the resources that the next run is given.
        """
        from guild_dask.host import processes

        if self._warm:
            self._warm.await_reaping()
        was_cut_short = self.is_stopping or (self.exit_status or 0) < 0
        deadline = time.monotonic() + (0 if was_cut_short else _TIME_TO_FOLLOW)
        while self._has_processes() and time.monotonic() < deadline:
            threading.Event().wait(_INTERVAL)
        if not self._has_processes():
            return
        left = self._processes()
        if left and not was_cut_short:
            names = ", ".join(f"{processes.name(each)} (pid {each.pid})" for each in left)
            sys.stderr.write(f"Run {self.run_id} ended and left processes behind, which are ended, too: {names}\n")
        self.stop()

    def stop(self) -> None:
        """Ends the operation and all descendants of this process: TERM first, KILL after the grace period."""
        from guild_dask.host import processes

        with self._sweep:
            started = time.monotonic()
            signalled = set()
            while left := self._processes():
                chosen, number = self._next_to_end(left, time.monotonic() - started)
                if self._cgroup and number is signal.SIGKILL:
                    self._cgroup.kill()
                for process in chosen:
                    if (process, number) not in signalled:
                        signalled.add((process, number))
                        processes.send(process, number)
                # Waiting for a child here would take its exit status away from Guild.
                threading.Event().wait(_INTERVAL)

    def _next_to_end(self, left: list[Any], waited: float) -> tuple[list[Any], signal.Signals]:
        from guild_dask.host import processes

        if waited > self.options.grace:
            return left, signal.SIGKILL
        if self.ended.is_set() or waited > CHILDREN_AFTER:
            # Children before parents, so that a Guild process among them can record the end of its run.
            return processes.leaves(left), signal.SIGTERM
        return [each for root in self._roots for each in processes.children(left, root)], signal.SIGTERM


def _is_running(pid: int) -> bool:
    """Returns whether a child of this process is running. One that has exited is left for Popen to reap."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False  # Popen has just reaped it


def _identity_of(directory: str) -> tuple[int, int] | None:
    """Returns what identifies a directory, wherever it is moved; None if it is not there."""
    try:
        found = os.stat(directory)
    except OSError:
        return None
    return found.st_dev, found.st_ino
