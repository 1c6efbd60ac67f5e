"""`guild-dask doctor` finds common problems, and names the remedy."""

import importlib.metadata
import json
import os
import pathlib
import socket
import sys
from typing import Any

import pytest
from filelock import FileLock
from packaging.requirements import Requirement

from guild_dask.cli.doctor import cluster
from guild_dask.cluster.base import ClusterError
from guild_dask.cluster.jobqueue import JobQueue
from guild_dask.mends.mend import version_of
from guild_dask.mends.table import MENDS
from tests.support.sandbox import Sandbox, run_command

DOCTOR = [os.path.join(os.path.dirname(sys.executable), "guild-dask"), "doctor"]


def all_found(**variables: str) -> list[dict[str, Any]]:
    """Returns all findings."""
    finished = run_command([*DOCTOR, "--json"], {**os.environ, **variables}, os.getcwd())
    findings: list[dict[str, Any]] = json.loads(finished.output)
    assert finished.exit_code == int(any(each["level"] == "problem" for each in findings)), finished
    return findings


def found(**variables: str) -> dict[str, dict[str, Any]]:
    """Returns the findings by their subject."""
    return {each["what"]: each for each in all_found(**variables)}


def problems(**variables: str) -> dict[str, dict[str, Any]]:
    return {what: each for what, each in found(**variables).items() if each["level"] == "problem"}


def test_all_is_well_on_a_fresh_home(user: Sandbox) -> None:
    findings = found(DASK_GUILD_DASK__DASHBOARD_ADDRESS="0")
    assert not [each for each in findings.values() if each["level"] == "problem"]
    assert findings["plugin"]["text"] == "guild-dask provides dask:scheduler"
    assert findings["lock"]["level"] == "ok"
    assert not [path.name for path in user.guild_home.rglob("*doctor*")], "it leaves nothing behind"
    text = run_command(DOCTOR, os.environ, os.getcwd()).output
    assert "\x1b" not in text
    assert "Traceback" not in text


def test_every_mend_of_guild_is_listed(user: Sandbox) -> None:
    needed = [mend for mend in MENDS if mend.is_needed(version_of)]
    listed = {each["text"].partition(":")[0]: each for each in all_found() if each["what"] == "mend"}
    assert list(listed) == [mend.name for mend in MENDS]
    assert {each["level"] for each in listed.values()} == {"ok"}
    assert [name for name, each in listed.items() if "applied" in each["text"]] == [mend.name for mend in needed]
    # Guild does not work without them, and the doctor says so, too.
    switched_off = [each for each in all_found(GUILD_DASK_MENDS="off") if "switched off" in each["text"]]
    assert [each["text"].partition(":")[0] for each in switched_off] == [mend.name for mend in needed]
    assert {(each["level"], each["remedy"]) for each in switched_off} == {("note", "unset GUILD_DASK_MENDS")}


def test_guild_of_another_environment_is_found(user: Sandbox, tmp_path: pathlib.Path) -> None:
    other = tmp_path / "bin"
    other.mkdir()
    (other / "guild").write_text("#!/bin/sh\n")
    (other / "guild").chmod(0o755)
    assert "in another environment" in problems(PATH=f"{other}:/usr/bin:/bin")["guild"]["text"]
    (other / "guild").unlink()
    assert "no command 'guild'" in problems(PATH=str(other))["guild"]["text"]


def test_home_that_cannot_be_written_is_found(user: Sandbox) -> None:
    # A file instead of a folder fails for root, too.
    (user.guild_home / "dask").write_text("")
    found_there = problems()["home"]
    assert "cannot write to" in found_there["text"]
    assert "GUILD_HOME" in found_there["remedy"]


def test_home_that_is_a_file_is_found(user: Sandbox) -> None:
    file = user.root / "file"
    file.write_text("")
    found_there = problems(GUILD_HOME=str(file))["home"]
    assert (found_there["text"], found_there["remedy"]) == (
        f"{file} is not a folder",
        "set GUILD_HOME to the folder with your runs",
    )


def test_missing_default_home_is_noted_and_everything_else_is_checked(
    user: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GUILD_HOME")
    new = user.home / ".guild"
    findings = found(DASK_GUILD_DASK__DASHBOARD_ADDRESS="0")
    assert not [each for each in findings.values() if each["level"] == "problem"]
    assert findings["home"]["text"] == f"{new} does not exist yet; the first 'guild run' creates it"
    assert {"versions", "plugin", "space", "shared", "configuration", "schedulers"} <= findings.keys()
    assert not new.exists(), "it creates nothing itself"
    (user.folder / "guild.yml").write_text("op: {exec: 'true'}")
    assert run_command("guild run op -y", os.environ, user.folder).exit_code == 0
    assert found()["home"]["text"] == f"{new} is writable"


def test_missing_home_that_the_user_named_is_a_problem(user: Sandbox) -> None:
    new = user.root / "new" / "home"
    # Guild itself refuses it:
    assert "does not exist" in run_command("guild runs", {**os.environ, "GUILD_HOME": str(new)}, user.folder).output
    findings = found(GUILD_HOME=str(new))
    assert findings["home"]["remedy"].startswith(f"mkdir -p {new}, ")
    assert "schedulers" in findings
    (user.root / "new").write_text("")
    assert "cannot be created" in problems(GUILD_HOME=str(new))["home"]["text"]


def test_lock_that_another_process_holds_is_found(user: Sandbox) -> None:
    (user.guild_home / "locks").mkdir()
    with FileLock(user.guild_home / "locks" / "run-status"):
        assert "has held" in problems()["lock"]["text"]


def test_port_in_use_is_noted(user: Sandbox) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        finding = found(DASK_GUILD_DASK__DASHBOARD_ADDRESS=str(port))["port"]
    assert finding["text"].startswith(f"{port} is in use")


def test_invalid_configuration_is_found(user: Sandbox) -> None:
    assert "wokers" in problems(DASK_GUILD_DASK__WOKERS="3")["configuration"]["text"]
    assert "workers=none at all" in problems(DASK_GUILD_DASK__WORKERS="none at all")["configuration"]["text"]
    folder = user.home / ".config" / "dask"
    folder.mkdir(parents=True)
    (folder / "bad.yaml").write_text("a: [")
    assert "bad.yaml" in problems()["configuration"]["text"]


@pytest.mark.parametrize(
    ("queue", "command", "walltimes"),
    [
        ("LSF", "bsub", ("00:30", "1:30")),  # hours and minutes
        ("SGE", "qsub", ("1800", "3600")),  # seconds
        ("SLURM", "sbatch", ("30", "1-00:00:00")),  # minutes
    ],
)
def test_short_walltime_is_noted(
    user: Sandbox, tmp_path: pathlib.Path, queue: str, command: str, walltimes: tuple[str, str]
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / command).write_text("#!/bin/sh\n")
    (tools / command).chmod(0o755)
    pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not installed")
    section = f"DASK_JOBQUEUE__{queue}__"
    variables = {f"{section}CORES": "4", f"{section}MEMORY": "8GB"}
    variables["PATH"] = f"{os.path.dirname(sys.executable)}:{tools}"

    def walltime(text: str) -> dict[str, Any]:
        # Quotes keep Dask from reading 1:30 as a number in base 60.
        findings = all_found(**variables, **{f"{section}WALLTIME": repr(text)})
        return next(each for each in findings if each["what"] == "walltime" and queue.lower() in each["text"])

    short, long = walltimes
    assert f"end after {short}," in walltime(short)["text"]
    assert walltime(long)["level"] == "ok"


def test_remedy_for_a_missing_package_installs_it(
    user: Sandbox, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("guild_dask.cli.doctor.cluster.version_of", lambda _name: None)
    (finding,) = [each for each in cluster.findings() if each.what == "job queue"]
    extra = [Requirement(each) for each in importlib.metadata.requires("guild-dask") or () if "jobqueue" in each]
    names = {each.name for each in extra if each.marker and each.marker.evaluate({"extra": "jobqueue"})}
    assert names <= set(finding.remedy.split()), "all packages of the extra"
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(ClusterError, match="pip install dask-jobqueue cryptography"):
        JobQueue("slurm", {}, str(tmp_path), {}).cluster_class()


def test_gpus_that_no_job_requests_are_noted(user: Sandbox, tmp_path: pathlib.Path) -> None:
    # The job queue does not know Dask's resources.
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "sbatch").write_text("#!/bin/sh\n")
    (tools / "sbatch").chmod(0o755)
    pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not installed")
    variables = {"PATH": f"{os.path.dirname(sys.executable)}:{tools}", "DASK_GUILD_DASK__RESOURCES": "gpu=2"}
    assert "--gres=gpu:1" in found(**variables)["gpus"]["remedy"]
    asked = {"DASK_JOBQUEUE__SLURM__JOB_EXTRA_DIRECTIVES": "['--gres=gpu:2']"}
    assert "gpus" not in found(**variables, **asked)
