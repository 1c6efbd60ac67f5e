"""Crash points: kills processes of guild_dask at random or chosen steps, without a change to their code.

Python imports this module at its start if its folder is on PYTHONPATH. Only in processes of guild_dask, it listens to
Python's audit events. A step is an event about a claim, a marker of Guild, a run's output, the lock, or the start of a
process. Before a step, the process may kill itself, or set a timer that kills it an instant later: this covers actions
without an audit event, such as a write to a pipe.

Crash points are active only while CHAOS_FOLDER/on exists. There are two ways to choose a step:

- CHAOS_RATES has a probability for each role, as JSON; CHAOS_SEED makes the dice repeatable.
- CHAOS_POINT is one point, as JSON: the nth time that a process of that role reaches that step, it gets that signal, or
  the step fails with that error. Every step before it is written to the file that the point names.

Every kill is written to CHAOS_FOLDER/crashes before it happens.
"""

import errno
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
    """Returns the role of a process of guild_dask, or None for any other process."""
    if "guild_dask.scheduler" in words:
        return "scheduler"
    if "GUILD_DASK_WARM_SERVER" in os.environ:
        return "warm server"
    for role in ("forkserver", "starter"):
        if any(word.endswith(os.path.join("guild_dask", "worker", f"{role}.py")) for word in words):
            return role
    is_worker = any(os.path.basename(word) == "dask" for word in words) and "worker" in words
    return "worker" if is_worker else None


# What a process is when a process of the role has forked it. An operation is the user's: nothing happens to it here.
_FORKED = {"forkserver": "starter", "warm server": "supervisor", "supervisor": "operation"}

# Steps between processes that have no files: messages with descriptors, and what an operation does to become one.
_OTHER_STEPS = {"socket.sendmsg": "send", "os.chdir": "chdir", "os.kill": "kill"}
_WARM = ("warm server", "supervisor")


def step_for_event(event: str, args: tuple[Any, ...], home: str) -> tuple[str, str] | None:
    """Returns the step's name and its run, if it names one; None if the event is not a step."""
    if event in _VERBS:
        return _step_for_paths(_VERBS[event], args[:2] if event in ("os.rename", "os.link") else args[:1], home)
    if event == "open":
        return _step_for_paths("write", args[:1], home) if args[2] & _WRITES else None
    if event == "subprocess.Popen":
        what = next((name for name in ("forkserver", "starter") if f"{name}.py" in str(args[1])), "process")
        environ = args[3] or {}
        run_id = environ.get("RUN_ID", "") if what == "process" else ""
        return (f"start {'operation' if run_id else what}", str(run_id))
    if event in ("os.fork", "os.posix_spawn"):
        return event.removeprefix("os."), ""
    return None


def _step_for_paths(verb: str, paths: tuple[Any, ...], home: str) -> tuple[str, str] | None:
    inside = [_inside(path, home) for path in paths]
    # The path of a run's output is in the scheduler's run directory: the run is the last id in it.
    run_ids = _RUN.findall(inside[-1])
    names = [re.sub(r"\d+", "N", _RUN.sub("RUN", path)) for path in inside]
    is_step = any(_STEPS.fullmatch(name) for name in names)
    return (f"{verb} {' to '.join(names)}", run_ids[-1] if run_ids else "") if is_step else None


def _inside(path: object, home: str) -> str:
    """Returns a path relative to the Guild home, or an empty text for another path or value."""
    try:
        text = os.fsdecode(path)  # type: ignore[arg-type]  # a value that is not a path raises TypeError
    except TypeError:
        return ""
    return text[len(home) + 1 :] if text.startswith(home + os.sep) else ""


class CrashPoints:
    """Decides at each step of this process whether to kill it."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._folder = os.environ["CHAOS_FOLDER"]
        self._home = os.environ["GUILD_HOME"]
        self._prepare()

    def _prepare(self) -> None:
        self._rates = json.loads(os.environ["CHAOS_RATES"])
        self._roll()

    def _roll(self) -> None:
        self._random = random.Random(f"{os.environ['CHAOS_SEED']} {os.getpid()}")

    def install(self) -> None:
        """Listens to audit events from now on. An audit hook cannot be removed."""
        sys.addaudithook(self._hook)
        os.register_at_fork(after_in_parent=self._after_fork, after_in_child=self._become)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if step := step_for_event(event, args, self._home):
            self._perhaps(*step)
        elif event == "socket.sendmsg" or (event in _OTHER_STEPS and self._role in _WARM):
            self._perhaps(_OTHER_STEPS[event], "")

    def _after_fork(self) -> None:
        self._perhaps("fork (done)", "")

    def _become(self) -> None:
        self._role = _FORKED.get(self._role, self._role)
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
        # SIGALRM has no handler, so it kills the process in the middle of an action.
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
        _add_line(os.path.join(self._folder, "crashes"), json.dumps(told))


class OnePoint(CrashPoints):
    """Kills or stops the process that reaches one certain step, or makes the step fail. Others continue."""

    def _prepare(self) -> None:
        point = json.loads(os.environ["CHAOS_POINT"])
        self._point = (point["role"], point["step"])
        self._nth = point["nth"]
        self._fault = point["fault"]
        self._steps = os.path.join(self._folder, point["steps"])

    def _roll(self) -> None:
        """Does nothing: the point is fixed."""

    def _perhaps(self, step: str, run_id: str) -> None:
        if not os.path.exists(os.path.join(self._folder, "on")):
            return
        _add_line(self._steps, f"{self._role}\t{step}")
        if (self._role, step) == self._point and self._times() == self._nth:
            self._tell("before", step, run_id)
            if hasattr(errno, self._fault):
                number = getattr(errno, self._fault)
                raise OSError(number, os.strerror(number))
            os.kill(os.getpid(), signal.Signals[self._fault])

    def _times(self) -> int:
        """Returns how often processes have reached the point so far."""
        with open(self._steps, encoding="utf-8") as f:
            return f.read().splitlines().count("\t".join(self._point))


def _add_line(path: str, text: str) -> None:
    """Appends a line in one write, so that lines of several processes never mix."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{text}\n".encode())
    os.close(file)


_kind = OnePoint if "CHAOS_POINT" in os.environ else CrashPoints if "CHAOS_RATES" in os.environ else None
if _kind and (_found := role_for_command(sys.orig_argv)):
    _kind(_found).install()
