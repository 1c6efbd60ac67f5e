"""Virtual environments with the same versions of all packages that they share.

- guild: guildai, and what it needs to work without guild-dask
- dask: the same with Dask and all other requirements of guild-dask, but without guild-dask
- plugin: the same with guild-dask from this checkout

A contender that needs other packages has an environment of its own, with their newest versions.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import click

PROJECT = pathlib.Path(__file__).resolve().parent.parent

# With these guildai 0.9.0 works without guild-dask, which mends it for newer ones.
WORKS_ALONE_WITH = ("setuptools<80.9", "zombie-imp; python_version >= '3.12'", "click<8.2", "chardet<6", "tabview<1.5")
GUILD_ONLY = frozenset(("guildai", "setuptools", "zombie-imp", "click", "chardet", "tabview"))


@dataclasses.dataclass(frozen=True)
class Environment:
    """A virtual environment, with a Guild home of its own."""

    name: str
    folder: pathlib.Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def guild(self) -> str:
        return str(self.folder / "bin" / "guild")

    @property
    def variables(self) -> dict[str, str]:
        return self.variables_for(self.folder / "home" / "guild")

    def variables_for(self, guild_home: pathlib.Path) -> dict[str, str]:
        """Returns the environment variables of a user with that Guild home and no other settings."""
        path = os.pathsep.join((str(self.folder / "bin"), os.defpath))
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        return {"PATH": path, "HOME": str(home), "GUILD_HOME": str(guild_home)}

    def pip(self, *arguments: str) -> str:
        """Runs pip, and returns its output."""
        command = [self.python, "-m", "pip", "--disable-pip-version-check", *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def plugin_environment(folder: pathlib.Path) -> Environment:
    """Returns the environment with guild-dask from this checkout; creates it if it is missing."""
    plugin = _made("plugin", folder)
    # From a copy: a build in the checkout would leave files there, and reuse those of the last build.
    with tempfile.TemporaryDirectory() as copy:
        source = pathlib.Path(copy) / "guild-dask"
        shutil.copytree(PROJECT, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info"))
        plugin.pip("install", "--quiet", str(source), *WORKS_ALONE_WITH)
        plugin.pip("install", "--quiet", "--force-reinstall", "--no-deps", str(source))
    return plugin


def dask_environment(folder: pathlib.Path, plugin: Environment) -> Environment:
    """Returns an environment with the packages of the other one, except guild-dask."""
    dask = _made("dask", folder)
    dask.pip("install", "--quiet", "--no-deps", *_pinned(plugin))
    return dask


def guild_environment(folder: pathlib.Path, plugin: Environment) -> Environment:
    """Returns an environment with Guild only, in the versions of the other one."""
    guild = _made("guild", folder)
    pinned = _pinned(plugin)
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pinned))
    wanted = [line for line in pinned if line.partition("==")[0].lower() in GUILD_ONLY]
    guild.pip("install", "--quiet", "--constraint", str(constraints), *wanted)
    return guild


def environment_of_its_own(folder: pathlib.Path, name: str, packages: Sequence[str]) -> Environment | None:
    """Returns an environment with packages, which it makes if it is missing; None if pip cannot install them."""
    environment = _made(name, folder)
    try:
        environment.pip("install", "--quiet", *packages)
    except subprocess.CalledProcessError:
        click.echo(f"{', '.join(packages)} cannot be installed, and is left out", err=True)
        return None
    return environment


def _made(name: str, folder: pathlib.Path) -> Environment:
    environment = Environment(name, folder / name)
    if not environment.folder.exists():
        click.echo(f"making environment {name}", err=True)
        subprocess.run([sys.executable, "-m", "venv", str(environment.folder)], check=True)
    return environment


def _pinned(plugin: Environment) -> list[str]:
    lines = plugin.pip("freeze", "--all").splitlines()
    return [line for line in lines if not line.startswith(("guild-dask", "pip="))]
