"""The journal that runs on several hosts write, and a check of the promise on it."""

import itertools
import pathlib
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.sandbox import Sandbox, is_cold, wait_until
from tests.support.scheduling import a_project

_WORK = pathlib.Path(__file__).parent / "work.py"


@dataclass
class Life:
    """One attempt at a run, as its process recorded it."""

    run_id: str
    host: str
    pid: int
    attempt: int
    begun: float
    is_resumed: bool  # it found files of an earlier attempt in the run's directory
    last: float = field(default=0.0)
    has_ended: bool = False

    def __str__(self) -> str:
        end = "ended" if self.has_ended else "cut short"
        what = f"attempt {self.attempt} at {self.run_id} on {self.host}, pid {self.pid}"
        return f"{what}: {self.begun:.2f} to {self.last:.2f}, {end}"


class Journal:
    """A file that runs write to, and a project with the operations `work` and `work-fresh`, which do so.

    A run of `work` may be forked from a warm server, unless tests are to be cold. One of `work-fresh` never is.
    """

    def __init__(self, user: Sandbox) -> None:
        self.file = user.root / "journal"
        words = (sys.executable, "-S", str(_WORK), str(self.file))
        flags = "  flags:\n    seconds: 1\n"
        fresh = f"  exec: {shlex.join(words)} ${{seconds}}\n{flags}"
        main = f"work {shlex.quote(str(self.file))} ${{seconds}}"
        python = f"  main: {main}\n  flags-import: no\n  pip-freeze: no\n{flags}"
        operations = f"work:\n{fresh if is_cold(user) else python}work-fresh:\n{fresh}"
        a_project(user, operations, {_WORK.name: _WORK.read_text()})

    def lives(self, run_id: str | None = None) -> list[Life]:
        """Returns the attempts at a run, or at all runs, in the order in which they began."""
        found: list[Life] = []
        latest: dict[tuple[str, str, int], Life] = {}  # a host may use a pid again after a reboot
        for line in self.file.read_text().splitlines() if self.file.exists() else ():
            what, run, host, pid, attempt, at = line.split()
            key = (run, host, int(pid))
            if what in ("start", "resume"):
                latest[key] = Life(run, host, int(pid), int(attempt), float(at), what == "resume")
                found.append(latest[key])
            latest[key].last = float(at)
            latest[key].has_ended |= what == "end"
        return [life for life in found if run_id in (None, life.run_id)]

    def wait_for(self, run_id: str, attempt: int = 1, timeout: float = 60.0) -> Life:
        """Waits until an attempt at a run has begun, and returns it."""

        def begun() -> list[Life]:
            return [life for life in self.lives(run_id) if life.attempt == attempt]

        return wait_until(begun, timeout, lambda: f"attempt {attempt} at {run_id}; there is\n{self}")[0]

    def check(self, run_ids: Iterable[str]) -> None:
        """Fails unless each run ended once, never ran twice at a time, and has numbered attempts."""
        wrong = [text for run_id in run_ids for text in self._wrong_with(run_id)]
        assert not wrong, "\n".join([*wrong, str(self)])

    def _wrong_with(self, run_id: str) -> Iterable[str]:
        lives = self.lives(run_id)
        if [life.has_ended for life in lives].count(True) != 1 or not lives[-1].has_ended:
            yield f"{run_id} did not end once, at last"
        if [life.attempt for life in lives] != list(range(1, len(lives) + 1)):
            yield f"the attempts at {run_id} are not numbered one after the other"
        if [life.is_resumed for life in lives] != [False, *[True] * (len(lives) - 1)]:
            yield f"{run_id} did not stay in its directory"
        for earlier, later in itertools.pairwise(lives):
            if later.begun <= earlier.last:
                yield f"{run_id} ran twice at the same time"

    def __str__(self) -> str:
        return "\n".join(map(str, self.lives())) or "an empty journal"
