"""Starts a Dask worker on a host where other users may work, too: the command of job queues and of SSH.

    python -m guild_dask.cluster.private_worker -m distributed.cli.dask_worker SCHEDULER OPTION...

The worker keeps its files in a folder that no other user can open, whatever folder is configured, since Dask puts it
first on `sys.path`. It listens only on the port that the scheduler and other workers need.
"""

import runpy
import sys
from collections.abc import Sequence
from typing import Any

import dask.config
from distributed import Worker

from guild_dask.cluster.http_ports import NoPortWithoutDashboard
from guild_dask.host.private_folders import private_folder

DASK_WORKER = "distributed.cli.dask_worker"

_THIS = "guild_dask.cluster.private_worker"  # __name__ is another if this is the command

# What precedes `-m DASK_WORKER` in a command line.
AS_PRIVATE = ("-m", _THIS)

_FOLDER = "--local-directory"
_CLASS = "--worker-class"


class PrivateWorker(NoPortWithoutDashboard, Worker):  # type: ignore[misc]  # Dask is not typed
    """Dask's worker, with an HTTP port only if the user has configured its address."""

    def __init__(
        self, *args: Any, dashboard_address: str | None = None, dashboard: bool = False, **kwargs: Any
    ) -> None:
        # `dask worker` has this default, which is a free port on all interfaces.
        address = None if dashboard_address == ":0" else dashboard_address
        dashboard = dashboard and address is not None
        super().__init__(*args, dashboard_address=address, dashboard=dashboard, **kwargs)


def arguments_for(module: str, arguments: Sequence[str]) -> list[str]:
    """Returns the arguments of a module that starts a worker, with a folder that only this user can open."""
    configured = _value(arguments, _FOLDER) or dask.config.get("temporary-directory", None)
    own = [_FOLDER, private_folder(configured)]
    if module == DASK_WORKER and _value(arguments, _CLASS) is None:
        own += [_CLASS, f"{_THIS}.{PrivateWorker.__name__}"]
    return [*arguments, *own]


def _value(arguments: Sequence[str], option: str) -> str | None:
    """Returns the value of an option in a command line, or None; the last one wins."""
    found = None
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, has_value, value = word.partition("=")
        if name == option:
            found = value if has_value else following
    return found


def main() -> None:
    """Runs the module that the command line names, with its arguments."""
    _, module, *arguments = sys.argv[1:]
    try:
        sys.argv[1:] = arguments_for(module, arguments)
    except OSError as e:
        sys.exit(f"The worker has no folder for temporary files: {e}")
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
