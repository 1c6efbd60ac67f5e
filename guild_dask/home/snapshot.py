"""A copy of Guild's records of a run, kept while Guild starts it.

Guild rewrites a run's attributes when it starts it: it truncates each file and fills it again. A process that is killed
in between leaves a run without its flags, or without its operation. So the records are saved in one file until the run
has started, and restored if it is staged again.
"""

import contextlib
import json
import os
import pathlib

from guild_dask.home import layout
from guild_dask.host import files


def save(run_dir: str, file: pathlib.Path) -> None:
    """Saves the run's records in a file, which is written as a whole or not at all."""
    records = {}
    for path in _record_paths(run_dir):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            records[os.path.relpath(path, run_dir)] = pathlib.Path(path).read_bytes().decode("latin-1")
    files.write(file, json.dumps(records), f".{file.stem}.draft")


def restore(run_dir: str, file: pathlib.Path) -> None:
    """Restores the records, if they were saved, and removes what Guild has added. May be repeated after a crash."""
    try:
        records = json.loads(file.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return
    for name, text in records.items():
        path = pathlib.Path(run_dir, name)
        files.write(path, text.encode("latin-1"), f".{path.name}.restored")
    for path in map(pathlib.Path, _record_paths(run_dir)):
        if os.path.relpath(path, run_dir) not in records:
            path.unlink(missing_ok=True)


def _record_paths(run_dir: str) -> list[str]:
    attributes = layout.attributes(run_dir)
    names = os.listdir(attributes) if os.path.isdir(attributes) else []
    return [layout.opref(run_dir), *(os.path.join(attributes, name) for name in names)]
