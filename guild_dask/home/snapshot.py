"""What Guild has on record for a run, kept while Guild starts it.

Guild writes a run's attributes anew when it starts it, each by emptying its file and filling it. A process that is
killed in between leaves a run without its flags, or without its operation. What was there before is kept in one file
until the run has started, and put back if it is staged again.
"""

import contextlib
import json
import os
import pathlib

from guild_dask.home import layout
from guild_dask.host import files


def save(run_dir: str, file: pathlib.Path) -> None:
    """Keeps the run's records in a file, which is there as a whole or not at all."""
    records = {}
    for path in _record_paths(run_dir):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            records[os.path.relpath(path, run_dir)] = pathlib.Path(path).read_bytes().decode("latin-1")
    files.write(file, json.dumps(records), f".{file.stem}.draft")


def restore(run_dir: str, file: pathlib.Path) -> None:
    """Puts the records back, if they were kept; what Guild has added since goes. May be repeated after a crash."""
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
