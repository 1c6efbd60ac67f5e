"""The record of who takes which run, as small files in a folder of the Guild home.

A claim goes through two states, told by the ending of its file's name:

- `RUN.claimed`: a scheduler took the run out of the queue. It has not started, and can be staged again once the
  claim's owner is dead.
- `RUN.started`: the run's own process was about to be started, or was. It must not be started again.

On the way there are two more, each for a moment, so that whoever wants to change a claim has to move it first:
`RUN.handing` while the process that may start the run is written into it, and `RUN.withdrawn` while the run is made
what it was before, to be staged again.

A claim begins as the run's own STAGED marker, moved here, and becomes that marker again when the run is staged again: a
run is never both staged and claimed. The change from `claimed` to `started` is a rename, too, done by the run's starter
in the instant before it starts the process: whoever moves the file first has the say, even when the disk is full.
"""

import contextlib
import errno
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from guild_dask.home import end_note
from guild_dask.home.claim import Claim, claim_for_text
from guild_dask.home.end_note import ENDED
from guild_dask.home.stop_request import STOP
from guild_dask.host import files
from guild_dask.host.processes import ProcessIdentity, is_alive

__all__ = ["Claim"]

CLAIMED = ".claimed"
HANDING = ".handing"
WITHDRAWN = ".withdrawn"
STARTED = ".started"

# In an order in which a claim that is moved meanwhile is found all the same.
_STATES = (STARTED, CLAIMED, HANDING, CLAIMED, STARTED, WITHDRAWN)

# Beside a claim, while Guild starts the run: what snapshot.py keeps of it.
SAVED = ".saved"

# Beside a claim: touched for as long as the starter lives and reaches the home.
HEARTBEAT = ".beat"

# In an order in which a claim is never without what was said of its end; see strays().
_ALL = (SAVED, HEARTBEAT, CLAIMED, HANDING, WITHDRAWN, STARTED, STOP, ENDED)


@dataclass(frozen=True)
class Found:
    """A claim as it lies in the folder."""

    run_id: str
    claim: Claim | None  # None: what is written there is no claim
    is_started: bool
    written: int  # when, in nanoseconds of the file system's clock


def path(folder: pathlib.Path, run_id: str) -> pathlib.Path:
    """Returns where the claim of a run lies while the run has not started."""
    return folder / f"{run_id}{CLAIMED}"


def _files(folder: pathlib.Path, run_id: str) -> list[pathlib.Path]:
    """Returns the files in which the claim of a run may be, in the order in which to look for it."""
    return [path(folder, run_id).with_suffix(ending) for ending in _STATES]


def take(folder: pathlib.Path, staged: str, claim: Claim) -> None:
    """Makes a run's STAGED marker a claim; raises OSError, with the run staged as before, if that cannot be done."""
    target = path(folder, claim.run_id)
    folder.mkdir(parents=True, exist_ok=True)
    if _goes_on(folder, claim.run_id, staged):
        raise FileExistsError(errno.EEXIST, "it was staged while it runs", str(target))
    remove(folder, claim.run_id)
    try:
        os.rename(staged, target)
    except OSError as e:
        if e.errno != errno.EXDEV:
            raise
        # Runs on a file system of their own: there is a moment in which the run is staged and claimed.
        write(folder, claim)
        os.unlink(staged)
        return
    try:
        write(folder, claim)
    except OSError:
        if withdraw(folder, claim.run_id):
            give_back(folder, claim.run_id, staged)
        raise


def _goes_on(folder: pathlib.Path, run_id: str, staged: str) -> bool:
    """Tells whether a run that somebody staged runs all the same: its starter is seen, or has beaten since."""
    found = files.first([path(folder, run_id).with_suffix(STARTED)], _found)
    if found is None or found.claim is None:
        return False
    lives = is_alive(found.claim.owner)
    if lives is None and found.claim.lease:
        return last_heartbeat(folder, run_id) > os.stat(staged).st_mtime
    return bool(lives)


def withdraw(folder: pathlib.Path, run_id: str) -> bool:
    """Takes a claim from whoever might start the run; False if the run has started, or is not claimed."""
    withdrawn = path(folder, run_id).with_suffix(WITHDRAWN)

    def move(file: pathlib.Path) -> bool:
        os.rename(file, withdrawn)
        return True

    return files.first([withdrawn.with_suffix(ending) for ending in (CLAIMED, HANDING)], move) or withdrawn.exists()


def give_back(folder: pathlib.Path, run_id: str, staged: str) -> None:
    """Makes a withdrawn claim a STAGED marker again. What was kept of the run has been put back, and goes first."""
    withdrawn = path(folder, run_id).with_suffix(WITHDRAWN)
    withdrawn.with_suffix(SAVED).unlink(missing_ok=True)
    (folder / _draft_name(run_id)).unlink(missing_ok=True)
    _return(withdrawn, staged)
    remove(folder, run_id)


def _return(claim: pathlib.Path, staged: str) -> None:
    try:
        os.rename(claim, staged)
    except OSError as e:
        if e.errno != errno.EXDEV:
            raise
        open(staged, "w").close()


def write(folder: pathlib.Path, claim: Claim) -> pathlib.Path:
    """Writes what a claim says so that a reader sees all of it or nothing, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    target = path(folder, claim.run_id)
    files.write(target, claim.as_text(), _draft_name(claim.run_id))
    return target


def _draft_name(run_id: str) -> str:
    return f".{run_id}.draft"


def hand_over(folder: pathlib.Path, claim: Claim, owner: ProcessIdentity) -> bool:
    """Makes a process the owner of a claim; False if the claim is not there any more, or is another scheduler's."""
    claimed = path(folder, claim.run_id)
    handing = claimed.with_suffix(HANDING)
    if not _is_same(files.first([claimed], _read), claim):
        return False
    try:
        os.rename(claimed, handing)
        if _is_same(_read(handing), claim):  # and not one that was made in between
            with open(handing, "r+", encoding="utf-8") as f:  # a new file would stand beside a claim that was withdrawn
                f.write(replace(claim, owner=owner).as_text())
                f.truncate()
        os.rename(handing, claimed)
    except FileNotFoundError:
        return False
    return is_owned_by(claimed, owner)


def _is_same(found: Claim | None, claim: Claim) -> bool:
    mine = (claim.scheduler_id, claim.scheduler, claim.serial)
    return found is not None and (found.scheduler_id, found.scheduler, found.serial) == mine


def is_owned_by(claimed: pathlib.Path, owner: ProcessIdentity) -> bool:
    """Tells whether a claim is that process's, started or not; raises OSError if the home is out of reach."""

    def is_same(file: pathlib.Path) -> bool:
        claim = claim_for_text(file.read_text())
        return claim is not None and claim.owner == owner

    return files.first([claimed.with_suffix(ending) for ending in (STARTED, CLAIMED, STARTED)], is_same) or False


def mark_started(claimed: pathlib.Path, owner: ProcessIdentity | None = None) -> bool:
    """Turns a claim into a started one; False if there is no such claim any more, or it is not that owner's."""

    def move(file: pathlib.Path) -> bool:
        if owner is not None:
            claim = _read(file)
            if claim is None or claim.owner != owner:
                return False
        os.rename(file, file.with_suffix(STARTED))
        return True

    return files.first([claimed], move) or False


def remove(folder: pathlib.Path, run_id: str) -> None:
    """Removes a run's claim, started or not, with all that lies beside it. What was said of its end goes last."""
    drafts = (_draft_name(run_id), end_note.draft_name(run_id))
    files.remove(folder, (*drafts, *(run_id + ending for ending in _ALL)))


def strays(folder: pathlib.Path) -> list[str]:
    """Returns the runs of which something is left here that was said of their end, and perhaps no claim."""
    found = [pathlib.PurePath(name) for name in files.names(folder) if not name.startswith(".")]
    claimed = {file.stem for file in found if file.suffix in _STATES}
    return sorted({file.stem for file in found if file.suffix in (STOP, ENDED)} - claimed)


def give_back_started(folder: pathlib.Path, run_id: str, staged: str) -> None:
    """Makes the claim of a run that started, and is dead, a STAGED marker again."""
    _return(path(folder, run_id).with_suffix(STARTED), staged)
    remove(folder, run_id)


def last_heartbeat(folder: pathlib.Path, run_id: str) -> float:
    """Returns when the run's starter last showed that it lives, or else when its claim was last written, in seconds.

    Raises OSError if that cannot be seen.
    """
    # Only where there is none: a heartbeat that cannot be seen now may have been made all the same.
    with contextlib.suppress(FileNotFoundError):
        return files.modified(path(folder, run_id).with_suffix(HEARTBEAT))
    return written(folder, run_id) / 1e9


def written(folder: pathlib.Path, run_id: str) -> int:
    """Returns when the run's claim was last written, in nanoseconds of the file system's clock; 0 if there is none."""
    with contextlib.suppress(OSError):
        return files.first(_files(folder, run_id), lambda file: file.stat().st_mtime_ns) or 0
    return 0


def all_claims(folder: pathlib.Path) -> Iterator[Found]:
    """Yields every claim in the folder; raises OSError if it cannot be read."""
    # Listing the folder has refreshed it.
    listed = (folder / name for name in sorted(files.names(folder)) if not name.startswith("."))
    for run_id, file in {file.stem: file for file in listed if file.suffix in _STATES}.items():
        # It may have been moved since the folder was listed.
        found = next((each for each in map(_found, (file, *_files(folder, run_id))) if each), None)
        if found:
            yield found


def _found(file: pathlib.Path) -> Found | None:
    """Returns the claim in a file, or None if it is not there."""
    try:
        return Found(file.stem, _read(file), file.suffix == STARTED, file.stat().st_mtime_ns)
    except FileNotFoundError:
        return None


def present(folder: pathlib.Path, run_id: str) -> Found | None:
    """Returns what there is of a claim on a run, or None if nobody has one; raises OSError if that cannot be seen."""
    return files.first(_files(folder, run_id), _found)


def _read(file: pathlib.Path) -> Claim | None:
    try:
        return claim_for_text(file.read_text())
    except (OSError, UnicodeDecodeError):
        return None
