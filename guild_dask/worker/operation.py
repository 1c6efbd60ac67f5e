"""The operation that a starter starts: its state, and how it is ended with all of its descendants."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from guild_dask.home import run_info, stop_request
from guild_dask.home.outcome import NO_EXCESS, Cause, Excess
from guild_dask.host import signals
from guild_dask.host.cgroups import Cgroup, cgroup_for_run
from guild_dask.worker import final_record, guild_stop
from guild_dask.worker.final_record import Evidence
from guild_dask.worker.guard import Guard, send_term
from guild_dask.worker.job import NOT_STARTED
from guild_dask.worker.options import StarterOptions

# Seconds between TERM to the operation's own process and TERM to its descendants, as with `guild stop`.
CHILDREN_AFTER = 5.0

# Seconds for processes that a run leaves behind to exit by themselves, as helper processes of Python do when the
# process that they serve is gone.
_TIME_TO_FOLLOW = 2.0

# Seconds between checks for processes that are left.
_INTERVAL = 0.1


class Operation:
    """The operation that this process starts, and why it is ended."""

    def __init__(self, run_dir: str, claim: pathlib.Path, options: StarterOptions) -> None:
        self.run_dir = run_dir
        self.run_id = os.path.basename(run_dir)
        self.claim = claim
        self.options = options
        self.guard = Guard(claim, options, self.cut_short)
        self.cause: Cause | None = None
        self.excess = NO_EXCESS
        self.was_over = False  # whether the operation had ended by itself before that
        self.identity: Any = None  # of this process, once it may start the run
        self.is_starting = False  # True from begin() on, unless the claim could not be marked as started
        self.is_stopping = False  # True once the run is being ended; never False again
        self.ended = threading.Event()  # set when the operation's process has ended, after exit_status
        self.exit_status: int | None = None  # of the operation's process
        self._own: set[int] = set()  # processes that Guild started itself, and waits for
        self._spawning = 0  # the number of processes being started, whose pids are not in _own yet
        self._sweep = threading.Lock()  # held by the one thread that ends processes
        self._cgroup: Cgroup | None = None  # set by begin() for a run that requests memory

    @contextlib.contextmanager
    def spawning(self, process: "subprocess.Popen[Any]", is_operation: bool) -> Iterator[None]:
        """Surrounds the start of a process by Guild: the operation's own, or another."""
        self._spawning += 1
        try:
            with self._cgroup.entered() if self._cgroup and is_operation else contextlib.nullcontext():
                yield
        finally:
            self._own.add(getattr(process, "pid", 0))
            self._spawning -= 1

    def on_child(self, _number: int, _frame: object) -> None:
        """Reaps adopted processes that have died. The handler of SIGCHLD."""
        from guild_dask.host import processes

        if not self._spawning:
            processes.reap_adopted(self._own)

    def begin(self) -> None:
        """Marks the run as started, immediately before its process is; raises SystemExit if it must not start."""
        if self.is_stopping:
            raise SystemExit(NOT_STARTED)
        from guild_dask.home import claims

        # The kernel takes some milliseconds to move us into a cgroup, so only a run with a memory limit gets one.
        self._cgroup = cgroup_for_run() if self.options.memory else None
        # From here on a signal does not interrupt the start, but ends the process once it is there.
        self.is_starting = True
        if not claims.mark_started(self.claim, self.identity):
            self.is_starting = False
            raise SystemExit(NOT_STARTED)
        if self.options.node:
            run_info.set_node(self.run_dir, self.options.node)
        run_info.write(self.run_dir, self.options.run_info)
        self.guard.begin(self._cgroup)
        if self.guard.is_too_late:
            self.leave()

    def end(self, exit_status: int) -> None:
        """Notes that the operation's process has ended. Processes that it started may go on."""
        if self.exit_status is None:
            self.exit_status = exit_status
            if self.cause is None and signals.is_failure(exit_status) and self._is_guild_stopping():
                self.is_stopping = True  # the user stopped it, and it crashed on the request
                self._note(Cause.STOPPED)
            self.ended.set()
            if exit_status < 0 or self._was_asked_by_guild():
                # It was stopped. Guild still waits for processes that hold its output open.
                self.stop_soon()

    def _was_asked_by_guild(self) -> bool:
        """Tells whether the user may have stopped an operation that exited by itself and left processes behind.

        `guild stop` signals the operation's own process, and is still running at this moment, to wait for its end.
        """
        from guild_dask.host import processes

        return processes.has_children() and self._is_guild_stopping()

    def _is_guild_stopping(self) -> bool:
        from guild_dask.host import processes

        home = os.path.dirname(os.path.dirname(self.run_dir))
        own = processes.commands_of_user()
        return any(guild_stop.may_stop(words, environ, self.run_id, home) for words, environ in own)

    def cut_short(self, cause: Cause, excess: Excess = NO_EXCESS) -> None:
        """Ends the run for a cause, through SIGTERM: its handler knows whether the operation has started."""
        if self.cause is None:
            # A stop request in the home is the better reason than what the lifeline or a limit reports.
            wanted = None if cause is Cause.CUT_OFF else stop_request.requested_cause(self.claim)
            self._note(*((wanted, NO_EXCESS) if wanted else (cause, excess)))
        send_term()

    def _note(self, cause: Cause, excess: Excess = NO_EXCESS) -> None:
        self.cause, self.excess, self.was_over = cause, excess, self.ended.is_set()

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

    def stop_soon(self) -> None:
        threading.Thread(target=self._stop, daemon=True).start()

    def _stop(self) -> None:
        self.stop()
        if self.is_cut_off:
            self.leave()

    @property
    def is_cut_off(self) -> bool:
        """Tells whether another host may own the run by now, so that Guild must not write to its directory any more."""
        return self.cause is Cause.CUT_OFF

    def leave(self) -> None:
        """Kills this process. The run's end is recorded by the scheduler that recovers it. Does not return."""
        self.cause = self.cause or Cause.CUT_OFF
        self.is_stopping = True
        self.close()
        os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        """Stops watching the run, and records its end if it has started and is still ours."""
        self.guard.close()
        if self._cgroup:
            self._cgroup.remove()
        if not self.is_starting or not self._is_ours():
            return
        # A cause whose signal has not been handled has not cut anything short.
        cause = self.cause if self.is_stopping else None
        evidence = Evidence(cause, self.excess, self.was_over, self.exit_status, self.options.node)
        final_record.write(final_record.record_for(evidence), self.run_dir, self.claim, self.guard.limits.peak_memory)

    def _is_ours(self) -> bool:
        """Tells whether this process still owns the claim, so that it may write to the run."""
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

        was_cut_short = self.is_stopping or (self.exit_status or 0) < 0
        deadline = time.monotonic() + (0 if was_cut_short else _TIME_TO_FOLLOW)
        while processes.has_children() and time.monotonic() < deadline:
            threading.Event().wait(_INTERVAL)
        if not processes.has_children():
            return
        left = processes.descendants(os.getpid())
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
            while left := processes.descendants(os.getpid()):
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
        return processes.children(left, os.getpid()), signal.SIGTERM
