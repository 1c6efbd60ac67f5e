"""The attempts at a run that are over, recorded in its own directory, with their output.

Only attempts in which the run's process was started count. The record is deleted and moved with the run.
"""

import contextlib
import json
import os
import time
from dataclasses import dataclass
from typing import Any

from guild_dask.home import layout, run_directory, run_info
from guild_dask.home.outcome import Cause, cause_for_name
from guild_dask.host import files
from guild_dask.plan import records

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
    is_final: bool = False  # the run had ended with it, and a person staged the run again


def past(run_dir: str) -> tuple[Attempt, ...]:
    """Returns the attempts at a run that were not its last; raises OSError if the record cannot be opened.

    An unreadable record counts as empty.
    """
    try:
        data = files.read_json(layout.attempts_record(run_dir), levels=2)
        return tuple(map(_attempt, data))
    except (FileNotFoundError, ValueError, TypeError):
        return ()


def _attempt(data: dict[str, Any]) -> Attempt:
    cause = cause_for_name(data.get(_CAUSE)) if isinstance(data, dict) else None
    return records.value_for(Attempt, {**data, _CAUSE: cause.value if cause else None})


def counted(run_dir: str) -> tuple[Attempt, ...]:
    """Returns the attempts that count as retries: those since a person last staged the run again."""
    over = past(run_dir)
    last = max((index for index, each in enumerate(over) if each.is_final), default=-1)
    return over[last + 1 :]


def number_for_claim(run_dir: str) -> int:
    """Returns the number of the attempt that a claim on a staged run is for; raises OSError as past() does.

    A run that a person staged again has the end of its last attempt on it, which is recorded when the run starts.
    """
    return next_number(run_dir) + run_directory.has_end(run_dir)


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
    output, kept = layout.output(run_dir), layout.attempt_output(run_dir, attempt.number)
    os.makedirs(os.path.dirname(kept), exist_ok=True)
    for file, copy in ((output, kept), (layout.index_of(output), layout.index_of(kept))):
        with contextlib.suppress(FileNotFoundError):
            files.copy(file, copy)
    over = [*(each for each in past(run_dir) if each.number != attempt.number), attempt]
    files.write(layout.attempts_record(run_dir), json.dumps([records.data_for(each) for each in over]))


def keep_former(run_dir: str, number: int) -> None:
    """Records the end that a run still has when it starts, as the attempt before `number`, and removes it.

    Guild leaves it there if a person stages the run again: it would show the run as ended while it runs.
    """
    if not run_directory.has_end(run_dir):
        return
    with contextlib.suppress(OSError):
        if number > 1 and not on_record(run_dir, number - 1):
            add(run_dir, _former(run_dir, number - 1))
    run_directory.forget_end(run_dir)


def _former(run_dir: str, number: int) -> Attempt:
    """Returns the attempt that ended last, from the run's own records."""
    facts = run_info.facts(run_dir)
    cause = cause_for_name(run_info.cause_in(facts)[0])
    return Attempt(
        number,
        cause,
        run_directory.exit_status(run_dir),
        str(facts.get("host") or ""),
        run_directory.recorded_seconds(run_dir, "stopped") or 0.0,
        cause is not None and cause.is_loss,
        is_final=True,
    )


def attempt_for(number: int, cause: Cause | None, exit_status: int | None, host: str) -> Attempt:
    """Returns an attempt that ended just now."""
    return Attempt(number, cause, exit_status, host, time.time(), cause is not None and cause.is_loss)
