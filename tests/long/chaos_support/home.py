"""The Guild home of a round: many staged runs, and their statuses as Guild shows them."""

import contextlib
import json
import os
import pathlib
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import psutil
import yaml
from guild import lock
from guild import run as guild_run

from guild_dask.home import process_start, run_directory, run_info
from tests.support.patterns import Pattern
from tests.support.sandbox import Sandbox, run_command

# The first word of the command line that a supervisor shows; the last is its run.
SUPERVISOR = "guild-dask: supervisor"

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
    limit: float = 0.0  # its time limit in seconds; 0: none
    after: str = ""  # the run that must complete before it starts
    never_starts: bool = False  # its tags request what no worker has, or cannot be read
    is_python: bool = False  # Guild runs it as a Python module, so that it may be forked from a warm server


def plan_for_dice(dice: random.Random) -> Plan:
    """Returns a random run: most are short and complete, some fail, some are long, some of these start a runaway."""
    is_long = dice.random() < 0.2
    return Plan(
        run_id=f"{dice.getrandbits(128):032x}",
        foo=dice.choice((0, 0, 1, 2, 3)),
        seconds=dice.uniform(0.5, 3.0) if is_long else dice.uniform(0, LONGEST_WORK),
        exit_code=int(dice.random() < 0.1),
        has_runaway=is_long and dice.random() < 0.7,
        is_python=dice.random() < 0.6,
    )


# Tags that keep a run from starting, and the resource that no scheduler of a round has.
_NEVER = ("dask:bar=1", "dask:foo=many", "dask:foo=99")


def plan_with_tags(dice: random.Random, others: Sequence[Plan]) -> Plan:
    """Returns a random run with tags of all kinds; it may come after one of the others."""
    plan = plan_for_dice(dice)
    tags = [f"dask:foo={plan.foo}"] if plan.foo else []
    limit, after, retries = 0.0, "", 0
    if dice.random() < 0.25:
        tags.append(f"dask-priority:{dice.randint(-5, 5)}")
    if dice.random() < 0.3:
        retries = dice.randint(1, 2)
        tags.append(f"dask-retries:{retries}")
    if plan.seconds > 1 and dice.random() < 0.3:
        limit = 1.0
        tags.append("dask-time:1s")
    if others and dice.random() < 0.1:
        after = dice.choice(others).run_id
        tags.append(f"dask-after:{after}")
    if dice.random() < 0.15:
        tags.append("dask:mem=200MB")
    never = dice.random() < 0.05
    if never:
        tags.append(dice.choice(_NEVER))
    tags += dice.sample(("of the user's own", "dask-nothing:1", "späte"), dice.choice((0, 0, 1)))
    return replace(plan, tags=tuple(tags), retries=retries, limit=limit, after=after, never_starts=never)


class ChaosHome:
    """A sandbox with a project, and staged runs that are copies of a few runs staged by Guild."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        self.folder = box.root / "chaos"
        self.runs = box.guild_home / "runs"
        self._patterns: dict[bool, Pattern] = {}  # by Plan.is_python

    def prepare(self) -> None:
        """Stages one run of each operation, and keeps these as templates."""
        (self.folder / "plans").mkdir(parents=True)
        patterns = self.box.guild_home / "patterns"  # on the file system of the runs
        patterns.mkdir()
        shutil.copy(OPERATION, self.box.folder)
        others = {"pip-freeze": False, "output-scalars": False}
        fresh = {"exec": f"{sys.executable} -S {OPERATION}", "sourcecode": False, **others}
        python = {"main": OPERATION.stem, "flags-import": False, "sourcecode": [OPERATION.name], **others}
        (self.box.folder / "guild.yml").write_text(
            yaml.safe_dump([{"operations": {"work": fresh, "work-python": python}}])
        )
        for name, is_python in (("work", False), ("work-python", True)):
            run_id = f"{int(is_python):032x}"
            command = ["guild", "run", name, "--stage", "-y", "--run-id", run_id]
            finished = run_command(command, self.box.environ, self.box.folder)
            if finished.exit_code != 0:
                raise AssertionError(f"cannot stage a run:\n{finished}")
            self._patterns[is_python] = Pattern(self.runs / run_id, patterns)

    def stage(self, plan: Plan) -> None:
        """Stages a run; its directory appears complete, as when Guild stages one."""
        (self.folder / "plans" / plan.run_id).write_text(f"{plan.seconds} {plan.exit_code} {int(plan.has_runaway)}")
        foo = (f"dask:foo={plan.foo}",) if plan.foo else ()
        self._patterns[plan.is_python].stage(plan.run_id, plan.tags or foo)

    def processes(self) -> list[psutil.Process]:
        """Returns the live processes of this home: those that name it, and supervisors, which name their run."""
        return [*self.box.processes(), *self.supervisors()]

    def supervisors(self) -> list[psutil.Process]:
        """Returns the parents of operations that were forked from warm servers."""
        return [each for each in psutil.process_iter() if self._is_supervisor(each)]

    def _is_supervisor(self, process: psutil.Process) -> bool:
        try:
            words = process.cmdline()
        except psutil.Error:
            return False
        return bool(words) and words[0] == SUPERVISOR and (self.folder / "plans" / words[-1]).exists()

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
        """Returns whether a run leaves a process behind when it is killed."""
        return (self.folder / "plans" / run_id).read_text().endswith("1")

    def was_warm(self, run_id: str) -> bool:
        """Returns whether a run was forked from a warm server, as far as is recorded."""
        facts = run_directory.known_attribute(str(self.runs / run_id), run_info.NAME)
        return isinstance(facts, dict) and facts.get(process_start.KIND) == process_start.WARM

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
