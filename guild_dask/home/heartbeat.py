"""Which schedulers are alive on a Guild home, shown by a file that each touches while it lives.

A process on this host is looked up directly. A process on another host is judged by its heartbeat: the time since its
file was last touched, by the clock of the file system, which all hosts share. That clock may be set forward, which must
not make the living look silent: so it counts no faster than the monotonic clock of this host.
"""

import contextlib
import json
import math
import os
import pathlib
import tempfile
import time
from collections import deque
from collections.abc import Callable

from guild_dask.home import layout
from guild_dask.home.claim_record import identity_for_data
from guild_dask.host import files, processes
from guild_dask.host.processes import ProcessIdentity

# Seconds between heartbeats, and without one until a scheduler on another host counts as dead.
INTERVAL = 30.0
SILENCE = 10 * INTERVAL

# Seconds for which a step of the file system's clock is remembered. Later, every heartbeat was sent after the step.
_MEMORY = 3600.0

# How the name of a heartbeat ends until all of it is written.
_DRAFT = ".draft"


def counts_as_alive(lives: bool | None, silent: float) -> bool:
    """Returns whether a scheduler is alive: by its process or, where that cannot be seen, by its silence. Pure."""
    return silent < SILENCE if lives is None else lives


def file_system_time(folder: pathlib.Path) -> float:
    """Returns the time by the clock of a folder's file system, or by that of this host if nothing can be written."""
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".time-") as f:
            return os.fstat(f.fileno()).st_mtime
    except OSError:
        return time.time()


class SteadyClock:
    """The clock of the file system, but for steps forward."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By how much the file system's clock is ahead of ours, and when that was seen: the least comes first.
        self._seen: deque[tuple[float, float]] = deque()

    def see(self, shown: float) -> None:
        """Takes in what the file system's clock shows now."""
        now = self._clock()
        while self._seen and self._seen[-1][0] >= shown - now:
            self._seen.pop()
        self._seen.append((shown - now, now))
        while self._seen[0][1] < now - _MEMORY:
            self._seen.popleft()

    def time(self) -> float:
        """Returns the time; 0 before the file system's clock has been seen."""
        return self._clock() + self._seen[0][0] if self._seen else 0.0


class Heartbeat:
    """This scheduler's own heartbeat, and those of others."""

    def __init__(
        self, home: str, scheduler_id: str, process: ProcessIdentity, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = SteadyClock(clock)
        self._folder = layout.schedulers_folder(home)
        self._own = layout.heartbeat(home, scheduler_id)
        # The last heartbeat of a killed process of the same scheduler, once renew() has replaced it; 0: there was none.
        self.of_killed = 0.0
        self.home = home
        self.scheduler_id = scheduler_id
        self.process = process
        self._is_written = False  # an earlier process of a restarted scheduler may have left its own

    @property
    def token(self) -> str:
        """Returns the path of a file that exists for as long as this scheduler does."""
        return str(self._own)

    def renew(self) -> None:
        """Sends a heartbeat. Errors of the home are ignored here: other parts report them."""
        with contextlib.suppress(OSError):
            if not self._is_written or not self._own.exists():
                self._folder.mkdir(parents=True, exist_ok=True)
                if not self._is_written:
                    with contextlib.suppress(FileNotFoundError):
                        self.of_killed = self._own.stat().st_mtime
                    self._own.with_suffix(layout.STATE).unlink(missing_ok=True)  # it is that of the killed process
                files.write(self._own, json.dumps(self.process.as_data()), self._own.with_suffix(_DRAFT).name)
                self._is_written = True
            self._own.touch()
            self._clock.see(self._own.stat().st_mtime)

    def leave(self) -> None:
        """Removes the heartbeat of this scheduler, which ends."""
        with contextlib.suppress(OSError):
            self._own.unlink(missing_ok=True)

    def is_alive(self, scheduler_id: str, process: ProcessIdentity) -> bool:
        """Returns whether a scheduler is alive: by its process on this host, else by its heartbeat."""
        lives = processes.is_alive(process)
        return counts_as_alive(lives, self._silence_of(scheduler_id, process) if lives is None else 0.0)

    def _silence_of(self, scheduler_id: str, process: ProcessIdentity) -> float:
        """Returns the seconds since the last heartbeat of a scheduler's process; 0 if that cannot be seen.

        A heartbeat is of the process that it names: another one has restarted the scheduler under its id since.
        """
        try:
            self._own.stat()  # a home that shows no heartbeat of our own tells nothing about others
        except OSError:
            return 0.0
        heartbeat = layout.heartbeat(self.home, scheduler_id)
        try:
            silence = self._clock.time() - heartbeat.stat().st_mtime
            named = identity_for_data(files.read_json(heartbeat))
        except FileNotFoundError:
            return math.inf
        except ValueError:
            return silence
        except OSError:
            return 0.0
        return silence if named in (None, process) else math.inf

    def now(self) -> float:
        """Returns the time by the file system's clock, which all hosts share; 0 if the home cannot be used."""
        self.renew()
        return self._clock.time() if os.path.exists(self._own) else 0.0  # Path.exists() may raise

    def sweep(self) -> None:
        """Removes the files of schedulers that are dead."""
        with contextlib.suppress(OSError):
            for path in self._folder.glob(f"*{layout.HEARTBEAT}"):
                if path != self._own and self._is_of_dead(path):
                    self._remove(path)
            # A scheduler that died at its first heartbeat left a draft. A recent draft may still be in the making.
            for path in self._folder.iterdir():
                is_old = self._own.stat().st_mtime - path.stat().st_mtime > SILENCE
                if is_old and not path.with_suffix(layout.HEARTBEAT).exists():
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
        for ending in (layout.STATE_DRAFT, layout.STATE, _DRAFT):
            heartbeat.with_suffix(ending).unlink(missing_ok=True)
        heartbeat.unlink(missing_ok=True)
