"""Reports the status of each mend in this environment, as JSON: `python -m guild_dask.mends.report`."""

import enum
import json
import sys
import warnings

from guild_dask.mends import hook, loading, table
from guild_dask.mends.mend import Mend, version_of


class Status(enum.Enum):
    """Whether a mend is applied."""

    APPLIED = "applied"
    NOT_NEEDED = "not needed"
    OFF = "switched off"
    FAILED = "failed"


def main() -> None:
    """Prints the status of each mend, and its error, as JSON."""
    warnings.simplefilter("ignore")
    print(json.dumps({mend.name: [status.value, error] for mend in table.MENDS for status, error in [_status(mend)]}))  # noqa: T201


def _status(mend: Mend) -> tuple[Status, str]:
    if not mend.is_needed(version_of):
        return Status.NOT_NEEDED, ""
    if hook.is_off():
        return Status.OFF, ""
    error = _error(mend)
    return (Status.FAILED, error) if error else (Status.APPLIED, "")


def _error(mend: Mend) -> str:
    """Loads the modules of a mend, and returns what went wrong."""
    try:
        for name in mend.where:
            exec(f"import {name}", {"__name__": "guild"})  # as Guild does it: the mend of protobuf is for Guild only
    except Exception as e:  # noqa: BLE001
        return f"cannot load {name}: {e}"
    if not any(isinstance(each, loading.Mending) for each in sys.meta_path):
        return "Python has not read guild_dask_mends.pth at its start"
    return loading.FAILED.get(mend.name, "")


if __name__ == "__main__":
    main()
