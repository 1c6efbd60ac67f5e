"""What the process that starts a run knows of its operation, and how it ends it, with all that came from it."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from guild_dask import last_word, signals, whereabouts
from guild_dask.cgroups import Cgroup, cgroup_for_run
from guild_dask.guard import Guard, send_term
from guild_dask.job import NOT_STARTED
from guild_dask.last_word import Cause
from guild_dask.terms import Terms

# Guild, too, asks an operation's own process first and its children five seconds later.
CHILDREN_AFTER = 5.0

# For what a run has left behind to end by itself: Python's own helper processes do, once they see that they are alone.
_TIME_TO_FOLLOW = 2.0

_ROUND = 0.1

# Guild's commands that stop runs.
_STOPPING = frozenset(("stop", "delete", "rm"))


def is_guild_stop(words: Sequence[str]) -> bool:
    """Tells whether that is a command line of `guild stop`, or of one that stops runs to delete them."""
    names = [os.path.basename(word) for word in words]
    ours = next((place for place, name in enumerate(names) if name in ("guild", "guild.main_bootstrap")), None)
    return ours is not None and not _STOPPING.isdisjoint(names[ours + 1 :])


class Operation:
    """What this process knows of the operation that it starts."""

    def __init__(self, run_dir: str, claim: pathlib.Path, terms: Terms) -> None:
        self.run_dir = run_dir
        self.run_id = os.path.basename(run_dir)
        self.claim = claim
        self.terms = terms
        self.guard = Guard(claim, terms, self.cut_short)
        self.cause: Cause | None = None
        self.detail = ""
        self.was_over = False  # whether the operation had ended by itself before that
        self.identity: Any = None  # of this process, once it may start the run
        self._remote_lock = pathlib.Path(run_dir, ".guild", "LOCK.remote")
        self.is_starting = False
        self.is_stopping = False
        self.ended = threading.Event()
        self.exit_status: int | None = None
        self._own: set[int] = set()  # processes that Guild started itself, and waits for
        self._spawning = 0
        self._sweep = threading.Lock()
        self._cgroup: Cgroup | None = None

    @contextlib.contextmanager
    def spawning(self, process: "subprocess.Popen[Any]", is_operation: bool) -> Iterator[None]:
        """Surrounds the start of a process by Guild: of the operation, or of another one."""
        self._spawning += 1
        try:
            with self._cgroup.entered() if self._cgroup and is_operation else contextlib.nullcontext():
                yield
        finally:
            self._own.add(getattr(process, "pid", 0))
            self._spawning -= 1

    def on_child(self, _number: int, _frame: object) -> None:
        """Lets go of adopted processes that have died."""
        from guild_dask import processes

        if not self._spawning:
            processes.reap_adopted(self._own)

    def begin(self) -> None:
        """Is called in the instant before the operation's process is started."""
        if self.is_stopping:
            raise SystemExit(NOT_STARTED)
        from guild_dask import claims

        # The kernel takes some milliseconds to move us there, which is worth it only if somebody counts on the figure.
        self._cgroup = cgroup_for_run() if self.terms.memory else None
        # A signal from here on finds a process to end, and does not break into the middle of starting it.
        self.is_starting = True
        if not claims.mark_started(self.claim, self.identity):
            self.is_starting = False
            raise SystemExit(NOT_STARTED)
        if self.terms.node:
            # Other hosts cannot see the process; for Guild there, this is a run on a remote.
            with contextlib.suppress(OSError):
                self._remote_lock.write_text(self.terms.node)
        whereabouts.write(self.run_dir, self.terms.whereabouts)
        self.guard.begin(self._cgroup)
        if self.guard.is_too_late:
            self.leave()

    def end(self, exit_status: int) -> None:
        """Is called when the operation's process has ended; those that it left may go on."""
        if self.exit_status is None:
            self.exit_status = exit_status
            if self.cause is None and signals.is_failure(exit_status) and self._is_guild_stopping():
                self.is_stopping = True  # it was asked to end, and did not do it well
                self._note(Cause.STOPPED)
            self.ended.set()
            if exit_status < 0 or self._was_asked_by_guild():
                # Somebody stopped it. Guild still waits for those that hold its output open.
                self.stop_soon()

    def _was_asked_by_guild(self) -> bool:
        """Tells whether an operation that has exited by itself, and has left something, may have been asked to.

        `guild stop` signals the operation's own process, and is still there in this moment to see it end.
        """
        from guild_dask import processes

        return processes.has_children() and self._is_guild_stopping()

    def _is_guild_stopping(self) -> bool:
        from guild_dask import processes

        return any(map(is_guild_stop, processes.command_lines()))

    def cut_short(self, cause: Cause, detail: str = "") -> None:
        """Ends the run for a cause; the signal's handler knows whether there is anything to end yet."""
        if self.cause is None:
            # Who reads the lifeline or the lease cannot know what else somebody has asked for.
            wanted = None if cause is Cause.CUT_OFF else last_word.wish(self.claim)
            self._note(*((wanted, "") if wanted else (cause, detail)))
        send_term()

    def _note(self, cause: Cause, detail: str = "") -> None:
        self.cause, self.detail, self.was_over = cause, detail, self.ended.is_set()

    def _cause_of_signal(self) -> Cause:
        """Returns what a signal from nobody knows where means: a job queue ends its jobs so, and a person a process."""
        return Cause.SIGNAL if self.terms.node else Cause.KILLED

    def on_signal(self, _number: int, _frame: object) -> None:
        self.is_stopping = True
        if self.cause is None:
            self._note(last_word.wish(self.claim) or self._cause_of_signal())
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
        """Tells whether the run may be another host's by now, and Guild must not write to its directory any more."""
        return self.cause is Cause.CUT_OFF

    def leave(self) -> None:
        """Ends this process as if it had been killed; whoever may will record the run's end. Does not return."""
        self.cause = self.cause or Cause.CUT_OFF
        self.is_stopping = True
        self.close()
        os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        """Leaves no sign of life, and the reason if the run was cut short."""
        self.guard.close()
        if self._cgroup:
            self._cgroup.remove()
        if not self.is_starting or not self._is_ours():
            return
        cause = self.cause if self.is_stopping else None
        why = (self.detail or cause.value) if cause else ""
        if not cause and signals.is_failure(self.exit_status or 0):
            why = f"it was {signals.killed_by(self.exit_status or 0)}"
        fact = whereabouts.LEFT if cause and self.was_over else whereabouts.ENDED
        whereabouts.add_end(self.run_dir, self.guard.limits.peak_memory, why, fact)
        if cause and cause.is_limit:
            if self.was_over:
                cause = None  # its end is its own; only what it had left was ended
            else:
                whereabouts.make_terminated(self.run_dir)
        if self.terms.node:
            with contextlib.suppress(OSError):
                self._remote_lock.unlink(missing_ok=True)
        if cause or self.terms.node:
            last_word.write(self.claim, cause, self.detail)

    def _is_ours(self) -> bool:
        """Tells whether the run is still ours, so that we may write about it."""
        from guild_dask import claims

        try:
            return not self.terms.lease or claims.is_owned_by(self.claim, self.identity)
        except OSError:
            return False

    def end_what_is_left(self) -> None:
        """Ends what goes on without the operation, once Guild has seen that to its end.

        Whether an operation that exits by itself was asked to, nobody can tell; and what it leaves would use what the
        next run is given.
        """
        from guild_dask import processes

        was_cut_short = self.is_stopping or (self.exit_status or 0) < 0
        deadline = time.monotonic() + (0 if was_cut_short else _TIME_TO_FOLLOW)
        while processes.has_children() and time.monotonic() < deadline:
            threading.Event().wait(_ROUND)
        if not processes.has_children():
            return
        left = processes.descendants(os.getpid())
        if left and not was_cut_short:
            names = ", ".join(f"{processes.name(each)} (pid {each.pid})" for each in left)
            sys.stderr.write(f"Run {self.run_id} has ended and left processes behind, which are ended, too: {names}\n")
        self.stop()

    def stop(self) -> None:
        """Ends the operation and everything below this process: TERM first, KILL after the grace period."""
        from guild_dask import processes

        with self._sweep:
            started = time.monotonic()
            told = set()
            while left := processes.descendants(os.getpid()):
                chosen, number = self._next_to_end(left, time.monotonic() - started)
                if self._cgroup and number is signal.SIGKILL:
                    self._cgroup.kill()
                for process in chosen:
                    if (process, number) not in told:
                        told.add((process, number))
                        processes.send(process, number)
                # Waiting for a child here would take its exit status away from Guild.
                threading.Event().wait(_ROUND)

    def _next_to_end(self, left: list[Any], waited: float) -> tuple[list[Any], signal.Signals]:
        from guild_dask import processes

        if waited > self.terms.grace:
            return left, signal.SIGKILL
        if self.ended.is_set() or waited > CHILDREN_AFTER:
            # Children before parents, so that a Guild process among them can record how its run ended.
            return processes.leaves(left), signal.SIGTERM
        return processes.children(left, os.getpid()), signal.SIGTERM
