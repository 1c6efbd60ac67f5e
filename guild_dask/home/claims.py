"""The record of who takes which run, as small files in a folder of the Guild home.

A claim has two states, which the suffix of its file shows:

- `RUN.claimed`: a scheduler took the run out of the queue. It has not started, and can be staged again once the
  claim's owner is dead.
- `RUN.started`: the run's own process was about to be started, or was. It must not be started again.

Between them are two more, each for a moment, because a process must rename a claim before it changes it: `RUN.handing`
while the identity of the process that may start the run is written, and `RUN.withdrawn` while the run is restored, to
be staged again.

A claim begins as the run's own STAGED marker, renamed, and becomes that marker again when the run is staged again: a
run is never both staged and claimed. The change from `claimed` to `started` is a rename, too, by the run's starter just
before it starts the process. The first process to rename the file wins, and that works on a full disk, too.
"""

import contextlib
import errno
import os
import pathlib
import signal
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace

from guild_dask.home import end_note, snapshot
from guild_dask.home.claim_record import Claim, claim_for_text
from guild_dask.home.end_note import ENDED, EXITED
from guild_dask.home.errors import raise_if_of_home
from guild_dask.home.outcome import Cause
from guild_dask.home.stop_request import STOP, request_stop
from guild_dask.host import files
from guild_dask.host.files import Path
from guild_dask.host.processes import ProcessIdentity, is_alive

__all__ = ["Claim"]

CLAIMED = ".claimed"
HANDING = ".handing"
WITHDRAWN = ".withdrawn"
STARTED = ".started"

# Lookup order that survives a concurrent rename.
_STATES = (STARTED, CLAIMED, HANDING, CLAIMED, STARTED, WITHDRAWN)

# Beside a claim, while Guild starts the run: what snapshot.py saved of it.
SAVED = ".saved"

# Beside a claim: touched for as long as the starter lives and reaches the home.
HEARTBEAT = ".beat"

# What is known about a run beside its claim. Removed after the claim, which never lies there without it; see strays().
_BESIDE = (SAVED, EXITED, STOP, ENDED)
_ALL = (HEARTBEAT, CLAIMED, HANDING, WITHDRAWN, STARTED, *_BESIDE)


@dataclass(frozen=True)
class Found:
    """A claim in the folder."""

    run_id: str
    claim: Claim | None  # None: it cannot be read
    is_started: bool
    written: int  # when it was last written, in nanoseconds of the file system's clock


def path(folder: pathlib.Path, run_id: str) -> pathlib.Path:
    """Returns the file of a run's claim while the run has not started."""
    return folder / f"{run_id}{CLAIMED}"


def _files(folder: pathlib.Path, run_id: str) -> list[str]:
    """Returns the files in which the claim of a run may be, in the order in which to look for it."""
    return [f"{folder}/{run_id}{ending}" for ending in _STATES]


def take(folder: pathlib.Path, staged: str, claim: Claim) -> None:
    """Turns a run's STAGED marker into a claim; raises OSError, with the run still staged, if that fails."""
    target = path(folder, claim.run_id)
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
    remove(folder, claim.run_id)
    try:
        os.rename(staged, target)
    except OSError as e:
        if e.errno != errno.EXDEV:
            raise
        # The runs are on another file system: for a moment, the run is both staged and claimed.
        write(folder, claim)
        os.unlink(staged)
        return
    try:
        _fill(target, claim)
    except OSError:
        if withdraw(folder, claim.run_id):
            give_back(folder, claim.run_id, staged)
        raise


def _fill(marker: pathlib.Path, claim: Claim) -> None:
    """Writes a claim into the STAGED marker that has become its file; raises FileNotFoundError if it was withdrawn.

    An empty file of its own is filled in place. ext4 brings a file that replaces another to the disk at once, and to
    remove it then takes milliseconds. A marker that is something else, such as a link to a file of the user's, is
    replaced.
    """
    found = os.lstat(marker)
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and not found.st_size:
        files.overwrite(marker, claim.as_text(), os.O_NOFOLLOW)
    else:
        write(marker.parent, claim)


def has_snapshot(folder: pathlib.Path, run_id: str) -> bool:
    """Returns whether the run's records are saved beside its claim, because Guild is about to change them."""
    return files.exists(path(folder, run_id).with_suffix(SAVED))


def withdraw(folder: pathlib.Path, run_id: str) -> bool:
    """Withdraws a claim, so that no process can start the run by it; False if the run has started or is not claimed."""
    withdrawn = path(folder, run_id).with_suffix(WITHDRAWN)

    def move(file: pathlib.Path) -> bool:
        os.rename(file, withdrawn)
        return True

    return files.first([withdrawn.with_suffix(ending) for ending in (CLAIMED, HANDING)], move) or withdrawn.exists()


def give_back(folder: pathlib.Path, run_id: str, staged: str, run: int | None = None) -> None:
    """Turns a withdrawn claim into a STAGED marker again, after its restored snapshot is removed.

    The marker's path may begin at a folder of the run that is open.
    """
    withdrawn = path(folder, run_id).with_suffix(WITHDRAWN)
    withdrawn.with_suffix(SAVED).unlink(missing_ok=True)
    (folder / snapshot.draft_name(run_id)).unlink(missing_ok=True)
    _return(withdrawn, staged, run)
    remove(folder, run_id)


def _return(claim: pathlib.Path, staged: str, run: int | None = None) -> None:
    try:
        os.rename(claim, staged, dst_dir_fd=run)
    except OSError as e:
        if e.errno != errno.EXDEV:
            raise
        files.overwrite(staged, folder=run)


def write(folder: pathlib.Path, claim: Claim) -> pathlib.Path:
    """Writes a claim so that a reader sees all of it or nothing, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    target = path(folder, claim.run_id)
    files.write(target, claim.as_text(), _draft_name(claim.run_id))
    return target


def _draft_name(run_id: str) -> str:
    return f".{run_id}.draft"


def hand_over(folder: pathlib.Path, claim: Claim, owner: ProcessIdentity) -> bool:
    """Makes a process the owner of a claim; False if the claim is gone, or is another scheduler's."""
    claimed = path(folder, claim.run_id)
    handing = claimed.with_suffix(HANDING)
    if not _is_same(files.first([claimed], _read), claim):
        return False
    try:
        os.rename(claimed, handing)
        if _is_same(_read(handing), claim):  # and not another one, made in between
            # In place: a new file would appear beside a claim that was withdrawn.
            with os.fdopen(files.open_file(handing, os.O_RDWR), "r+", encoding="utf-8") as f:
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
    """Returns whether a process owns a claim, started or not; raises OSError if the home cannot be read."""

    def is_same(file: str) -> bool:
        claim = _claim_in(files.content(file))
        return claim is not None and claim.owner == owner

    beside = os.path.splitext(claimed)[0]
    states = (STARTED, CLAIMED, HANDING, CLAIMED, STARTED)
    return files.first([beside + ending for ending in states], is_same) or False


def mark_started(claimed: pathlib.Path, owner: ProcessIdentity | None = None) -> bool:
    """Turns a claim into a started one; False if the claim is gone, or has another owner."""

    def move(file: pathlib.Path) -> bool:
        if owner is not None:
            claim = _read(file)
            if claim is None or claim.owner != owner:
                return False
        os.rename(file, file.with_suffix(STARTED))
        return True

    return files.first([claimed], move) or False


def mark_not_started(claimed: pathlib.Path, owner: ProcessIdentity | None) -> bool:
    """Turns a started claim back, for its owner that could not start the run's process; False if it is not its own."""
    started = claimed.with_suffix(STARTED)
    claim = _read(started)
    if claim is None or claim.owner != owner:
        return False
    os.rename(started, claimed)
    return True


def remove(folder: pathlib.Path, run_id: str) -> None:
    """Removes a run's claim, started or not, and then all files beside it."""
    drafts = (_draft_name(run_id), snapshot.draft_name(run_id), end_note.draft_name(run_id))
    files.remove(folder, (*drafts, *(run_id + ending for ending in _ALL)))


def strays(folder: pathlib.Path) -> list[str]:
    """Returns the runs that have files of a claim here, but no claim."""
    found = [pathlib.PurePath(name) for name in files.names(folder)]
    claimed = {file.stem for file in found if file.suffix in _STATES}
    return sorted({file.stem for file in found if file.suffix in _BESIDE} - claimed)


def give_back_started(folder: pathlib.Path, run_id: str, staged: str) -> None:
    """Turns the claim of a run that started, and is dead, into a STAGED marker again."""
    _return(path(folder, run_id).with_suffix(STARTED), staged)
    remove(folder, run_id)


def last_heartbeat(folder: pathlib.Path, run_id: str) -> float:
    """Returns the time of the starter's last heartbeat or, if there is none, of the claim, in seconds.

    Raises OSError if the heartbeat cannot be read.
    """
    # Only if the file is missing: an unreadable heartbeat is unknown, and not absent.
    with contextlib.suppress(FileNotFoundError):
        return files.modified(path(folder, run_id).with_suffix(HEARTBEAT))
    return written(folder, run_id) / 1e9


def written(folder: pathlib.Path, run_id: str) -> int:
    """Returns when the run's claim was last written, in nanoseconds of the file system's clock; 0 if there is none.

    Raises OSError if the home cannot be read.
    """
    try:
        return files.first(_files(folder, run_id), lambda file: os.lstat(file).st_mtime_ns) or 0
    except OSError as e:
        raise_if_of_home(e)
        return 0


def all_claims(folder: pathlib.Path) -> Iterator[Found]:
    """Yields every claim in the folder; raises OSError if it cannot be read."""
    # Listing the folder has refreshed it.
    listed = map(os.path.splitext, sorted(files.names(folder)))
    for run_id, ending in {run_id: ending for run_id, ending in listed if ending in _STATES}.items():
        # It may have been renamed since the folder was listed.
        possible = (f"{folder}/{run_id}{ending}", *_files(folder, run_id))
        found = next((each for each in map(_found, possible) if each), None)
        if found:
            yield found


def _found(file: str) -> Found | None:
    """Returns the claim in a file, or None if it is not there; raises OSError if the home cannot be read."""
    run_id, ending = os.path.splitext(os.path.basename(file))
    with contextlib.suppress(FileNotFoundError):
        try:
            text, status = files.content_and_status(file)
        except OSError as e:
            raise_if_of_home(e)
            text, status = b"", os.lstat(file)
        return Found(run_id, _claim_in(text), ending == STARTED, status.st_mtime_ns)
    return None


def present(folder: pathlib.Path, run_id: str) -> Found | None:
    """Returns the claim on a run, or None if there is none; raises OSError if the folder cannot be read."""
    return files.first(_files(folder, run_id), _found)


def request_end(folder: pathlib.Path, run_id: str, owner: ProcessIdentity, cause: Cause = Cause.STOPPED) -> None:
    """Requests the end of a run that has started, for a user or a search; raises OSError if that cannot be written."""
    request_stop(path(folder, run_id), cause)
    # The starter polls for stop requests; on this host, a signal makes it react at once.
    if is_alive(owner):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(owner.pid, signal.SIGTERM)


def _read(file: Path) -> Claim | None:
    """Returns the claim in a file, or None if there is none in it; raises OSError if the home cannot be read."""
    try:
        return _claim_in(files.content(file))
    except OSError as e:
        raise_if_of_home(e)
        return None


def _claim_in(text: bytes) -> Claim | None:
    """Returns the claim that a file has, or None if it has something else."""
    try:
        return claim_for_text(text.decode())
    except UnicodeDecodeError:
        return None
