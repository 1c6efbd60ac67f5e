"""What a starter leaves beside its claim at the end of its run, so that any host can read that it is over.

The exit code comes first, as soon as the operation's process has exited by itself: whatever happens to the starter and
to processes that the operation left behind, the run has ended that way. The note comes last.

On the scheduler's own host, a run that ends by itself needs no note: the scheduler sees that its starter is gone, and
Guild has recorded its end in the run's own directory.
"""

import contextlib
import json
import pathlib
from dataclasses import dataclass
from typing import Any

from guild_dask.home.errors import raise_if_of_home
from guild_dask.home.outcome import NO_EXCESS, Cause, Excess, Note, cause_for_name
from guild_dask.host import files
from guild_dask.host.processes import ProcessIdentity
from guild_dask.plan import records

ENDED = ".ended"
EXITED = ".exited"

_CAUSE = "cause"
_EXCESS = "excess"


@dataclass(frozen=True)
class Exit:
    """The exit code of an operation, and the starter that saw it: the file may be beside a later claim."""

    code: int
    starter: ProcessIdentity


def write_exit(claim: pathlib.Path, seen: Exit) -> None:
    """Leaves the exit code of the operation beside a claim. A home that cannot be written to any more gets none."""
    # In one write, without a draft: it is read when the starter is dead, and what is not complete counts as missing.
    with contextlib.suppress(OSError):
        files.overwrite(claim.with_suffix(EXITED), json.dumps(records.data_for(seen)))


def read_exit(claim: pathlib.Path, starter: ProcessIdentity) -> int | None:
    """Returns the exit code that a starter left beside a claim; None if there is none of this starter.

    Raises OSError if the home, or this host, does not let it be read.
    """
    try:
        seen = records.value_for(Exit, files.read_json(claim.with_suffix(EXITED), levels=1))
    except ValueError:
        return None
    except OSError as e:
        raise_if_of_home(e)
        return None
    return seen.code if seen.starter == starter else None


def write(claim: pathlib.Path, cause: Cause | None, excess: Excess = NO_EXCESS) -> None:
    """Leaves the name of the cause beside a claim, with its numbers; None is for a run that ended by itself.

    A home that cannot be written to any more gets no note.
    """
    data = {_CAUSE: cause.value if cause else None, _EXCESS: records.data_for(excess)}
    with contextlib.suppress(OSError):
        files.write(claim.with_suffix(ENDED), json.dumps(data), draft_name(claim.stem))


def draft_name(run_id: str) -> str:
    """Returns the name of a note until all of it is written; a starter that is killed meanwhile leaves the draft."""
    return f".{run_id}.ended-draft"


def read(claim: pathlib.Path) -> Note | None:
    """Returns the note beside a claim, or None if there is none. A malformed note counts as an empty one.

    Raises OSError if the home, or this host, does not let it be read: there may be none, and the run may go on.
    """
    try:
        text = files.read_text(claim.with_suffix(ENDED))
    except FileNotFoundError:
        return None
    except ValueError:
        return Note(None)
    except OSError as e:
        raise_if_of_home(e)
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
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
