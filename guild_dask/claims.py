"""The record of who takes which run, as small files in a folder of the Guild home.

A claim goes through two states, told by the ending of its file's name:

- `RUN.claimed`: a scheduler took the run out of the queue. It has not started, and can be staged again once the
  claim's owner is dead.
- `RUN.started`: the run's own process was about to be started, or was. It must not be started again.

A claim begins as the run's own STAGED marker, moved here, and becomes that marker again when the run is staged again: a
run is never both staged and claimed. The change from `claimed` to `started` is a rename, too, done by the run's starter
in the instant before it starts the process: whoever moves the file first has the say, even when the disk is full.
"""

import contextlib
import errno
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from guild_dask.guard import BEAT
from guild_dask.last_word import ENDED, STOP
from guild_dask.processes import ProcessIdentity, identity_for_data

CLAIMED = ".claimed"
STARTED = ".started"

# Beside a claim, while Guild starts the run: what snapshot.py keeps of it.
SAVED = ".saved"


@dataclass(frozen=True)
class Claim:
    """Who claimed a run, for which attempt, and which process starts it."""

    run_id: str
    scheduler_id: str  # the scheduler's run id
    scheduler: ProcessIdentity
    owner: ProcessIdentity  # the process that may start the run: the scheduler, and then the run's starter
    attempt: int = 1  # at the run, with those of other schedulers before us
    asks: Mapping[str, float] = field(default_factory=dict)
    serial: int = 0  # another for each claim of a scheduler
    worker: str = ""
    devices: Mapping[str, float] = field(default_factory=dict)  # the share that the run has of each
    lease: float = 0.0  # the starter ends the run when it could not beat for so many seconds; 0: it does not beat

    def as_data(self) -> dict[str, Any]:
        return {
            "run": self.run_id,
            "scheduler_id": self.scheduler_id,
            "scheduler": self.scheduler.as_data(),
            "owner": self.owner.as_data(),
            "attempt": self.attempt,
            "asks": {name: float(amount) for name, amount in self.asks.items()},
            "serial": self.serial,
            "worker": self.worker,
            "devices": dict(self.devices),
            "lease": self.lease,
        }


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


def take(folder: pathlib.Path, staged: str, claim: Claim) -> None:
    """Makes a run's STAGED marker a claim; raises OSError, with the run staged as before, if that cannot be done."""
    target = path(folder, claim.run_id)
    folder.mkdir(parents=True, exist_ok=True)
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
        give_back(folder, claim.run_id, staged)
        raise


def give_back(folder: pathlib.Path, run_id: str, staged: str) -> None:
    """Makes a claim a STAGED marker again. What was kept of the run has been put back by now, and goes first."""
    claimed = path(folder, run_id)
    claimed.with_suffix(SAVED).unlink(missing_ok=True)
    _draft(folder, run_id).unlink(missing_ok=True)
    try:
        os.rename(claimed, staged)
    except OSError as e:
        if e.errno not in (errno.EXDEV, errno.ENOENT):
            raise
        open(staged, "w").close()
    remove(folder, run_id)


def write(folder: pathlib.Path, claim: Claim) -> pathlib.Path:
    """Writes what a claim says so that a reader sees all of it or nothing, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    target = path(folder, claim.run_id)
    draft = _draft(folder, claim.run_id)
    try:
        draft.write_text(json.dumps(claim.as_data()))
        os.replace(draft, target)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return target


def _draft(folder: pathlib.Path, run_id: str) -> pathlib.Path:
    return folder / _draft_name(run_id)


def _draft_name(run_id: str) -> str:
    return f".{run_id}.draft"


def hand_over(folder: pathlib.Path, claim: Claim, owner: ProcessIdentity) -> bool:
    """Makes a process the owner of a claim; False if the claim is not there any more, or is another scheduler's."""
    present = _read(path(folder, claim.run_id))
    if present is None or (present.scheduler_id, present.serial) != (claim.scheduler_id, claim.serial):
        return False
    write(folder, replace(claim, owner=owner))
    return True


def mark_started(claimed: pathlib.Path, owner_pid: int | None = None) -> bool:
    """Turns a claim into a started one; False if there is no such claim any more, or it is not that owner's."""
    if owner_pid is not None:
        claim = _read(claimed)
        if claim is None or claim.owner.pid != owner_pid:
            return False
    try:
        os.rename(claimed, claimed.with_suffix(STARTED))
    except FileNotFoundError:
        return False
    return True


def remove(folder: pathlib.Path, run_id: str) -> None:
    """Removes a run's claim, started or not, with all that lies beside it. The claim goes last."""
    for name in (_draft_name(run_id), *(run_id + ending for ending in (SAVED, BEAT, STOP, ENDED, CLAIMED, STARTED))):
        try:
            os.unlink(f"{folder}/{name}")
        except FileNotFoundError:
            continue


def give_back_started(folder: pathlib.Path, run_id: str, staged: str) -> None:
    """Makes the claim of a run that started, and is dead, a STAGED marker again."""
    started = path(folder, run_id).with_suffix(STARTED)
    try:
        os.rename(started, staged)
    except OSError as e:
        if e.errno not in (errno.EXDEV, errno.ENOENT):
            raise
        open(staged, "w").close()
    remove(folder, run_id)


def last_beat(folder: pathlib.Path, run_id: str) -> float:
    """Returns when the run's starter last showed that it lives, or else when its claim was last written, in seconds."""
    beat = path(folder, run_id).with_suffix(BEAT)
    with contextlib.suppress(OSError):
        return beat.stat().st_mtime
    return written(folder, run_id) / 1e9


def is_started(folder: pathlib.Path, run_id: str) -> bool:
    """Tells whether the run's process was started, or about to be, under its present claim."""
    return path(folder, run_id).with_suffix(STARTED).exists()


def written(folder: pathlib.Path, run_id: str) -> int:
    """Returns when the run's claim was last written, in nanoseconds of the file system's clock; 0 if there is none."""
    for file in (path(folder, run_id).with_suffix(STARTED), path(folder, run_id)):
        with contextlib.suppress(OSError):
            return file.stat().st_mtime_ns
    return 0


def all_claims(folder: pathlib.Path) -> Iterator[Found]:
    """Yields every claim in the folder."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    for name in names:
        file = folder / name
        if file.suffix in (CLAIMED, STARTED) and not name.startswith("."):
            found = _found(file) or (_found(file.with_suffix(STARTED)) if file.suffix == CLAIMED else None)
            if found:
                yield found


def _found(file: pathlib.Path) -> Found | None:
    """Returns the claim in a file, or None if it is not there: the run may have started since the folder was listed."""
    try:
        return Found(file.stem, _read(file), file.suffix == STARTED, file.stat().st_mtime_ns)
    except FileNotFoundError:
        return None


def present(folder: pathlib.Path, run_id: str) -> Claim | None:
    """Returns the claim on a run, or None if there is none that can be read."""
    for file in (path(folder, run_id), path(folder, run_id).with_suffix(STARTED)):
        claim = _read(file)
        if claim:
            return claim
    return None


def _read(file: pathlib.Path) -> Claim | None:
    try:
        data = json.loads(file.read_text())
        owner = identity_for_data(data["owner"])
        scheduler = identity_for_data(data["scheduler"])
        asks = {str(name): float(amount) for name, amount in data["asks"].items()}
        if owner is None or scheduler is None:
            return None
        return Claim(
            run_id=str(data["run"]),
            scheduler_id=str(data["scheduler_id"]),
            scheduler=scheduler,
            owner=owner,
            attempt=int(data["attempt"]),
            asks=asks,
            serial=int(data.get("serial", 0)),
            worker=str(data.get("worker", "")),
            devices={str(name): float(share) for name, share in data.get("devices", {}).items()},
            lease=float(data.get("lease", 0.0)),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
