"""Guild homes with many runs. Guild makes a few of them; the others are clones.

A staged clone is a real copy with its own id and time of staging. A finished clone has its own id, and hard links to
the other files, because a finished run is never written to.
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

# The value of a flag of the operation `stamped` that is replaced in each clone.
SECONDS = "12345.5"

# The first two use Guild's defaults. The third has no pip freeze: `guild run` would call pip before the operation
# starts, which is not part of the time to compare. The last one is for homes with very many runs.
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
trial:
  description: Trains a small model, with scikit-learn and pandas
  main: trial
  flags-import: no
training:
  description: Trains a model for about half a second, with scikit-learn and pandas
  main: training
  flags-import: no
"""

# The first instruction takes the time, before any import.
STAMPED = """\
import time; begun = time.time()
import sys
open("begun", "w").write(repr(begun))
time.sleep(float(sys.argv[-1]))
open("ended", "w").write(repr(time.time()))
"""


# The function is called by pools of processes, too.
TRIAL = """\
import pandas
from sklearn.ensemble import RandomForestClassifier


def objective(seed):
    data = pandas.DataFrame({"a": range(200), "b": [(7 * n) % 13 for n in range(200)]})
    model = RandomForestClassifier(n_estimators=3, random_state=seed)
    return float(model.fit(data, data["a"] % 2).score(data, data["a"] % 2))


if __name__ == "__main__":
    print(f"score: {objective(1)}")
"""
TRAINING = """\
import pandas
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_score


def objective(seed):
    digits = load_digits()
    model = RandomForestClassifier(n_estimators=50, random_state=seed)
    return float(cross_val_score(model, pandas.DataFrame(digits.data), digits.target, cv=3).mean())


if __name__ == "__main__":
    print(f"score: {objective(1)}")
"""


@dataclasses.dataclass(frozen=True)
class Template:
    """A run staged by Guild, to be cloned."""

    id: str
    files: Mapping[str, bytes]  # by path in the run directory

    @property
    def command(self) -> list[str]:
        """Returns the command of the operation's own process, in a clone that does not sleep."""
        lines = self.files[".guild/attrs/cmd"].decode().replace(SECONDS, "0").splitlines()
        return [line.removeprefix("- ").strip("'\"") for line in lines]


@dataclasses.dataclass(frozen=True)
class Home:
    """A Guild home, and the environment that uses it."""

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
        """Returns a number of staged clones of the template, in the order in which they were staged."""
        return [self.stage(template, seconds) for _ in range(count)]

    def stage(self, template: Template, seconds: float = 0.0) -> pathlib.Path:
        """Returns a staged run, made in the same steps as by Guild: the marker comes last."""
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

    def link_staged(self, original: pathlib.Path) -> None:
        """Stages a run that shares all files with another one; it must not be started."""
        clone = self.runs / uuid.uuid4().hex
        _link(original, clone)

    def clear(self) -> None:
        """Removes all runs except the finished ones of the initial state."""
        for name in os.listdir(self.runs):
            if name not in self.kept:
                shutil.rmtree(self.runs / name)

    def began(self, run_dir: pathlib.Path) -> float:
        """Returns the time of the run's first instruction, as seconds since 1970."""
        return float((run_dir / "begun").read_text())


def make_project(folder: pathlib.Path) -> pathlib.Path:
    """Returns a Guild project with these operations."""
    folder.mkdir(parents=True)
    (folder / "guild.yml").write_text(GUILD_FILE)
    (folder / "noop.py").write_text("")
    (folder / "scalar.py").write_text('print("loss: 0.5")\n')
    (folder / "stamped.py").write_text(STAMPED)
    (folder / "trial.py").write_text(TRIAL)
    (folder / "training.py").write_text(TRAINING)
    return folder


def make_home(environment: Environment, folder: pathlib.Path, project: pathlib.Path, finished: int) -> Home:
    """Returns a new Guild home with a number of finished runs."""
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
    """Makes a finished run with its own id, which shares all other files with the original."""
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
