"""Helpers for tests of a running scheduler."""

import contextlib
import os
import pathlib
import warnings
from collections.abc import Mapping

import psutil
from guild import run as guild_run

from tests.support.sandbox import Guild, Sandbox

NO_DASHBOARD = "dashboard-address=no"


def a_project(user: Sandbox, guild_file: str, files: Mapping[str, str] | None = None) -> pathlib.Path:
    """Makes a project with that Guild file and other files, and changes to its folder."""
    folder = user.folder / "project"
    folder.mkdir(exist_ok=True)
    for name, text in {"guild.yml": guild_file, **(files or {})}.items():
        (folder / name).write_text(text)
    os.chdir(folder)
    return folder


def stage(guild: Guild, operation: str, *run_ids: str, options: str = "") -> None:
    """Stages a run of the operation for each id."""
    for run_id in run_ids:
        guild(f"run {operation} --run-id {run_id} --stage {options} -y")


def statuses(user: Sandbox) -> dict[str, str]:
    """Returns Guild's status of each run, without schedulers and queues, whose ids Guild makes up."""
    runs = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Guild leaves the files of attributes open
        for path in sorted((user.guild_home / "runs").iterdir()):
            if len(path.name) < 32:
                runs[path.name] = str(guild_run.for_dir(str(path)).status)
    return runs


def scheduler_processes(user: Sandbox) -> list[psutil.Process]:
    """Returns the schedulers' own processes."""
    found = []
    for process in user.processes():
        with contextlib.suppress(psutil.Error):
            if "guild_dask.scheduler" in process.cmdline():
                found.append(process)
    return found


def scheduler_process(user: Sandbox) -> psutil.Process:
    """Returns the process of the only scheduler."""
    found = scheduler_processes(user)
    if len(found) != 1:
        raise LookupError(f"{len(found)} scheduler processes")
    return found[0]
