"""The limits that a starter enforces, and the memory that it measures."""

import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from guild_dask.home.outcome import Cause, Excess
from guild_dask.host import memory
from guild_dask.host.memory import Meter
from guild_dask.worker.guard import Limits
from guild_dask.worker.options import StarterOptions
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, scheduler_process, stage, statuses

MB = 1_000_000

# Allocates a number of megabytes, forks a number of children that share them, prints a line, and waits for its input to
# close.
TAKE = """
import os, sys
taken = bytearray(os.urandom(1)) * (int(sys.argv[1]) * 1_000_000)
for _ in range(int(sys.argv[2])):
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
print("taken", flush=True)
sys.stdin.read()
"""


# Maps a file, reads all of it, prints a line, and waits for its input to close.
MAP = """
import mmap, sys
with open(sys.argv[1], "rb") as f:
    mapped = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    sum(mapped[position] for position in range(0, len(mapped), 4096))
    print("taken", flush=True)
    sys.stdin.read()
"""


def taker(megabytes: int, children: int = 0) -> "subprocess.Popen[str]":
    """Returns a process with that much memory, which its children share."""
    return started(TAKE, str(megabytes), str(children))


def mapper(path: pathlib.Path, megabytes: int) -> "subprocess.Popen[str]":
    """Returns a process that has mapped a new file of that size, if there is a disk for it."""
    path.write_bytes(bytes(megabytes * MB))
    process = started(MAP, str(path))
    if sys.platform == "linux" and _shared_memory(process.pid) > megabytes * MB / 2:
        end(process)
        pytest.skip("the folder for temporary files is in memory, where a mapped file counts")
    return process


def _shared_memory(pid: int) -> int:
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssShmem:"))


def started(code: str, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", code, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "taken\n"
    return process


@pytest.fixture
def over() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def end(process: "subprocess.Popen[str]") -> None:
    process.communicate()


def test_memory_of_a_descendant_is_measured() -> None:
    meter = Meter(os.getpid())
    before = meter.sample()
    process = taker(200)
    assert 190 * MB < meter.sample() - before < 300 * MB
    end(process)
    assert meter.peak > 190 * MB


def test_memory_that_processes_share_counts_once() -> None:
    # The workers of a data loader are forks of the process that has loaded the data.
    process = taker(200, children=4)
    meter = Meter(os.getpid())
    meter.sample()
    end(process)
    assert 190 * MB < meter.peak < 400 * MB


def test_mapped_files_do_not_count(tmp_path: pathlib.Path) -> None:
    # Mapped data sets may be larger than the memory that a run requests.
    process = mapper(tmp_path / "data", 200)
    assert psutil.Process(process.pid).memory_info().rss > 190 * MB
    assert Meter(os.getpid()).sample() < 100 * MB
    end(process)


def test_all_descendants_are_found_whichever_thread_started_them() -> None:
    found: list[subprocess.Popen[str]] = []
    thread = threading.Thread(target=lambda: found.append(taker(1, children=1)))
    thread.start()
    thread.join()
    (process,) = found
    below = memory.below(os.getpid())
    assert process.pid in below
    assert len(memory.below(process.pid)) == 1
    assert set(memory.below(process.pid)) < set(below)
    end(process)


def test_ended_process_uses_no_memory() -> None:
    process = taker(1)
    end(process)
    assert Meter(process.pid).sample() == 0


def test_time_limit_ends_the_run_once(over: threading.Event) -> None:
    ended: list[tuple[Cause, Excess]] = []
    Limits(StarterOptions(time_limit=0.3), lambda cause, excess: ended.append((cause, excess)), over).begin()
    wait_until(lambda: ended)
    assert ended == [(Cause.TIME_LIMIT, Excess(0.3))]


def test_run_that_uses_more_memory_than_it_requests_is_ended(over: threading.Event) -> None:
    ended: list[tuple[Cause, Excess]] = []
    process = taker(200)
    limits = Limits(StarterOptions(memory=100e6), lambda cause, excess: ended.append((cause, excess)), over)
    limits.begin()
    wait_until(lambda: ended)
    end(process)
    cause, excess = ended[0]
    assert (cause, excess.limit) == (Cause.OUT_OF_MEMORY, 100e6)
    assert 200e6 <= excess.reached < 300e6
    assert limits.peak_memory > 190 * MB


def test_run_is_not_ended_for_shared_memory(over: threading.Event) -> None:
    ended: list[tuple[Cause, Excess]] = []
    process = taker(200, children=4)
    Limits(StarterOptions(memory=400e6), lambda cause, excess: ended.append((cause, excess)), over).begin()
    # As long as several measurements take.
    deadline = time.monotonic() + 2
    wait_until(lambda: time.monotonic() > deadline)
    end(process)
    assert not ended


def test_run_that_ends_in_time_is_left_alone(over: threading.Event) -> None:
    ended: list[tuple[Cause, Excess]] = []
    Limits(StarterOptions(time_limit=0.5), lambda cause, excess: ended.append((cause, excess)), over).begin()
    over.set()
    deadline = time.monotonic() + 1
    wait_until(lambda: time.monotonic() > deadline)
    assert not ended


def test_time_limit_outlives_the_scheduler(user: Sandbox, guild: Guild) -> None:
    a_project(user, "forever:\n  exec: sh -c 'echo working; while true; do sleep 0.1; done'\n")
    stage(guild, "forever", "aaa", options="--tag dask-time:4s")
    with guild.started(f"run dask:scheduler {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("working")
        scheduler_process(user).kill()
        scheduler.wait()
        assert statuses(user) == {"aaa": "running"}
        wait_until(lambda: statuses(user) == {"aaa": "terminated"})


def test_peak_memory_of_a_run_is_recorded(user: Sandbox, guild: Guild) -> None:
    a_project(user, "take:\n  exec: python take.py 150 1\n", {"take.py": TAKE})
    stage(guild, "take", "aaa")
    guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y")
    text = pathlib.Path(user.guild_home, "runs", "aaa", ".guild", "attrs", "dask").read_text()
    facts = dict(line.split(": ") for line in text.splitlines())
    assert 140 * MB < float(facts["max_memory"]) < 400 * MB
