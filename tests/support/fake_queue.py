"""Slurm's commands, with failures that a test chooses. Jobs are real Dask workers on this machine."""

import contextlib
import os
import pathlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import dask.config
import pytest

from guild_dask.cluster.base import Common
from guild_dask.cluster.events import ClusterEvent
from guild_dask.cluster.jobqueue import JobQueue, open_job_queue
from guild_dask.cluster.pool import WorkerPool
from guild_dask.plan.placement import StagedRun
from guild_dask.settings.cluster_spec import WorkerCount
from tests.support.sandbox import wait_until

_SBATCH = """#!/bin/sh
cd {folder}
[ -e sbatch-hangs ] && {{ echo $$ >> pids; exec sleep 600; }}
[ -e sbatch-fails ] && {{ echo "sbatch: error: $(cat sbatch-fails)" >&2; exit 1; }}
number=1
until mkdir job-$number 2> /dev/null; do number=$((number + 1)); done  # several are submitted at a time
echo $number >> submitted
cp "$1" job-$number/script
[ -e jobs-start ] && {{ setsid sh job-$number/script > job-$number/out 2>&1 & echo $! >> pids; }}
echo $number >> listed
echo "Submitted batch job $number"
"""

_SQUEUE = """#!/bin/sh
cd {folder}
[ -e squeue-fails ] && {{ echo asked >> asked; cat squeue-fails >&2; exit 1; }}
cat listed
echo asked >> asked
"""

_SCANCEL = """#!/bin/sh
cd {folder}
echo "$1" >> cancelled
while [ -e scancel-waits ]; do sleep 0.1; done
"""


class Clock:
    """The clock of a pool, which a test can advance."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds


@dataclass
class FakeQueue:
    """Slurm's commands, and a record of their calls; a file in the folder makes a command fail."""

    folder: pathlib.Path
    events: list[ClusterEvent] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)

    def write(self, name: str, text: str = "") -> None:
        (self.folder / name).write_text(text)

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def wait_for(self, name: str, count: int = 1) -> list[str]:
        """Waits until a file has that many lines, and returns them."""
        wait_until(lambda: len(self.lines(name)) >= count, describe=lambda: f"{name}: {self.lines(name)} {self.events}")
        return self.lines(name)

    @contextlib.contextmanager
    def pool(self, most: int, token: str = "token", name: str = "guild") -> Iterator[WorkerPool]:
        """Yields a pool with a maximum number of jobs. With a token that is not a file, it refuses its workers."""
        queue = JobQueue("slurm", {}, str(self.folder), {}, workers=name)
        with self.closed(open_job_queue(queue, WorkerCount(0, most), None, self.common(token), self.clock)) as pool:
            yield pool

    def common(self, token: str = "token") -> Common:
        self.write("token")
        return Common(str(self.folder), str(self.folder / token), 60.0, self.events.append)

    @contextlib.contextmanager
    def closed(self, pool: WorkerPool) -> Iterator[WorkerPool]:
        """Yields the pool, and checks that it closes in time."""
        try:
            yield pool
        finally:
            closing = threading.Thread(target=pool.close, daemon=True)
            closing.start()
            wait_until(lambda: not closing.is_alive(), describe="the end of close()")

    def adjust(self, pool: WorkerPool, runs: int) -> None:
        pool.adjust([StagedRun(f"run-{n}", {}) for n in range(runs)], ())

    def end_jobs(self) -> None:
        for pid in self.lines("pids"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)


@contextlib.contextmanager
def fake_queue(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, **settings: object) -> Iterator[FakeQueue]:
    """Yields Slurm's commands, first in the search path, with a configuration of dask-jobqueue."""
    folder.mkdir()
    for name, text in (("sbatch", _SBATCH), ("squeue", _SQUEUE), ("scancel", _SCANCEL)):
        path = folder / name
        path.write_text(text.format(folder=folder))
        path.chmod(0o755)
    (folder / "listed").touch()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    JobQueue("slurm", {}, str(folder), {}).cluster_class()  # its import sets the defaults of the configuration
    own = {"cores": 1, "memory": "1GB", "interface": "lo", "scheduler-options": {"host": "127.0.0.1"}, **settings}
    with dask.config.set({f"jobqueue.slurm.{name}": value for name, value in own.items()}):
        queue = FakeQueue(folder)
        try:
            yield queue
        finally:
            queue.end_jobs()
