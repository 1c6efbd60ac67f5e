"""Which schedulers are at work on a Guild home, told by a file that each touches as long as it lives.

A process on this host can be looked at directly. For one on another host its heartbeat has to do: the time since its
file was last touched, by the clock of the file system, which all hosts share.
"""

import contextlib
import json
import pathlib

from guild_dask.home import layout
from guild_dask.home.claim import identity_for_data
from guild_dask.host import files, processes
from guild_dask.host.processes import ProcessIdentity

# Seconds between heartbeats, and without one until a scheduler on another host is taken for dead.
BEAT = 30.0
SILENCE = 10 * BEAT

# What publisher.py writes beside a heartbeat ends with this; and with that, until all of it is written.
STATE = ".state"
STATE_DRAFT = ".state-draft"
_DRAFT = ".draft"


class Presence:
    """This scheduler's own heartbeat, and those of others."""

    def __init__(self, home: str, scheduler_id: str, process: ProcessIdentity) -> None:
        self._folder = layout.schedulers_folder(home)
        self._own = self._folder / f"{scheduler_id}.json"
        self.home = home
        self.scheduler_id = scheduler_id
        self.process = process

    @property
    def token(self) -> str:
        """Returns the path of a file that is there as long as this scheduler is."""
        return str(self._own)

    def beat(self) -> None:
        """Shows that this scheduler lives. A home that cannot be written to is for others to complain about."""
        with contextlib.suppress(OSError):
            if not self._own.exists():
                self._folder.mkdir(parents=True, exist_ok=True)
                files.write(self._own, json.dumps(self.process.as_data()), self._own.with_suffix(_DRAFT).name)
            self._own.touch()

    def leave(self) -> None:
        """Takes the heartbeat away, after the last one."""
        with contextlib.suppress(OSError):
            self._own.unlink(missing_ok=True)

    def is_alive(self, scheduler_id: str, process: ProcessIdentity) -> bool:
        """Tells whether a scheduler lives, as far as can be seen from here."""
        seen = processes.is_alive(process)
        return self._is_heard(scheduler_id) if seen is None else seen

    def _is_heard(self, scheduler_id: str) -> bool:
        """Tells whether a scheduler's heartbeat is recent, compared with our own."""
        try:
            now = self._own.stat().st_mtime
            last = (self._folder / f"{scheduler_id}.json").stat().st_mtime
        except OSError:
            # Without a heartbeat of our own there is nothing to compare with; without one of its own, it is gone.
            return not self._own.exists()
        return now - last < SILENCE

    def now(self) -> float:
        """Returns the time by the file system's clock, which all hosts share; 0 if it cannot be told."""
        self.beat()
        try:
            return self._own.stat().st_mtime
        except OSError:
            return 0.0

    def sweep(self) -> None:
        """Removes the files of schedulers that are dead."""
        with contextlib.suppress(OSError):
            for path in self._folder.glob("*.json"):
                process = _read(path)
                if path != self._own and (process is None or not self.is_alive(path.stem, process)):
                    self._remove(path)
            # One that died at its first heartbeat has only begun to write it; one that lives may be about to end that.
            for path in self._folder.iterdir():
                is_old = self._own.stat().st_mtime - path.stat().st_mtime > SILENCE
                if is_old and not path.with_suffix(".json").exists():
                    path.unlink(missing_ok=True)

    def _remove(self, heartbeat: pathlib.Path) -> None:
        """Removes all that a dead scheduler left here, its heartbeat last: whoever dies meanwhile has left that."""
        for ending in (STATE_DRAFT, STATE, _DRAFT):
            heartbeat.with_suffix(ending).unlink(missing_ok=True)
        heartbeat.unlink(missing_ok=True)


def _read(path: pathlib.Path) -> ProcessIdentity | None:
    try:
        return identity_for_data(json.loads(path.read_text()))
    except (OSError, ValueError):
        return None
