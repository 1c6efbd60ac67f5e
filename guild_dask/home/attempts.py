"""The attempts at a run that are over, recorded in its own directory, with their output.

Only attempts in which the run's process was started count. The record is deleted and moved with the run.
"""

import contextlib
import json
import os
import shutil
import time
from dataclasses import dataclass
from typing import Any

from guild_dask.home import layout
from guild_dask.home.outcome import Cause, cause_for_name
from guild_dask.host import files
from guild_dask.plan import records

_RECORD = "record.json"
_CAUSE = "cause"


@dataclass(frozen=True)
class Attempt:
    """One attempt that is over, and was not the last."""

    number: int
    cause: Cause | None = None  # what cut it short; None: it failed by itself, or the cause is unknown to this version
    exit_status: int | None = None
    host: str = ""
    ended: float = 0.0  # seconds since 1970
    is_loss: bool = True


def past(run_dir: str) -> tuple[Attempt, ...]:
    """Returns the attempts at a run that were not its last; raises OSError if the record cannot be opened.

    An unreadable record counts as empty.
    """
    try:
        data = json.loads(files.read_text(layout.attempts(run_dir) / _RECORD, levels=2))
        return tuple(map(_attempt, data))
    except (FileNotFoundError, ValueError, TypeError):
        return ()


def _attempt(data: dict[str, Any]) -> Attempt:
    cause = cause_for_name(data.get(_CAUSE)) if isinstance(data, dict) else None
    return records.value_for(Attempt, {**data, _CAUSE: cause.value if cause else None})


def next_number(run_dir: str) -> int:
    """Returns the number of the next attempt, above all on record; raises OSError if the record cannot be opened."""
    return max((each.number for each in past(run_dir)), default=0) + 1


def on_record(run_dir: str, number: int) -> Attempt | None:
    """Returns a recorded attempt, or None if it is not on record: it is the last one, or goes on."""
    return next((each for each in past(run_dir) if each.number == number), None)


def add(run_dir: str, attempt: Attempt) -> None:
    """Records an attempt and copies its output, so that the next attempt does not overwrite it.

    The record decides that there is a next attempt, even if the scheduler dies before it has staged the run.
    """
    folder = layout.attempts(run_dir)
    kept = folder / str(attempt.number)
    kept.mkdir(parents=True, exist_ok=True)
    for file in (layout.output(run_dir), layout.output_index(run_dir)):
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(file, kept / os.path.basename(file))
    over = [*(each for each in past(run_dir) if each.number != attempt.number), attempt]
    files.write(folder / _RECORD, json.dumps([records.data_for(each) for each in over]))


def attempt_for(number: int, cause: Cause | None, exit_status: int | None, host: str) -> Attempt:
    """Returns an attempt that ended just now."""
    return Attempt(number, cause, exit_status, host, time.time(), cause is not None and cause.is_loss)
