"""Which schedulers are alive on a Guild home, shown by a file that each touches while it lives.

A process on this host is looked up directly. A process on another host is judged by its heartbeat: the time since its
file was last touched, by the clock of the file system, which all hosts share.
"""

import contextlib
import json
import pathlib

from guild_dask.home import layout
from guild_dask.home.claim_record import identity_for_data
from guild_dask.host import files, processes
from guild_dask.host.processes import ProcessIdentity

# Seconds between heartbeats, and without one until a scheduler on another host counts as dead.
INTERVAL = 30.0
SILENCE = 10 * INTERVAL

# Suffixes of the state that publisher.py writes beside a heartbeat, and of its draft.
STATE = ".state"
STATE_DRAFT = ".state-draft"
_DRAFT = ".draft"


class Heartbeat:
    """This scheduler's own heartbeat, and those of others."""

    def __init__(self, home: str, scheduler_id: str, process: ProcessIdentity) -> None:
        self._folder = layout.schedulers_folder(home)
        self._own = layout.heartbeat(home, scheduler_id)
        self.home = home
        self.scheduler_id = scheduler_id
        self.process = process

    @property
    def token(self) -> str:
        """Returns the path of a file that exists for as long as this scheduler does."""
        return str(self._own)

    def renew(self) -> None:
        """Sends a heartbeat. Errors of the home are ignored here: other parts report them."""
        with contextlib.suppress(OSError):
            if not self._own.exists():
                self._folder.mkdir(parents=True, exist_ok=True)
                files.write(self._own, json.dumps(self.process.as_data()), self._own.with_suffix(_DRAFT).name)
            self._own.touch()

    def leave(self) -> None:
        """Removes the heartbeat of this scheduler, which ends."""
        with contextlib.suppress(OSError):
            self._own.unlink(missing_ok=True)

    def is_alive(self, scheduler_id: str, process: ProcessIdentity) -> bool:
        """Returns whether a scheduler is alive: by its process on this host, else by its heartbeat."""
        seen = processes.is_alive(process)
        return self._has_recent_heartbeat(scheduler_id) if seen is None else seen

    def _has_recent_heartbeat(self, scheduler_id: str) -> bool:
        """Returns whether a scheduler's heartbeat is recent, compared with our own, as far as that can be seen."""
        try:
            now = self._own.stat().st_mtime
        except OSError:
            return True  # there is nothing to compare with
        try:
            return now - layout.heartbeat(self.home, scheduler_id).stat().st_mtime < SILENCE
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def now(self) -> float:
        """Returns the time by the file system's clock, which all hosts share; 0 if the home cannot be used."""
        self.renew()
        try:
            return self._own.stat().st_mtime
        except OSError:
            return 0.0

    def sweep(self) -> None:
        """Removes the files of schedulers that are dead."""
        with contextlib.suppress(OSError):
            for path in self._folder.glob("*.json"):
                if path != self._own and self._is_of_dead(path):
                    self._remove(path)
            # A scheduler that died at its first heartbeat left a draft. A recent draft may still be in the making.
            for path in self._folder.iterdir():
                is_old = self._own.stat().st_mtime - path.stat().st_mtime > SILENCE
                if is_old and not path.with_suffix(".json").exists():
                    path.unlink(missing_ok=True)

    def _is_of_dead(self, heartbeat: pathlib.Path) -> bool:
        """Returns whether the scheduler that a heartbeat is of is known to be dead; True for what is no heartbeat."""
        try:
            process = identity_for_data(files.read_json(heartbeat))
            return process is None or not self.is_alive(heartbeat.stem, process)
        except ValueError:
            return True
        except OSError:
            return False  # it may be alive

    def _remove(self, heartbeat: pathlib.Path) -> None:
        """Removes all files of a dead scheduler, its heartbeat last, so that an interrupted removal is repeated."""
        for ending in (STATE_DRAFT, STATE, _DRAFT):
            heartbeat.with_suffix(ending).unlink(missing_ok=True)
        heartbeat.unlink(missing_ok=True)
