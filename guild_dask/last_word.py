"""What a starter leaves beside its claim at the end of its run, so that any host can read that it is over, and why.

On the scheduler's own host, a run that ends by itself needs no such word: its starter is seen to be gone, and Guild has
recorded its end in the run's own directory.
"""

import contextlib
import enum
import json
import os
import pathlib

from guild_dask.freshness import look_anew

ENDED = ".ended"

# Beside a claim: touched for as long as the starter lives and reaches the home.
BEAT = ".beat"

# Beside a claim, for the starter to see: somebody wants the run to stop.
STOP = ".stop"


class Cause(enum.Enum):
    """Why a run that had started was cut short."""

    STOPPED = "it was stopped"
    SCHEDULER_STOPPED = "its scheduler was stopped"
    KILLED = "the process that started it was killed"
    SIGNAL = "its host ended it"
    WORKER_DIED = "its worker died"
    CUT_OFF = "its host was cut off from the Guild home"
    NODE_LOST = "its host died or was cut off"
    TIME_LIMIT = "it reached its time limit"
    OUT_OF_MEMORY = "out of memory"

    @property
    def is_limit(self) -> bool:
        """Tells whether the run took more than it may."""
        return self in (Cause.TIME_LIMIT, Cause.OUT_OF_MEMORY)

    @property
    def is_loss(self) -> bool:
        """Tells whether the machine, rather than the run or a person, is to blame."""
        return self not in (Cause.STOPPED, Cause.SCHEDULER_STOPPED, Cause.KILLED) and not self.is_limit


def cause_for_words(words: str) -> Cause | None:
    """Returns the cause that these words stand for, or None if they are about something else."""
    return next((cause for cause in Cause if cause.value == words), None)


def write(claim: pathlib.Path, cause: Cause | None, detail: str = "") -> None:
    """Leaves the cause beside a claim, with more about it; None is for a run that ended by itself.

    A home that cannot be written to any more gets no word.
    """
    draft = claim.with_name(draft_name(claim.stem))
    with contextlib.suppress(OSError):
        draft.write_text(json.dumps({"cause": cause.name if cause else None, "detail": detail}))
        os.replace(draft, claim.with_suffix(ENDED))


def draft_name(run_id: str) -> str:
    """Returns what a last word is called until all of it is written; a starter that is killed meanwhile leaves it."""
    return f".{run_id}.ended-draft"


def read(claim: pathlib.Path) -> Cause | None:
    """Returns the cause that was left beside a claim, or None if there is none that can be read."""
    look_anew(claim.parent)
    try:
        return Cause[json.loads(claim.with_suffix(ENDED).read_text())["cause"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def settle(claim: pathlib.Path, cause: Cause) -> Cause:
    """Returns the cause that was left beside a claim; where there is none, leaves that one for whoever comes next."""
    word = read(claim)
    if word is None:
        write(claim, cause)
    return word or cause


def is_over(claim: pathlib.Path) -> bool:
    """Tells whether the starter of a claim has said its last word."""
    look_anew(claim.parent)
    return os.path.exists(claim.with_suffix(ENDED))


def detail(claim: pathlib.Path) -> str:
    """Returns what more is to be said about the cause, if anything."""
    try:
        return str(json.loads(claim.with_suffix(ENDED).read_text()).get("detail", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def ask_to_stop(claim: pathlib.Path, cause: Cause = Cause.STOPPED) -> None:
    """Asks, from any host, for the end of the run that a claim is for. A person's wish comes before a scheduler's."""
    file = claim.with_suffix(STOP)
    if cause is Cause.STOPPED:
        file.open("w").close()  # empty, so that it can be made on a full disk, too
        return
    with contextlib.suppress(FileExistsError), file.open("x") as f:
        f.write(cause.name)


def forget_wish(claim: pathlib.Path) -> None:
    """Takes back what a scheduler asked for that died over it."""
    claim.with_suffix(STOP).unlink(missing_ok=True)


def wish(claim: pathlib.Path) -> Cause | None:
    """Returns why somebody has asked for the run's end, or None if nobody has."""
    look_anew(claim.parent)
    try:
        is_scheduler = claim.with_suffix(STOP).read_text() == Cause.SCHEDULER_STOPPED.name
    except OSError:
        return None
    return Cause.SCHEDULER_STOPPED if is_scheduler else Cause.STOPPED


def is_asked_to_stop(claim: pathlib.Path) -> bool:
    """Tells whether somebody has asked for the run's end."""
    look_anew(claim.parent)
    return os.path.exists(claim.with_suffix(STOP))
