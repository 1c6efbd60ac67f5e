"""Guild homes with many runs. A few are made by Guild itself, the others are clones of these.

A staged clone is a real copy with its own id and its own time of staging. A finished clone has its own id, and hard
links for the rest: nobody writes into a finished run.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import time
import uuid
from collections.abc import Mapping

import click

from benchmarks.environments import Environment

# The flag of the operation `stamped` in a run that is cloned, to be replaced in each clone.
SECONDS = "12345.5"

# The first two are as Guild has them by default. `guild run` asks pip for the installed packages before the third would
# begin, which is not what its time is compared with. The last is for those who need very many runs.
GUILD_FILE = """\
noop:
  description: Does nothing
  main: noop
  flags-import: no
scalar:
  description: Prints one scalar, which Guild takes from its output
  main: scalar
  flags-import: no
stamped:
  description: Writes down when it begins and when it ends
  main: stamped
  pip-freeze: no
  flags-import: no
  flags:
    seconds: 0
nothing:
  description: Does nothing, without Python
  exec: 'true'
"""

# The time is taken by the first instruction, before anything is imported that is not there already.
STAMPED = """\
import time; begun = time.time()
import sys
open("begun", "w").write(repr(begun))
time.sleep(float(sys.argv[-1]))
open("ended", "w").write(repr(time.time()))
"""


@dataclasses.dataclass(frozen=True)
class Template:
    """A staged run as Guild made it, to be cloned."""

    id: str
    files: Mapping[str, bytes]  # by path in the run directory

    @property
    def command(self) -> list[str]:
        """Returns the command of the operation's own process, in a clone that does not sleep."""
        lines = self.files[".guild/attrs/cmd"].decode().replace(SECONDS, "0").splitlines()
        return [line.removeprefix("- ").strip("'\"") for line in lines]


@dataclasses.dataclass(frozen=True)
class Home:
    """A Guild home, and the environment whose Guild works on it."""

    environment: Environment
    folder: pathlib.Path
    project: pathlib.Path
    finished: int
    kept: frozenset[str]  # the finished runs

    @property
    def runs(self) -> pathlib.Path:
        return self.folder / "runs"

    @property
    def variables(self) -> dict[str, str]:
        return self.environment.variables_for(self.folder)

    def guild(self, *arguments: str) -> None:
        """Runs a Guild command to its end."""
        _guild(self.environment, self.variables, self.project, *arguments)

    def staged(self, template: Template, count: int, seconds: float = 0.0) -> list[pathlib.Path]:
        """Returns so many staged runs that are like the template, in the order in which they were staged."""
        return [self.stage(template, seconds) for _ in range(count)]

    def stage(self, template: Template, seconds: float = 0.0) -> pathlib.Path:
        """Returns a staged run, made in the order of steps in which Guild does it: the marker comes last."""
        run_dir = self.runs / uuid.uuid4().hex
        (run_dir / ".guild" / "attrs").mkdir(parents=True)
        (run_dir / ".guild" / "PENDING").touch()
        for name, content in template.files.items():
            text = content.replace(template.id.encode(), run_dir.name.encode())
            (run_dir / name).write_bytes(text.replace(SECONDS.encode(), f"{seconds:.3f}".encode()))
        (run_dir / ".guild" / "attrs" / "started").write_text(f"{time.time_ns() // 1000}\n")
        (run_dir / ".guild" / "STAGED").touch()
        (run_dir / ".guild" / "PENDING").unlink()
        return run_dir

    def clear(self) -> None:
        """Removes all runs but the finished ones that were there from the beginning."""
        for name in os.listdir(self.runs):
            if name not in self.kept:
                shutil.rmtree(self.runs / name)

    def began(self, run_dir: pathlib.Path) -> float:
        """Returns when the run's first instruction was, as seconds since 1970."""
        return float((run_dir / "begun").read_text())


def make_project(folder: pathlib.Path) -> pathlib.Path:
    """Returns a Guild project with these operations."""
    folder.mkdir(parents=True)
    (folder / "guild.yml").write_text(GUILD_FILE)
    (folder / "noop.py").write_text("")
    (folder / "scalar.py").write_text('print("loss: 0.5")\n')
    (folder / "stamped.py").write_text(STAMPED)
    return folder


def make_home(environment: Environment, folder: pathlib.Path, project: pathlib.Path, finished: int) -> Home:
    """Returns a new Guild home with so many finished runs."""
    runs = folder / "runs"
    runs.mkdir(parents=True)
    if finished:
        _guild(environment, environment.variables_for(folder), project, "run", "noop", "-y")
        (original,) = runs.iterdir()
        for _ in range(finished - 1):
            _link(original, runs / uuid.uuid4().hex)
    return Home(environment, folder, project, finished, frozenset(os.listdir(runs)))


def make_template(home: Home, operation: str, *options: str) -> Template:
    """Returns a run that Guild staged, and removes it from the home."""
    flags = [f"seconds={SECONDS}"] if operation == "stamped" else []
    home.guild("run", operation, *flags, "--stage", "-y", *options)
    (run_dir,) = [path for path in home.runs.iterdir() if path.name not in home.kept]
    files = {str(path.relative_to(run_dir)): path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    files.pop(".guild/STAGED")
    home.clear()
    return Template(run_dir.name, files)


def _link(original: pathlib.Path, clone: pathlib.Path) -> None:
    """Makes a finished run that has its own id and shares all other files with the original."""
    for folder, _, names in os.walk(original):
        target = clone / os.path.relpath(folder, original)
        target.mkdir()
        for name in names:
            if name != "id":
                os.link(os.path.join(folder, name), target / name)
    (clone / ".guild" / "attrs" / "id").write_text(f"{clone.name}\n")


def _guild(environment: Environment, variables: Mapping[str, str], project: pathlib.Path, *arguments: str) -> None:
    finished = subprocess.run(
        [environment.guild, *arguments],
        check=False,
        cwd=project,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if finished.returncode != 0:
        raise click.ClickException(f"guild {' '.join(arguments)} failed:\n{finished.stdout}{finished.stderr}")
