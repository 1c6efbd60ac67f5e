"""Crash points, from outside: kills a process of guild_dask at one of its steps, now and then.

Python imports this module at its start, where its folder is on PYTHONPATH. In processes of guild_dask, and in no
others, it listens to Python's audit events. A step is an event that concerns a claim, a marker of Guild's, a run's
output, the lock, or the start of a process. Before a step the process may kill itself; or it sets a timer that ends it
an instant later, as hard, since what comes between two events (a write to a pipe) is told by none.

CHAOS_FOLDER/on must exist for anything to happen. CHAOS_RATES has a probability for each role, as JSON; CHAOS_SEED
makes the dice repeatable. Each kill is told to CHAOS_FOLDER/crashes before it happens.
"""

import json
import os
import random
import re
import signal
import sys
import time
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_VERBS = {"os.rename": "rename", "os.remove": "remove", "os.mkdir": "mkdir", "os.rmdir": "rmdir", "os.link": "link"}
_STEPS = re.compile(
    r"dask/.*|locks/.*|runs/RUN/run-output.*"
    r"|runs/RUN/\.guild/([A-Z]+|opref|attrs/(op|run_params|started|env|exit_status|stopped))"
)
_RUN = re.compile(r"[0-9a-f]{32}")
_LONGEST_INSTANT = 0.003


def role_for_command(words: list[str]) -> str | None:
    """Returns what a process of guild_dask is, or None for any other process."""
    if "guild_dask.scheduler" in words:
        return "scheduler"
    for role in ("template", "starter"):
        if any(word.endswith(os.path.join("guild_dask", f"{role}.py")) for word in words):
            return role
    return None


def step_for_event(event: str, args: tuple[Any, ...], home: str) -> tuple[str, str] | None:
    """Returns the step's name and the run that it is for, as far as it says; None for an event that is no step."""
    if event in _VERBS:
        return _step_for_paths(_VERBS[event], args[:2] if event in ("os.rename", "os.link") else args[:1], home)
    if event == "open":
        return _step_for_paths("write", args[:1], home) if args[2] & _WRITES else None
    if event == "subprocess.Popen":
        what = next((name for name in ("template", "starter") if f"{name}.py" in str(args[1])), "process")
        environ = args[3] or {}
        run_id = environ.get("RUN_ID", "") if what == "process" else ""
        return (f"start {'operation' if run_id else what}", str(run_id))
    if event in ("os.fork", "os.posix_spawn"):
        return event.removeprefix("os."), ""
    return None


def _step_for_paths(verb: str, paths: tuple[Any, ...], home: str) -> tuple[str, str] | None:
    inside = [_inside(path, home) for path in paths]
    # In the path of a run's output, which is in the scheduler's run directory, the run is the last one named.
    run_ids = _RUN.findall(inside[-1])
    names = [re.sub(r"\d+", "N", _RUN.sub("RUN", path)) for path in inside]
    is_step = any(_STEPS.fullmatch(name) for name in names)
    return (f"{verb} {' to '.join(names)}", run_ids[-1] if run_ids else "") if is_step else None


def _inside(path: object, home: str) -> str:
    """Returns a path as it is inside the Guild home, or an empty text for one that is elsewhere, and for no path."""
    try:
        text = os.fsdecode(path)  # type: ignore[arg-type]  # what is no path raises TypeError
    except TypeError:
        return ""
    return text[len(home) + 1 :] if text.startswith(home + os.sep) else ""


class CrashPoints:
    """Decides at each step of this process whether it is the last one."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._folder = os.environ["CHAOS_FOLDER"]
        self._home = os.environ["GUILD_HOME"]
        self._rates = json.loads(os.environ["CHAOS_RATES"])
        self._roll()

    def _roll(self) -> None:
        self._random = random.Random(f"{os.environ['CHAOS_SEED']} {os.getpid()}")

    def install(self) -> None:
        """Listens to audit events from now on, for which there is no way back."""
        sys.addaudithook(self._hook)
        os.register_at_fork(after_in_parent=self._after_fork, after_in_child=self._become_starter)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if step := step_for_event(event, args, self._home):
            self._perhaps(*step)

    def _after_fork(self) -> None:
        self._perhaps("fork (done)", "")

    def _become_starter(self) -> None:
        self._role = "starter"
        self._roll()
        self._perhaps("forked", "")

    def _perhaps(self, step: str, run_id: str) -> None:
        if self._random.random() >= self._rates.get(self._role, 0.0):
            return
        if not os.path.exists(os.path.join(self._folder, "on")):
            return
        is_before = self._random.random() < 0.5
        self._tell("before" if is_before else "after", step, run_id)
        if is_before:
            os.kill(os.getpid(), signal.SIGKILL)
        # Nobody handles SIGALRM, so it ends the process in the middle of whatever it does then.
        signal.setitimer(signal.ITIMER_REAL, self._random.uniform(1e-5, _LONGEST_INSTANT))

    def _tell(self, when: str, step: str, run_id: str) -> None:
        # A starter has its run directory in its arguments.
        run_id = run_id or "".join(_RUN.findall(" ".join(getattr(sys, "argv", [])))[-1:])
        told = {
            "role": self._role,
            "step": step,
            "when": when,
            "run": run_id,
            "pid": os.getpid(),
            "at": time.monotonic(),
        }
        path = os.path.join(self._folder, "crashes")
        crashes = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(crashes, f"{json.dumps(told)}\n".encode())
        os.close(crashes)


if "CHAOS_RATES" in os.environ and (_found := role_for_command(sys.orig_argv)):
    CrashPoints(_found).install()
