"""Takes a step of a search again and again, in child processes that are killed at one write after the other.

Run as `python crash_script.py HOME BATCH EVERY`: the first child is not killed, but what it has written is damaged, as
by a power failure. The next one is killed at its first write, and each next one EVERY writes later, on its own copy of
the home. After each, a child that is not killed takes two more steps. Prints for each point of the crash, as JSON, the
trials that are there then.
"""

import json
import os
import pathlib
import shutil
import signal
import sys
from typing import Any

from guild_dask.home import run_directory, run_view, trials
from guild_dask.home.search_journal import SearchJournal
from guild_dask.plan.objectives import Objective
from guild_dask.plan.retries import Policy
from guild_dask.scheduler.search.engine import Engine
from guild_dask.scheduler.search.search import Problem, Search
from guild_dask.scheduler.search.settings import SearchSettings
from guild_dask.scheduler.search.space import space_for_flags

TRIALS = 2
_WRITES = ("os.mkdir", "os.rename", "os.symlink", "os.remove", "shutil.copyfile")


def _step(home: str, batch: str, steps: int) -> None:
    space = space_for_flags({"x": "[1:9]"})
    problem = Problem(home, batch, space, (Objective("loss"),), TRIALS)
    journal = SearchJournal(f"{home}/runs/{batch}")
    search = Search(problem, SearchSettings(), Engine("random", space, ["minimize"], 1), journal, Policy())
    for _ in range(steps):
        search.step(TRIALS)


def _kill_at(number: int, home: str) -> None:
    """Kills this process at its write of that number to the Guild home."""
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        is_open = event == "open" and len(arguments) > 2 and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (is_open or event in _WRITES) and any(str(each).startswith(home) for each in arguments):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _in_child(home: str, batch: str, steps: int, kill_at: int = 0) -> int:
    """Takes steps in a child process, and returns its exit code; that of a killed one is negative."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.environ["GUILD_HOME"] = home
    from guild import config

    config.set_guild_home(home)
    if kill_at:
        _kill_at(kill_at, home)
    _step(home, batch, steps)
    os._exit(0)


def _lose_what_was_written(home: str, batch: str) -> None:
    """Empties files of all trials, as a power failure may: attributes of the first, and the operation of the others.

    The trials were cut short before, and staged again.
    """
    for number, trial in enumerate(sorted(set(os.listdir(f"{home}/runs")) - {batch})):
        records = f"{home}/runs/{trial}/.guild"
        for name, text in (("attrs/exit_status", "-15"), ("LOCK", "999999999")):
            pathlib.Path(records, name).write_text(text)
        os.truncate(f"{records}/{'opref' if number else 'attrs/flags'}", 0)


def main(home: str, batch: str, every: int) -> None:
    """Kills a step at one write after the other, until it is not killed any more."""

    number, code = 0, -signal.SIGKILL
    while code:
        copy = f"{home}-{number}"
        shutil.copytree(home, copy, symlinks=True)
        if number:
            code = _in_child(copy, batch, 1, number)
        else:
            _in_child(copy, batch, 1)
            _lose_what_was_written(copy, batch)
        assert _in_child(copy, batch, 2) == 0
        found = trials.TrialReader(copy, batch, (Objective("loss"),)).read()
        runs = sorted(set(os.listdir(f"{copy}/runs")) - {batch})
        flags = [run_view.flags(f"{copy}/runs/{each.id}").get("x") for each in found]
        markers = [run_directory.is_staged(f"{copy}/runs/{each.id}") for each in found]
        states = [(each.id, each.state.value, *of_run) for each, *of_run in zip(found, flags, markers, strict=True)]
        sys.stdout.write(json.dumps({"number": number, "code": code, "trials": states, "runs": runs}) + "\n")
        shutil.rmtree(copy)
        number += every if number else 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
