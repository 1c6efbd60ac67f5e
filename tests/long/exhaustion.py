"""Real shortages at random moments: small disks that fill up, and limits on processes and open files.

    python -m tests.long.exhaustion --rounds 20 --seed 1

Each round has a Guild home of its own, with staged runs and one scheduler. At a random moment, which may be before the
first run starts, the disk of the Guild home is filled but for a random rest, or the scheduler's processes, which are an
ordinary user's, get limits just above, or at, what they use. A few seconds later the shortage is over. Then each run
must have completed, or have failed by its own exit code; no run may have ended before it started, started twice, or be
left; and nothing is left of schedulers (see chaos_support/invariants.py). Needs Linux and root.
"""

import argparse
import contextlib
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.long.chaos_support import invariants
from tests.long.chaos_support.aftermath import Aftermath
from tests.long.chaos_support.home import ChaosHome, plan_for_dice
from tests.long.chaos_support.invariants import ENDS, Seen, Violation
from tests.long.chaos_support.schedulers import LONGEST_STOP, Crew, Settings
from tests.support.exhaustion import as_nobody, disk, fill, give_to_nobody
from tests.support.sandbox import Sandbox, wait_until

_LONGEST_ROUND = 240.0
_DISK = 16 << 20


def main(arguments: list[str] | None = None) -> int:
    """Runs the rounds, prints a report, and returns 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.exhaustion", description="Takes things from a host.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kind", choices=sorted(_SHORTAGES), help="only this one; else they take turns")
    parser.add_argument("--runs", type=int, default=12, help="how many in each round")
    parser.add_argument("--seed", default="1", help="any text; the same one rolls the same dice")
    parser.add_argument("--warm", choices=("yes", "no"), default="yes", help="the flag `warm` of all schedulers")
    options = parser.parse_args(arguments)
    wrong = 0
    for number in range(options.rounds):
        kind = options.kind or sorted(_SHORTAGES)[number % len(_SHORTAGES)]
        root = pathlib.Path(tempfile.mkdtemp(prefix="guild-dask-short-"))
        this = Round(kind, f"{options.seed}-{number + 1}", options.runs, root, options.warm == "yes")
        violations = this.run()
        sys.stdout.write(f"Round {options.seed}-{number + 1}: {this.what}, {len(violations)} violations\n")
        sys.stdout.writelines(f"{each}\n" for each in violations)
        sys.stdout.flush()
        wrong += bool(violations)
        shutil.rmtree(root)
    sys.stdout.write(f"rounds: {options.rounds}, went wrong: {wrong}\n")
    return int(bool(wrong))


class Round:
    """One round on a Guild home of its own."""

    def __init__(self, kind: str, seed: str, runs: int, root: pathlib.Path, is_warm: bool) -> None:
        self._dice = random.Random(seed)
        self._kind = kind
        self.what = kind
        self.box = Sandbox(root, {"CHAOS_FOLDER": str(root / "chaos")})
        for folder in (self.box.home, self.box.guild_home, self.box.folder):
            folder.mkdir(parents=True)
        self.home = ChaosHome(self.box)
        # A process that a run starts, or imports, may fail for want of the same thing: then the run has failed itself.
        is_disk = kind == "disk"
        drawn = [plan_for_dice(self._dice) for _ in range(runs)]
        self._plans = [replace(plan, has_runaway=False, is_python=plan.is_python and is_disk) for plan in drawn]
        guild = ("guild",) if is_disk else (*as_nobody("--nproc=2000:2000", "--nofile=2000:4000"), "guild")
        self.crew = Crew(self.home, "foo=4", Settings(is_warm=is_warm, guild=guild))
        self.aftermath = Aftermath(self.home, self.crew, self._plans, None)

    def run(self) -> list[str]:
        """Runs the round, and returns what was wrong, with all that is known about it."""
        stuck: list[Violation] = []
        image = self.box.root / "image"
        kind = self._dice.choice(("tmpfs", "ext4"))
        with disk(kind, self.box.guild_home, image, _DISK) if self._kind == "disk" else contextlib.nullcontext():
            try:
                self.home.prepare()
                try:
                    self._work()
                except AssertionError as e:
                    stuck.append(Violation("stuck", str(e)))
                seen = self.aftermath.look()
                # Dask logs there what it was short of.
                seen = replace(seen, logs=[log for log in seen.logs if log.name != "dask.log"])
            finally:
                self.box.end_processes()
            rules = (*invariants.RULES_FOR_SHORTAGES, _has_not_run)
            found = [*stuck, *self.aftermath.stuck, *invariants.violations(seen, rules)]
            return [self.aftermath.story(each, seen) for each in found] + (
                list(self.aftermath.tails()) if found else []
            )

    def _work(self) -> None:
        for plan in self._plans:
            self.home.stage(plan)
        if self._kind != "disk":
            give_to_nobody(self.box.root)
        scheduler = self.crew.start_scheduler(3)
        wait_until(lambda: self.home.claims() or self._has_ended(), _LONGEST_ROUND, "the first claim")
        time.sleep(self._dice.uniform(0, 2.0))  # the moment of the shortage, in the midst of starts
        with _SHORTAGES[self._kind](self):
            time.sleep(self._dice.uniform(1.0, 5.0))
        wait_until(self._has_ended, _LONGEST_ROUND, lambda: f"the end of all runs: {self._open()}")
        scheduler.stop()
        wait_until(lambda: scheduler.is_over, 4 * LONGEST_STOP, "the scheduler's end")
        self.aftermath.work_off()

    def _has_ended(self) -> bool:
        # A run that is about to start has neither a marker nor a process yet, and Guild takes it for one that failed.
        return not self.home.claims() and not self._open()

    def _open(self) -> list[str]:
        return [plan.run_id for plan in self._plans if self.home.status(plan.run_id) not in ENDS]

    # Shortages

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """Fills the disk of the Guild home but for some kilobytes."""
        left = int(2 ** self._dice.uniform(0, 11)) << 10
        self.what = f"disk with {left >> 10} kB left"
        filler = self.box.guild_home / "filler"
        fill(filler, left)
        try:
            yield
        finally:
            filler.unlink()

    @contextlib.contextmanager
    def few_files(self) -> Iterator[None]:
        """Limits the descriptors of each process to hardly more than the scheduler has open."""
        process = self.crew.schedulers[0].process
        limit = (process.num_fds() if process else 40) + self._dice.randint(-10, 10)
        self.what = f"{limit} open files"
        with self._limited("nofile", limit, 2000):
            yield

    @contextlib.contextmanager
    def few_processes(self) -> Iterator[None]:
        """Limits processes and threads of the user to hardly more than there are."""
        limit = sum(each.num_threads() for each in self.home.processes()) + self._dice.randint(-5, 12)
        self.what = f"{limit} processes and threads"
        with self._limited("nproc", limit, 2000):
            yield

    @contextlib.contextmanager
    def _limited(self, name: str, limit: int, usual: int) -> Iterator[None]:
        self._set_limit(name, limit)
        try:
            yield
        finally:
            self._set_limit(name, usual)

    def _set_limit(self, name: str, limit: int) -> None:
        """Sets a limit of all processes of the round; those that they start inherit it."""
        for _ in range(3):  # a process may have started another one meanwhile
            for process in self.home.processes():
                command = ["prlimit", f"--pid={process.pid}", f"--{name}={limit}:4000"]
                subprocess.run(command, check=False, capture_output=True)  # it may have ended


def _has_not_run(seen: Seen) -> Iterator[Violation]:
    """Each run completes, or fails with its own exit code, when the shortage is over."""
    for plan in seen.plans:
        own = "error" if plan.exit_code else "completed"
        if seen.statuses.get(plan.run_id) != own:
            yield Violation("not run", f"is {seen.statuses.get(plan.run_id)}, and should be {own}", plan.run_id)


_SHORTAGES: dict[str, Callable[[Round], contextlib.AbstractContextManager[None]]] = {
    "disk": Round.full_disk,
    "files": Round.few_files,
    "processes": Round.few_processes,
}


if __name__ == "__main__":
    sys.exit(main())
