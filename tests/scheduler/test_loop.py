"""The shell around the core: instructions are carried out in order, and errors keep no run from being ended."""

import errno
import os
import pathlib
import queue
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from guild_dask.home.errors import HomeUnavailable
from guild_dask.scheduler.core import Core, Rules
from guild_dask.scheduler.events import StopRequested
from guild_dask.scheduler.ledger import ActiveRun
from guild_dask.scheduler.loop import Loop
from tests.scheduler.world import ME, staged_run
from tests.support.sandbox import run_command

# Waits for events that do not come, on a CPU that another process uses as well.
WAITS = """
import itertools, os, queue, time
from guild_dask.scheduler.loop import next_event

os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
other = os.fork()
while other == 0:
    pass
end = time.monotonic() + 2
for number in itertools.count():
    try:
        next_event(queue.SimpleQueue(), 0.0)
    except queue.Empty:
        if number % 1000 == 0 and time.monotonic() > end:
            break
os.kill(other, 9)
"""


class Shell:
    """What a loop uses, as far as a test needs it; what was done is noted."""

    def __init__(self) -> None:
        self.core = Core(Rules("me", ME), 0.0)
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.done: list[str] = []
        self.now = 0.0

    def note(self, what: str) -> Any:
        return lambda *_args: self.done.append(what)

    def loop(self, **parts: Any) -> Loop:
        cluster = SimpleNamespace(
            stop=self.note("stop"), kill=self.note("kill"), destroy=self.note("destroy"), tidy=self.note("tidy")
        )
        publisher = SimpleNamespace(publish=self.note("publish"), due=None)
        dispatcher: Any = SimpleNamespace(
            home=SimpleNamespace(staged=self.note("list")),
            cluster=cluster,
            publisher=parts.get("publisher", publisher),
            settle=None,
            request_stop=parts.get("request_stop", self.note("request stop")),
        )
        heartbeat: Any = SimpleNamespace(
            home="/nowhere", scheduler_id="me", renew=parts.get("renew", self.note("beat"))
        )
        return Loop(self.core, dispatcher, heartbeat, self.events, self.clock)

    def clock(self) -> float:
        self.now += 100.0  # more than any wait, so that nothing waits
        return self.now

    def has_a_run(self) -> None:
        claim: Any = SimpleNamespace(requests={}, devices={}, owner=ME, worker="w")
        self.core.ledger.active["aaa"] = ActiveRun(staged_run("aaa", 0), claim, "host")


def test_stop_is_carried_out_step_by_step() -> None:
    shell = Shell()
    shell.has_a_run()
    shell.events.put(StopRequested())
    shell.loop().run()
    assert [each for each in shell.done if each != "publish"] == ["request stop", "stop", "kill", "destroy"]


def test_runs_are_ended_though_publishing_and_the_home_fail() -> None:
    def fail(*_args: Any) -> None:
        raise ZeroDivisionError("the error that was not expected")

    shell = Shell()
    shell.has_a_run()
    loop = shell.loop(publisher=SimpleNamespace(publish=fail, due=None), request_stop=fail)
    with pytest.raises(ZeroDivisionError):
        loop.run()
    loop.abandon()
    assert shell.done == ["stop", "kill", "destroy"]


def test_error_of_the_file_system_is_trouble_of_the_home_and_ends_no_scheduler() -> None:
    def fail(*_args: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    shell = Shell()
    shell.has_a_run()
    shell.events.put(StopRequested())
    shell.loop(request_stop=fail).run()
    assert [each for each in shell.done if each != "publish"] == ["stop", "kill", "destroy"]


def test_unavailable_home_drops_the_rest_of_a_cycle() -> None:
    def fail() -> None:
        shell.events.put(StopRequested())
        raise HomeUnavailable("the disk is full")

    shell = Shell()
    shell.loop(renew=fail).run()
    assert "list" not in shell.done


@pytest.mark.every_python
@pytest.mark.skipif(sys.platform != "linux", reason="needs a process that is bound to a CPU")
def test_wait_for_an_event_ends_however_busy_the_machine_is(tmp_path: pathlib.Path) -> None:
    # It was endless in Python 3.10 if the kernel interrupted it at the wrong moment.
    assert run_command([sys.executable, "-c", WAITS], os.environ, tmp_path, timeout=30).exit_code == 0
