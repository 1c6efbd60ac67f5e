"""A copy of Guild's records of a run, kept while Guild starts it.

Guild rewrites a run's attributes when it starts it: it truncates each file and fills it again. A process that is killed
in between leaves a run without its flags, or without its operation. So the records are saved in one file until the run
has started, and restored if it is staged again.
"""

import contextlib
import json
import os
import pathlib
import stat

from guild_dask.home import layout
from guild_dask.host import files

# Bytes of the file; a record is a sixth of that at most, and its bytes take up to six letters each.
_MOST = 40 * files.MOST


def save(run_dir: str, file: pathlib.Path) -> None:
    """Saves the run's records in a file, which is written as a whole or not at all.

    Raises FileNotFoundError if the run was deleted. One that is deleted meanwhile is saved completely: an incomplete
    snapshot would make restore() remove records.
    """
    with files.open_folder(layout.guild_dir(run_dir)) as folder:
        records = {name: _content(folder, name) for name in _record_names(folder)}
    known = {name: content.decode("latin-1") for name, content in records.items() if content is not None}
    files.write(file, json.dumps(known), draft_name(file.stem))


def draft_name(run_id: str) -> str:
    """Returns the name of a run's snapshot until all of it is written; a process that is killed leaves the draft."""
    return f".{run_id}.saved.draft"


def restore(folder: int, file: pathlib.Path) -> None:
    """Restores the records, if they were saved, and removes what Guild has added. May be repeated after a crash.

    The folder is Guild's one of the run, and is open: a user may move the run at any moment.
    """
    try:
        records = files.read_json(file, most=_MOST)
    except (FileNotFoundError, ValueError):
        return
    if not isinstance(records, dict):
        return
    # First, since the disk may be full.
    files.remove_in(folder, *(name for name in _record_names(folder) if name not in records))
    for name, text in records.items():
        content = text.encode("latin-1")
        # A record that is as it was stays the same file: the time of `started` decides the position in the queue.
        if _content(folder, name) != content:
            files.write(name, content, f".{os.path.basename(name)}.restored", folder)


def _content(folder: int, name: str) -> bytes | None:
    try:
        return files.content(name, folder=folder)
    except FileNotFoundError:
        return None


def _record_names(folder: int) -> list[str]:
    """Returns the names of the run's records, from Guild's folder of the run on."""
    names: list[str] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), files.open_folder(layout.ATTRIBUTES, folder) as fd:
        names = [f"{layout.ATTRIBUTES}/{name}" for name in os.listdir(fd)]
    return [name for name in (layout.OPREF, *names) if _is_file(folder, name)]  # a folder or a pipe is no record


def _is_file(folder: int, name: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder).st_mode)
    except OSError:
        return False
