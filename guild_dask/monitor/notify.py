"""Runs the user's command when a run fails, and when nothing is left to do.

The command gets the facts in its environment. No text of a run ever becomes part of a command line.
"""

import contextlib
import logging
import os
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from guild_dask.home import layout
from guild_dask.host import files
from guild_dask.monitor.state import EndedRun, Phase, State

log = logging.getLogger("guild")

RUN_FAILED = "run-failed"
QUEUE_EMPTY = "queue-empty"

# Timeout of a command, and how long a stopping scheduler waits for pending notifications, in seconds.
_LONGEST = 60.0
_LAST = 5.0

# The most pending notifications; further ones are dropped if the command is slower than runs fail.
_MOST_WAITING = 100


@dataclass(frozen=True)
class Command:
    """The command line, its environment without the facts, and the file for its output."""

    words: Sequence[str]
    environ: Mapping[str, str]
    log_file: str


class Notifier:
    """Runs the user's command for each notification, one after the other, in a thread of its own."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._pending: queue.Queue[dict[str, str] | None] = queue.Queue(_MOST_WAITING)
        self._has_work = False
        self._last_problem = ""
        self._thread = threading.Thread(target=self._run, name="notify", daemon=True)
        self._thread.start()

    def ended(self, run: EndedRun) -> None:
        """Notifies of a run that failed."""
        self._has_work = True
        if run.is_failure:
            self._put(facts_of_run(run))

    def state_changed(self, state: State) -> None:
        """Notifies of an empty queue, once after each run or series of runs."""
        if self._has_work and is_empty(state):
            self._has_work = False
            self._put(facts_of_queue(state))

    def _put(self, facts: dict[str, str]) -> None:
        with contextlib.suppress(queue.Full):
            self._pending.put_nowait(facts)

    def close(self) -> None:
        """Waits a few seconds for pending notifications. A command that takes longer continues by itself."""
        with contextlib.suppress(queue.Full):
            self._pending.put_nowait(None)
        self._thread.join(_LAST)

    def _run(self) -> None:
        while (facts := self._pending.get()) is not None:
            problem = self._notify(facts)
            if problem and problem != self._last_problem:
                log.warning(
                    "Command %r of flag 'notify' %s (its output is in %s)",
                    self._command.words[0],
                    problem,
                    os.path.basename(self._command.log_file),
                )
            self._last_problem = problem

    def _notify(self, facts: Mapping[str, str]) -> str:
        """Runs the command and returns its problem, if any."""
        try:
            with files.opened(self._command.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as output:
                process = subprocess.Popen(
                    self._command.words,
                    env={**self._command.environ, **facts},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except (OSError, ValueError) as e:
            return f"cannot be run: {e}"
        try:
            code = process.wait(_LONGEST)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"took longer than {_LONGEST:g} seconds"
        return f"ended with exit code {code}" if code else ""


def is_empty(state: State) -> bool:
    """Returns whether no run is running, retrying or able to start; False while the scheduler stops."""
    is_busy = state.running or state.retrying or state.waiting > state.impossible
    return not is_busy and state.phase is not Phase.STOPPING


def facts_of_run(run: EndedRun) -> dict[str, str]:
    """Returns the facts about an ended run, as environment variables."""
    return _variables(
        {
            "EVENT": RUN_FAILED,
            "RUN": run.run,
            "OPERATION": run.operation,
            "RESULT": run.end,
            "REASON": run.why,
            "EXIT_CODE": "" if run.exit_code is None else str(run.exit_code),
            "WORKER": run.worker,
            "HOST": run.host,
            "ATTEMPT": str(run.attempt),
            "SECONDS": f"{run.ran:.0f}",
        }
    )


def facts_of_queue(state: State) -> dict[str, str]:
    """Returns the counts of all runs, as environment variables."""
    return _variables(
        {
            "EVENT": QUEUE_EMPTY,
            "COMPLETED": str(state.completed),
            "FAILED": str(state.failed),
            "TERMINATED": str(state.terminated),
            "LEFT_STAGED": str(state.waiting + state.held + len(state.retrying)),
        }
    )


def _variables(facts: Mapping[str, str]) -> dict[str, str]:
    # An environment variable cannot hold a NUL byte.
    return {f"GUILD_DASK_{name}": value.replace("\0", "") for name, value in facts.items()}


def command_for(words: Sequence[str], user: Mapping[str, str], run_dir: str) -> Command:
    """Returns the command, with the environment of the user's shell."""
    scheduler = {"GUILD_DASK_SCHEDULER": layout.run_id(run_dir), "GUILD_DASK_SCHEDULER_DIR": run_dir}
    return Command(tuple(words), {**user, **scheduler}, layout.notify_log(run_dir))
