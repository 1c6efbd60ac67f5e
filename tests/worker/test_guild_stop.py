"""Which commands may be stopping a run."""

import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping

import pytest

from guild_dask.host.processes import Command
from guild_dask.worker.guild_stop import home_of, may_stop

HOME = "/home/me/.guild"
RUN = "4c07aaaa"
MINE: Mapping[str, str] = {"HOME": "/home/me"}


def _may_stop(words: str, environ: Mapping[str, str] = MINE, directory: str = "/home/me/project") -> bool:
    return may_stop(Command(words.split(), environ, directory), RUN, HOME)


@pytest.mark.parametrize(
    "words",
    [
        "guild stop",
        "/venv/bin/python3 /venv/bin/guild stop",
        "/venv/bin/python /venv/bin/guild stop 4c07 -y",
        "python -um guild.main_bootstrap stop -y",
        "guild runs stop 1",
        "guild runs delete 2:3 --yes",
        "guild runs rm -y",
        "guild stop -Fo train",
        "guild -H /home/me/.guild stop 4c07aaaa",
        "guild -H/home/me/.guild --debug stop",
        "guild -H ../.guild stop",
        "guild -C .. stop",
        "guild --debug-listen 5678 stop",
    ],
)
def test_guild_command_that_may_choose_the_run_may_stop_it(words: str) -> None:
    assert _may_stop(words)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "guild",
        "guild runs",
        "guild run train --stage",
        "python stop.py",
        "python train.py --then guild stop",
        "sh -c sleep guild stop",
        "vim guild stop",
        "guild stop 9999bbbb",
        "guild stop 9999bbbb -y",
        "guild -H /home/other/.guild stop",
        "guild -H/home/other/.guild runs rm -y",
        "guild -H . stop",
        "guild --unknown-to-guild stop",
    ],
)
def test_other_command_does_not_stop_the_run(words: str) -> None:
    assert not _may_stop(words)


def test_command_on_another_home_does_not_stop_the_run() -> None:
    assert not _may_stop("guild stop", {**MINE, "GUILD_HOME": "/home/other/.guild"})
    assert _may_stop("guild stop", {**MINE, "GUILD_HOME": f"{HOME}/"})
    assert _may_stop("guild stop", {**MINE, "GUILD_HOME": "../.guild"})


def test_command_on_the_default_home_does_not_stop_a_run_of_another_home(tmp_path: pathlib.Path) -> None:
    project = tmp_path / "project"
    (project / ".guild").mkdir(parents=True)
    command = Command(["guild", "stop"], {"HOME": str(tmp_path)}, str(tmp_path))
    assert not may_stop(command, RUN, str(project / ".guild"))
    assert may_stop(command, RUN, str(tmp_path / ".guild"))


def test_command_whose_home_cannot_be_told_may_stop_the_run() -> None:
    assert _may_stop("guild stop", {**MINE, "GUILD_HOME_SCHEME": "pre-0.9"}, "/")


GUILD = "import sys; from guild import config; config.set_cwd(sys.argv[1]); print(config.guild_home())"


@pytest.mark.parametrize("folder", ["user", "user/project/part", "user/other", "elsewhere"])
@pytest.mark.parametrize("variables", [{}, {"VIRTUAL_ENV": "with-home"}, {"CONDA_PREFIX": "without"}])
def test_home_of_a_command_is_the_one_that_guild_finds(
    tmp_path: pathlib.Path, folder: str, variables: Mapping[str, str]
) -> None:
    for name in ("user/project/part", "user/project/.guild", "user/other", "elsewhere", "with-home/.guild", "without"):
        (tmp_path / name).mkdir(parents=True)
    environ = {
        "PATH": os.defpath,
        "HOME": str(tmp_path / "user"),
        **{name: str(tmp_path / value) for name, value in variables.items()},
    }
    found = subprocess.run(
        [sys.executable, "-c", GUILD, folder], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert home_of({"-C": folder}, environ, str(tmp_path)) == found.stdout.strip()
