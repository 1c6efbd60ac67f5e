"""The attempts at a run that are over, on record in its own directory, and what they printed.

Only attempts in which the run's process was started count. The record is deleted with the run, and goes where it goes.
"""

import contextlib
import json
import os
import pathlib
import shutil
import time
from dataclasses import asdict, dataclass

from guild_dask.freshness import look_anew

_FOLDER = "dask-attempts"
_RECORD = "record.json"
_OUTPUT = ("output", "output.index")


@dataclass(frozen=True)
class Attempt:
    """One attempt that is over, and was not the last."""

    number: int
    cause: str
    exit_status: int | None = None
    host: str = ""
    ended: float = 0.0  # seconds since 1970
    is_loss: bool = True


def past(run_dir: str) -> tuple[Attempt, ...]:
    """Returns the attempts at a run that were not its last; raises OSError if that cannot be seen.

    What is no record is none.
    """
    folder = _folder(run_dir)
    look_anew(folder.parent, folder)
    try:
        data = json.loads((folder / _RECORD).read_text())
        return tuple(Attempt(**each) for each in data)
    except (FileNotFoundError, ValueError, TypeError):
        return ()


def next_number(run_dir: str) -> int:
    """Returns the number of the next attempt, which none on record has; raises OSError if that cannot be seen."""
    return max((each.number for each in past(run_dir)), default=0) + 1


def on_record(run_dir: str, number: int) -> Attempt | None:
    """Returns an attempt that was put on record, or None if it was not: it is to be the last, or goes on."""
    return next((each for each in past(run_dir) if each.number == number), None)


def add(run_dir: str, attempt: Attempt) -> None:
    """Puts an attempt on record and its output aside, so that the next one does not write over it.

    With this it is decided that there is a next one, whoever dies before the run is staged.
    """
    folder = _folder(run_dir)
    kept = folder / str(attempt.number)
    kept.mkdir(parents=True, exist_ok=True)
    for name in _OUTPUT:
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(os.path.join(run_dir, ".guild", name), kept / name)
    records = [*(each for each in past(run_dir) if each.number != attempt.number), attempt]
    draft = folder / f".{_RECORD}"
    draft.write_text(json.dumps([asdict(each) for each in records]))
    os.replace(draft, folder / _RECORD)


def attempt_for(number: int, cause: str, is_loss: bool, exit_status: int | None, host: str) -> Attempt:
    """Returns an attempt that ended just now."""
    return Attempt(number, cause, exit_status, host, time.time(), is_loss)


def _folder(run_dir: str) -> pathlib.Path:
    return pathlib.Path(run_dir, ".guild", _FOLDER)
