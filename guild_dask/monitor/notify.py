"""Runs a command of the user's when a run fails, or when there is nothing left to do.

What happened is in the command's environment. Nothing that comes from a run is ever part of a command line.
"""

import contextlib
import logging
import os
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from guild_dask.monitor.state import EndedRun, State

log = logging.getLogger("guild")

RUN_FAILED = "run-failed"
QUEUE_EMPTY = "queue-empty"

# Seconds that a command may take, and that the scheduler waits at its end for those that are left.
_LONGEST = 60.0
_LAST = 5.0

# More than this wait to be told: the command is slower than runs fail, and the rest is left out.
_MOST_WAITING = 100


@dataclass(frozen=True)
class Command:
    """What to run, where its output goes, and what it sees beside what happened."""

    words: Sequence[str]
    environ: Mapping[str, str]
    log_file: str


class Notifier:
    """Tells the user's command, one thing after the other, in a thread of its own."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._ahead: queue.Queue[dict[str, str] | None] = queue.Queue(_MOST_WAITING)
        self._has_work = False
        self._told_problem = ""
        self._thread = threading.Thread(target=self._run, name="notify", daemon=True)
        self._thread.start()

    def ended(self, run: EndedRun) -> None:
        """Takes note of a run that ended."""
        self._has_work = True
        if run.is_failure:
            self._put(facts_of_run(run))

    def look(self, state: State) -> None:
        """Takes note of what runs and waits."""
        if self._has_work and is_empty(state):
            self._has_work = False
            self._put(facts_of_queue(state))

    def _put(self, facts: dict[str, str]) -> None:
        with contextlib.suppress(queue.Full):
            self._ahead.put_nowait(facts)

    def close(self) -> None:
        """Waits a little for what is still to be told. A command that takes longer goes on by itself."""
        with contextlib.suppress(queue.Full):
            self._ahead.put_nowait(None)
        self._thread.join(_LAST)

    def _run(self) -> None:
        while (facts := self._ahead.get()) is not None:
            problem = self._tell(facts)
            if problem and problem != self._told_problem:
                log.warning(
                    "Command %r of flag 'notify' %s (its output is in %s)",
                    self._command.words[0],
                    problem,
                    "notify.log",
                )
            self._told_problem = problem

    def _tell(self, facts: Mapping[str, str]) -> str:
        """Runs the command, and returns what was wrong with that, if anything."""
        try:
            with open(self._command.log_file, "ab") as output:
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
    """Tells whether nothing runs, and nothing waits that could ever start. A scheduler that stops is another matter."""
    is_busy = state.running or state.resting or state.waiting > state.hopeless
    return not is_busy and state.phase != "stopping"


def facts_of_run(run: EndedRun) -> dict[str, str]:
    """Returns what happened to a run, as variables."""
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
    """Returns what came of all runs, as variables."""
    return _variables(
        {
            "EVENT": QUEUE_EMPTY,
            "COMPLETED": str(state.completed),
            "FAILED": str(state.failed),
            "TERMINATED": str(state.terminated),
            "LEFT_STAGED": str(state.waiting + state.held + len(state.resting)),
        }
    )


def _variables(facts: Mapping[str, str]) -> dict[str, str]:
    # A variable cannot hold a zero byte.
    return {f"GUILD_DASK_{name}": value.replace("\0", "") for name, value in facts.items()}


def command_for(words: Sequence[str], user: Mapping[str, str], run_dir: str) -> Command:
    """Returns the command with the environment that the user's shell had."""
    scheduler = {"GUILD_DASK_SCHEDULER": os.path.basename(run_dir), "GUILD_DASK_SCHEDULER_DIR": run_dir}
    return Command(tuple(words), {**user, **scheduler}, os.path.join(run_dir, "notify.log"))
