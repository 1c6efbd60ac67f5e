"""Run directories with pipes, devices, endless files and YAML that explodes: each is held, and other runs go on."""

import itertools
import os
import shutil

from tests.support import hostile
from tests.support.sandbox import Guild, Sandbox, run_command
from tests.support.scheduling import NO_DASHBOARD, a_project, stage

QUICK = """
quick:
  exec: echo quick
"""

# The files of a staged run that Guild or guild-dask reads or writes, and what may be in their place.
KINDS = ("pipe", "socket", "device", "loop", "huge")
FILES = ("attrs/tags", "attrs/flags", "attrs/op", "attrs/started", "attrs/label", "opref", "ENV", "output", "LOCK")
TEXTS = ("aliases", "list", "merged", "deep")
TEXT_FILES = ("attrs/tags", "attrs/flags", "attrs/op", "attrs/user_flags")

# Files whose size is that of the run's own output, or of no interest.
UNLIMITED = (("output", "huge"), ("LOCK", "huge"), ("ENV", "huge"))


def _hostile_runs() -> dict[str, tuple[str, str]]:
    """Returns the names of runs, each with a file and what is in its place."""
    others = [("attrs/more", "pipe"), ("attrs/started", "number")]
    pairs = [*itertools.product(FILES, KINDS), *itertools.product(TEXT_FILES, TEXTS), *others]
    numbered = enumerate(pair for pair in pairs if pair not in UNLIMITED)
    return {f"{i:02}-{os.path.basename(file).lower()}-{kind}": (file, kind) for i, (file, kind) in numbered}


def _guild_dask(command: str) -> str:
    finished = run_command(f"guild-dask {command}", os.environ, os.getcwd(), timeout=60)
    assert finished.exit_code == 0, finished
    assert "Traceback" not in finished.output, finished
    return finished.output


def test_hostile_runs_are_held_with_a_reason_and_others_go_on(user: Sandbox, guild: Guild) -> None:
    a_project(user, QUICK)
    stage(guild, "quick", "model", "first", options="--tag some")
    runs = user.guild_home / "runs"
    hostile_runs = _hostile_runs()
    for name, (file, kind) in hostile_runs.items():
        shutil.copytree(runs / "model", runs / name)
        hostile.ACCIDENTS[kind](runs / name / ".guild" / file)
    # Files of guild-dask itself, which another host may have left.
    own = user.guild_home / "dask"
    for path in ("claims/gone.claimed", "claims/gone.stop", "claims/gone.beat", "schedulers/gone.json"):
        (own / path).parent.mkdir(parents=True, exist_ok=True)
        hostile.by_pipe(own / path)
    status = _guild_dask("status")
    assert "staged" in status
    finished = guild(f"run dask:scheduler workers=2 run-once=yes {NO_DASHBOARD} -y", timeout=100)
    assert "Traceback" not in finished.output, finished
    found = statuses_of(user, "model", "first")
    assert found == {"model": "completed", "first": "completed"}, finished
    for name, (file, _) in hostile_runs.items():
        lines = [line for line in finished.output.splitlines() if line.startswith("WARNING") and name in line]
        assert len(lines) == 1, f"{name} is not held with one reason: {lines}\n{finished}"
        reason = lines[0].partition(name)[2]
        assert os.path.basename(file) in reason or "its operation" in reason, lines[0]
        assert (runs / name / ".guild" / "STAGED").exists()
    for name in ("00-tags-pipe", next(name for name in hostile_runs if name.endswith("flags-aliases"))):
        assert "staged" in _guild_dask(f"explain {name}")


def statuses_of(user: Sandbox, *names: str) -> dict[str, str]:
    """Returns the status of these runs: Guild itself would wait for ever to read some of the others."""
    found = {}
    for name in names:
        status = user.guild_home / "runs" / name / ".guild" / "attrs" / "exit_status"
        found[name] = "completed" if status.exists() and status.read_text().strip() == "0" else "not completed"
    return found
