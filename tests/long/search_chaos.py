"""The chaos test of a search: its processes are killed at random, and it has exactly its trials, no point twice.

    python -m tests.long.search_chaos --rounds 2 --trials 30 --seed 7 --seconds 60

In each round, a search is started, and again after each death. Every second round has a scheduler of its own, which is
killed and started again, too, so that the search proposes for it, and takes over. Victims are any processes of the
round: optimizers, schedulers, starters, trials, and Guild's processes above them. Trials write to a journal when they
start and when they end. In the end, an undisturbed restart completes the search. Then must hold:

- there are exactly as many trials as `--max-trials` says, each with a run of its own, and all have ended
- no point has two trials
- the best trial that the search reports is the best one by the trials' own journal
"""

import argparse
import collections
import contextlib
import json
import pathlib
import random
import re
import shutil
import sys
import tempfile
import time

import psutil

from guild_dask.home import run_view
from tests.support.sandbox import Guild, Sandbox, Started, run_command, sandbox

GUILD_FILE = """
train:
  main: train
  flags-import: all
"""
SCRIPT = """
import os, time
x = 1
def note(what):
    with open(os.environ["GUILD_HOME"] + "/journal", "a") as f:
        f.write("%s %s %d\\n" % (what, os.environ["RUN_ID"], x))
note("begin")
time.sleep(0.3)
note("end")
print("loss: %d" % ((x - 500) ** 2))
"""
_FLAGS = "-Fo workers=3 -Fo dashboard-address=no -Fo poll-interval=1 -Fo retries=50 -Fo max-failures=1000"
_ENDED = ("completed", "terminated", "error")


def main(arguments: list[str] | None = None) -> int:
    """Runs the rounds, and returns 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.search_chaos", description="Kills searches.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=60.0, help="of chaos in each round")
    parser.add_argument("--seed", default="7")
    options = parser.parse_args(arguments)
    wrong = []
    for number in range(options.rounds):
        chance = random.Random(f"{options.seed}-{number}")
        root = pathlib.Path(tempfile.mkdtemp(prefix="guild-dask-search-chaos-"))
        with sandbox(root, patience=30) as box:
            round_ = Round(box, chance, options.trials, has_scheduler=number % 2 == 1)
            found = round_.run(options.seconds)
        sys.stdout.write(f"round {number + 1}: {round_.kills} kills, {round_.starts} starts: {found or 'well'}\n")
        sys.stdout.flush()
        wrong += found
    return int(bool(wrong))


class Round:
    """One search, and what happens to it."""

    def __init__(self, box: Sandbox, chance: random.Random, trials: int, has_scheduler: bool) -> None:
        self._box = box
        self._chance = chance
        self._trials = trials
        self._has_scheduler = has_scheduler
        self._guild = Guild(box.root)
        self.kills: collections.Counter[str] = collections.Counter()
        self.starts = 0
        for name, text in {"guild.yml": GUILD_FILE, "train.py": SCRIPT}.items():
            (box.folder / name).write_text(text)

    def run(self, seconds: float) -> list[str]:
        """Returns what was wrong in the end."""
        deadline = time.monotonic() + seconds
        search = self._start()
        scheduler = self._scheduler() if self._has_scheduler else None
        while time.monotonic() < deadline and not self._is_over(search):
            if self._chance.random() < 0.8:  # else it is killed while it starts
                self._wait_for_trial(search)
            time.sleep(self._chance.uniform(0.0, 3.0))
            self._kill_one()
            if not search.is_running:
                search = self._start()
            if scheduler and not scheduler.is_running:
                scheduler = self._scheduler()
        for each in (search, scheduler):
            if each:
                each.kill()
        self._box.end_processes()
        last = run_command(f"{self._command()}", self._box.environ, self._box.folder, 600)
        if last.exit_code != 0:
            return [f"the last restart failed: {last}"]
        return self._violations(last.output)

    def _wait_for_trial(self, search: Started, longest: float = 60.0) -> None:
        """Waits until the search has proposed something, or has ended, but not for long."""
        deadline = time.monotonic() + longest
        while search.is_running and "Staging trial" not in search.output and time.monotonic() < deadline:
            time.sleep(0.1)

    def _is_over(self, search: Started) -> bool:
        return not search.is_running and "The search is over" in search.output

    def _command(self) -> str:
        self.starts += 1
        batch = self._box.guild_home / "runs" / "batch"
        digest = batch / ".guild" / "proto" / ".guild" / "attrs" / "sourcecode_digest"
        if digest.exists() and digest.read_text().strip():
            return "guild run --restart batch -y"
        shutil.rmtree(batch, ignore_errors=True)  # Guild was killed while it made it, and nothing has begun
        first = f"guild run train x=[1:1000] --optimizer dask:random --max-trials {self._trials} --run-id batch -y"
        return f"{first} {_FLAGS}"

    def _start(self) -> Started:
        command = self._command().removeprefix("guild ")
        return Started(command, self._box.environ, str(self._box.folder), self._box.root / f"search-{self.starts}")

    def _scheduler(self) -> Started:
        self.starts += 1
        command = "run dask:scheduler workers=3 dashboard-address=no poll-interval=1 retries=50 -y"
        return Started(command, self._box.environ, str(self._box.folder), self._box.root / f"scheduler-{self.starts}")

    def _kill_one(self) -> None:
        with contextlib.suppress(psutil.Error, IndexError):
            victim = self._chance.choice(self._box.processes())
            command = " ".join(victim.cmdline())
            kinds = ("guild_dask.scheduler.search", "guild_dask.scheduler", "forkserver", "op_main", "warm", "guild")
            kind = next((each for each in kinds if each in command), "other")
            victim.kill()
            self.kills[kind] += 1

    def _violations(self, output: str) -> list[str]:
        runs = run_command("guild runs --operation train --json", self._box.environ, self._box.folder)
        trials = json.loads(runs.output)
        journal = (self._box.guild_home / "journal").read_text().split("\n")
        ends = [line.split()[1:] for line in journal if line.startswith("end ")]
        completed = {run["id"] for run in trials if run["status"] == "completed"}
        points = [run_view.flags(str(self._box.guild_home / "runs" / run["id"]))["x"] for run in trials]
        best = re.findall(r"Best: trial (\w+)", output)
        least = min((abs(int(x) - 500), run_id) for run_id, x in ends if run_id in completed)
        found = []
        if len(trials) != self._trials:
            found.append(f"{len(trials)} trials instead of {self._trials}")
        if len(set(points)) != len(points):
            found.append(f"points that were tried twice: {sorted(points)}")
        if any(run["status"] not in _ENDED for run in trials):
            found.append(f"trials that have not ended: {collections.Counter(run['status'] for run in trials)}")
        if completed - {run_id for run_id, _ in ends}:
            found.append("completed trials that never came to their end")
        if [abs(int(x) - 500) for run_id, x in ends if run_id in best][:1] != [least[0]]:
            found.append(f"best is {best}, and should be {least}")
        return found


if __name__ == "__main__":
    sys.exit(main())
