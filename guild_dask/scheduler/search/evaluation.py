"""The command that evaluates the importances of a search's flags in a process of its own, which is `study`."""

import os
import sys


def evaluation_command(home: str, batch: str) -> list[str]:
    """Returns the command that prints the importances of a search as JSON."""
    return [sys.executable, "-m", "guild_dask.scheduler.search.study", os.path.abspath(home), batch]
