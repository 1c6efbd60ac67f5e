"""The Guild home of a round: many staged runs, and their statuses as Guild shows them."""

import contextlib
import json
import os
import pathlib
import random
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import yaml
from guild import lock
from guild import run as guild_run

from tests.support.patterns import Pattern
from tests.support.sandbox import COLD, Sandbox, run_command

OPERATION = pathlib.Path(__file__).with_name("operation.py")
LONGEST_WORK = 0.4
LONGEST_LOCK = 60.0


@dataclass(frozen=True)
class Plan:
    """What a run of the round requests and does."""

    run_id: str
    foo: int
    seconds: float
    exit_code: int
    has_runaway: bool
    tags: tuple[str, ...] = ()  # beside the one for foo
    retries: int = 0  # how often it is started again when it fails


def plan_for_dice(dice: random.Random) -> Plan:
    """Returns a random run: most are short and complete, some fail, some are long, some of these start a runaway."""
    is_long = dice.random() < 0.2
    return Plan(
        run_id=f"{dice.getrandbits(128):032x}",
        foo=dice.choice((0, 0, 1, 2, 3)),
        seconds=dice.uniform(0.5, 3.0) if is_long else dice.uniform(0, LONGEST_WORK),
        exit_code=int(dice.random() < 0.1),
        has_runaway=is_long and dice.random() < 0.7,
    )


@dataclass(frozen=True)
class Tested:
    """What is tested: the guild_dask in a folder, or the installed one, with operations that start warm or cold."""

    package: str | None = None
    warm: bool = True

    def variables(self, root: pathlib.Path) -> dict[str, str]:
        """Returns the variables of all commands on a home, beside those of a sandbox."""
        path = {"PYTHONPATH": self.package} if self.package else {}
        return {"CHAOS_FOLDER": str(root / "chaos"), **path, **({} if self.warm else COLD)}


class ChaosHome:
    """A sandbox with a project, and staged runs that are copies of a few runs staged by Guild.

    The operation is a Python module, which can start warm, or a program without `guild.op_main`.
    """

    def __init__(self, box: Sandbox, warm: bool) -> None:
        self.box = box
        self._warm = warm
        self.folder = box.root / "chaos"
        self.runs = box.guild_home / "runs"
        self._patterns: list[Pattern] = []  # one for each amount of foo

    def prepare(self) -> None:
        """Stages one run for each amount of `foo`, and keeps these as templates."""
        (self.folder / "plans").mkdir(parents=True)
        patterns = self.box.root / "patterns"
        patterns.mkdir()
        if self._warm:
            shutil.copy(OPERATION, self.box.folder)
            operation = {"main": OPERATION.stem, "flags-import": False, "pip-freeze": False}
        else:
            operation = {"exec": f"{sys.executable} -S {OPERATION}", "sourcecode": False, "pip-freeze": False}
        (self.box.folder / "guild.yml").write_text(yaml.safe_dump([{"operations": {"work": operation}}]))
        for foo in range(4):
            tag = ["--tag", f"dask:foo={foo}"] if foo else []
            command = ["guild", "run", "work", "--stage", "-y", "--run-id", f"{foo:032x}", *tag]
            finished = run_command(command, self.box.environ, self.box.folder)
            if finished.exit_code != 0:
                raise AssertionError(f"cannot stage a run:\n{finished}")
            self._patterns.append(Pattern(self.runs / f"{foo:032x}", patterns))

    def stage(self, plan: Plan) -> None:
        """Stages a run; its directory appears complete, as when Guild stages one."""
        (self.folder / "plans" / plan.run_id).write_text(f"{plan.seconds} {plan.exit_code} {int(plan.has_runaway)}")
        self._patterns[plan.foo].stage(plan.run_id, plan.tags or None)

    def markers(self, plans: list[Plan], name: str) -> list[str]:
        """Returns the runs that have one of Guild's markers."""
        return [plan.run_id for plan in plans if (self.runs / plan.run_id / ".guild" / name).exists()]

    def statuses(self) -> dict[str, str]:
        """Returns the status of each run, as `guild runs` shows it; raises AssertionError if it cannot."""
        finished = run_command(["guild", "runs", "--all", "--json"], self.box.environ, self.box.folder)
        if finished.exit_code != 0:
            raise AssertionError(f"cannot list the runs:\n{finished}")
        start = finished.output.index("[")
        return {str(run["id"]): str(run["status"]) for run in json.loads(finished.output[start:])}

    def status(self, run_id: str) -> str:
        """Returns the status of one run, even if others cannot be read."""
        return str(guild_run.for_dir(str(self.runs / run_id)).status)

    def has_runaway(self, run_id: str) -> bool:
        """Tells whether a run leaves a process behind when it is killed."""
        return (self.folder / "plans" / run_id).read_text().endswith("1")

    def exit_status(self, run_id: str) -> int | None:
        """Returns the exit status that Guild has recorded for a run."""
        status = guild_run.for_dir(str(self.runs / run_id)).get("exit_status")
        return status if isinstance(status, int) else None

    def left_by_schedulers(self) -> list[str]:
        """Returns the files that dead schedulers have left, without drafts, which are kept for a while."""
        folder = self.box.guild_home / "dask" / "schedulers"
        return sorted(path.name for path in folder.glob("*") if path.suffix != ".draft")

    def claims(self) -> list[str]:
        """Returns the names of all files in the folder of claims."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(os.listdir(self.box.guild_home / "dask" / "claims"))
        return []

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds Guild's lock, so that no run is claimed meanwhile."""
        with lock.Lock(lock.RUN_STATUS, timeout=LONGEST_LOCK, guild_home=str(self.box.guild_home)):
            yield

    def set_crash_points(self, is_on: bool) -> None:
        """Switches crash points on or off, also in running processes."""
        switch = self.folder / "on"
        if is_on:
            switch.touch()
        else:
            switch.unlink(missing_ok=True)
