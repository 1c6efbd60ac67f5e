"""The working directory in which a run is started."""

import os
import shlex

from guild_dask.home import layout
from guild_dask.home.errors import raise_if_of_home
from guild_dask.home.run_directory import BrokenRun, is_folder, opref
from guild_dask.host import files

# Letters of a quoted path; no path is longer, and a longer one would take seconds to parse.
_LONGEST = 20_000


def working_directory(run_dir: str, default: str) -> str:
    """Returns the directory in which to start the run: where it was staged, else its project, else the default.

    Steps are looked up from there, as they are when the user starts the run by hand. A directory that cannot be
    entered is passed over like one that is missing. Raises OSError if the home, or this host, does not let it be read.
    """
    runs = layout.runs_dir_of(run_dir)
    staged_in = _staged_in(run_dir)
    # Trials are staged from their batch's run directory, which is not where the user was.
    if staged_in and _can_be_entered(staged_in) and layout.runs_dir_of(staged_in) != runs:
        return staged_in
    return _project(run_dir) or default


def _can_be_entered(folder: str) -> bool:
    return is_folder(os.path.join(folder, "."))  # its `.` is seen only by who may enter it


def _staged_in(run_dir: str) -> str | None:
    try:
        for line in files.read_text(layout.environment(run_dir), levels=0).splitlines():
            if line.startswith("export CMD_DIR="):
                return "".join(shlex.split(line.partition("=")[2][:_LONGEST]))
    except OSError as e:
        raise_if_of_home(e)
    except ValueError:
        pass
    return None


def _project(run_dir: str) -> str | None:
    try:
        found = opref(run_dir)
    except BrokenRun as e:
        raise_if_of_home(e)
        return None
    folder = str(found.pkg_name or "")
    if found.pkg_type == "guildfile":
        folder = os.path.dirname(folder)
    return folder if found.pkg_type in ("guildfile", "script") and _can_be_entered(folder) else None
