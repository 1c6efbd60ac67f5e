"""What a starter leaves beside its claim at the end of its run, so that any host can read that it is over, and why.

On the scheduler's own host, a run that ends by itself needs no such word: its starter is seen to be gone, and Guild has
recorded its end in the run's own directory.
"""

import contextlib
import json
import pathlib
from typing import Any

from guild_dask.home.outcome import NO_EXCESS, Cause, Excess, Note, cause_for_name
from guild_dask.host import files
from guild_dask.plan import records

ENDED = ".ended"

# Beside a claim: touched for as long as the starter lives and reaches the home.
BEAT = ".beat"

# Beside a claim, for the starter to see: somebody wants the run to stop.
STOP = ".stop"

_CAUSE = "cause"
_EXCESS = "excess"


def write(claim: pathlib.Path, cause: Cause | None, excess: Excess = NO_EXCESS) -> None:
    """Leaves the name of the cause beside a claim, with its numbers; None is for a run that ended by itself.

    A home that cannot be written to any more gets no word.
    """
    data = {_CAUSE: cause.value if cause else None, _EXCESS: records.data_for(excess)}
    with contextlib.suppress(OSError):
        files.write(claim.with_suffix(ENDED), json.dumps(data), draft_name(claim.stem))


def draft_name(run_id: str) -> str:
    """Returns what a last word is called until all of it is written; a starter that is killed meanwhile leaves it."""
    return f".{run_id}.ended-draft"


def note(claim: pathlib.Path) -> Note | None:
    """Returns the note beside a claim, or None if there is none. What cannot be read of it counts as empty."""
    try:
        text = files.read_text(claim.with_suffix(ENDED))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return Note(None)
    data = _data(text)
    try:
        excess = records.value_for(Excess, data.get(_EXCESS))
    except ValueError:
        excess = NO_EXCESS
    return Note(cause_for_name(data.get(_CAUSE)), excess)


def _data(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def read(claim: pathlib.Path) -> Cause | None:
    """Returns the cause that was left beside a claim, or None if there is none that can be read."""
    found = note(claim)
    return found.cause if found else None


def excess(claim: pathlib.Path) -> Excess:
    """Returns the numbers that were left beside a claim with the cause; zeros where there are none."""
    found = note(claim)
    return found.excess if found else NO_EXCESS


def is_over(claim: pathlib.Path) -> bool:
    """Tells whether the starter of a claim has said its last word."""
    return files.exists(claim.with_suffix(ENDED))


def ask_to_stop(claim: pathlib.Path, cause: Cause = Cause.STOPPED) -> None:
    """Asks, from any host, for the end of the run that a claim is for. A person's wish comes before a scheduler's."""
    file = claim.with_suffix(STOP)
    if cause is Cause.STOPPED:
        file.open("w").close()  # empty, so that it can be made on a full disk, too
        return
    with contextlib.suppress(FileExistsError), file.open("x") as f:
        f.write(cause.value)


def forget_wish(claim: pathlib.Path) -> None:
    """Takes back what a scheduler asked for that died over it."""
    claim.with_suffix(STOP).unlink(missing_ok=True)


def wish(claim: pathlib.Path) -> Cause | None:
    """Returns why somebody has asked for the run's end, or None if nobody has."""
    try:
        wanted = cause_for_name(files.read_text(claim.with_suffix(STOP)))
    except OSError:
        return None
    return wanted if wanted is Cause.SCHEDULER_STOPPED else Cause.STOPPED


def is_asked_to_stop(claim: pathlib.Path) -> bool:
    """Tells whether somebody has asked for the run's end."""
    return files.exists(claim.with_suffix(STOP))
