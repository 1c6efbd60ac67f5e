"""How much each flag of a search matters, as Optuna evaluates it, in a process of its own.

Optuna takes a second to load, and memory; a scheduler with an open page must not pay that. So the process is started,
and its answer is taken by a later request. The command is the caller's: what observers see knows no search.
"""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

# Seconds until a process counts as stuck, and from one evaluation to the next.
_LONGEST = 120.0
_PERIOD = 20.0

# A search is evaluated again when it has so many times as many completed trials.
_GROWTH = 1.2

# The most bytes of an evaluation's output that are read.
_MOST = 100_000

_AT_WORK = "being evaluated"

# Returns the command that evaluates a search, for a Guild home and the search's id.
CommandFor = Callable[[str, str], Sequence[str]]


@dataclass(frozen=True)
class Importances:
    """The share of each flag, the most important first; or why there is none."""

    shares: dict[str, float] = field(default_factory=dict)
    why: str = ""


@dataclass
class _Evaluation:
    objectives: str
    completed: int
    began: float
    process: "subprocess.Popen[bytes] | None"
    found: Importances


class ImportanceEvaluator:
    """Evaluates searches again as they grow. One thread at a time calls it."""

    def __init__(self, home: str, command_for: CommandFor) -> None:
        self._home = home
        self._command_for = command_for
        self._known: dict[str, _Evaluation] = {}
        self._is_closed = False

    def current(self, batch: str, objectives: str, completed: int, is_over: bool) -> Importances:
        """Returns what is known of a search with so many completed trials, at once; starts an evaluation if one is due.

        At most one process is at work. An evaluation for other objectives, before a restart, counts for nothing.
        """
        now = time.monotonic()
        for each in self._known.values():
            _collect(each, now)
        known = self._known.get(batch)
        if known and known.objectives != objectives:
            known = None
        is_busy = self._is_closed or any(each.process for each in self._known.values())
        if not is_busy and _is_due(known, completed, is_over, now):
            before = known.found if known else Importances(why=_AT_WORK)
            process = _started(self._command_for(self._home, batch))
            known = self._known[batch] = _Evaluation(objectives, completed, now, process, before)
        return known.found if known else Importances(why=_AT_WORK)

    def close(self) -> None:
        """Ends the process that is at work, and starts none again."""
        self._is_closed = True
        for each in self._known.values():
            if each.process:
                each.process.kill()
                each.process.communicate()
                each.process = None


class PendingImportances:
    """An evaluation of a search that goes on while its caller does something else."""

    def __init__(self, command: Sequence[str]) -> None:
        self._began = time.monotonic()
        self._process = _started(command)

    def result(self, seconds: float) -> Importances:
        """Returns the importances, once; waits for them until so many seconds after the evaluation began."""
        try:
            left = max(0.0, self._began + seconds - time.monotonic())
            return importances_for_output(self._process.communicate(timeout=left)[0])
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return Importances(why=f"the evaluation took longer than {seconds:g} s")


def _is_due(known: _Evaluation | None, completed: int, is_over: bool, now: float) -> bool:
    if known is None:
        return True
    if completed <= known.completed or now - known.began < _PERIOD:
        return False
    return is_over or completed >= known.completed * _GROWTH


def _started(command: Sequence[str]) -> "subprocess.Popen[bytes]":
    # The working directory is a user's, and may have modules with the names of ours.
    return subprocess.Popen(
        command,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _collect(evaluation: _Evaluation, now: float) -> None:
    process = evaluation.process
    if process is None:
        return
    if process.poll() is None and now - evaluation.began > _LONGEST:
        process.kill()
    if process.poll() is not None or now - evaluation.began > _LONGEST:
        # What it prints is shorter than a pipe holds, so that it never waits for this.
        evaluation.found = importances_for_output(process.communicate()[0])
        evaluation.process = None


def importances_for_output(text: bytes) -> Importances:
    """Returns the importances that an evaluation has printed; if they cannot be read, that it failed."""
    try:
        data: Any = json.loads(text[:_MOST])
        if "why" in data:
            return Importances(why=str(data["why"]))
        return Importances({str(name): float(share) for name, share in data["importances"].items()})
    except (ValueError, KeyError, TypeError, AttributeError):
        return Importances(why="the evaluation failed")
