"""The configuration of dask-jobqueue for a user of a site, as its documentation shows it."""

import pathlib
from collections.abc import Mapping
from typing import Any

import yaml

from tests.support import account
from tests.support.sandbox import Sandbox

# Runs of the tests need very little.
_SMALL: Mapping[str, Any] = {"cores": 1, "memory": "500MB", "processes": 1, "walltime": "00:10:00"}


def configure(user: Sandbox, kind: str, **settings: Any) -> pathlib.Path:
    """Writes ~/.config/dask/jobqueue.yaml for a kind of queue, without None; returns the folder for job logs."""
    logs = user.root / "job-logs"
    logs.mkdir(exist_ok=True)
    account.give(logs)
    given = {**_SMALL, "log-directory": str(logs), **{name.replace("_", "-"): each for name, each in settings.items()}}
    section = {name: value for name, value in given.items() if value is not None}
    file = user.home / ".config" / "dask" / "jobqueue.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump({"jobqueue": {kind: section}}))
    return logs
