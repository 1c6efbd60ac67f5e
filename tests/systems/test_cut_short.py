"""How a run on a worker of another process ended, when signals reach its processes one after the other.

A job queue that cancels a job signals all of its processes, in an order that nobody knows.
"""

import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.support.sandbox import Guild, Sandbox, Started, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, scheduler_process, stage, statuses
from tests.systems.dask_processes import DaskProcesses, dask_processes
from tests.systems.journal import Journal

SCHEDULER = f"run dask:scheduler {NO_DASHBOARD} poll-interval=0.5 -y"

# The operation ends by itself, and leaves a process behind that holds its output open: Guild waits for that one.
LEFT = "import time; time.sleep(600)"
ENDS = f"""
ends:
  exec: sh -c '{shlex.quote(sys.executable)} -c "{LEFT}" & exit ${{code}}'
  flags:
    code: 0
"""


SHELL = """
shell:
  exec: sh -c 'sleep 601; exit $?'
"""


@pytest.fixture
def cluster(user: Sandbox) -> Iterator[DaskProcesses]:
    """A Dask scheduler without workers."""
    with dask_processes(user) as cluster:
        yield cluster


TERM, KILL = signal.SIGTERM, signal.SIGKILL
Order = tuple[signal.Signals, signal.Signals, float]
SIGNALS = [(TERM, TERM, 0.02), (TERM, TERM, 0.05), (TERM, KILL, 0.02), (KILL, TERM, 0.05), (KILL, KILL, 0.02)]


def _name(order: Order) -> str:
    first, then, delay = order
    return f"{first.name}-{then.name}-{delay:g}"


def _cancel(worker: Started, victim: psutil.Process, operation: psutil.Process, order: Order) -> None:
    """Signals a process of the operation, and somewhat later its starter and the worker. Waits for the worker's end."""
    first, then, delay = order
    starter = operation.parent()
    assert starter
    victim.send_signal(first)
    time.sleep(delay)  # the fault itself: the others get their signal later
    with contextlib.suppress(psutil.NoSuchProcess):
        starter.send_signal(then)
    os.kill(worker.pid, then)
    worker.wait()


@pytest.mark.parametrize("order", SIGNALS, ids=_name)
def test_run_whose_job_is_cancelled_is_tried_again_if_its_own_process_ends_first(
    user: Sandbox, guild: Guild, journal: Journal, cluster: DaskProcesses, order: Order
) -> None:
    worker = cluster.start_worker("one")
    stage(guild, "work seconds=600", "aaa")
    with guild.started(f"{SCHEDULER} lease=2 cluster={cluster.address}") as scheduler:
        operation = psutil.Process(journal.wait_for("aaa").pid)
        _cancel(worker, operation, operation, order)
        wait_until(lambda: statuses(user) == {"aaa": "staged"}, describe=scheduler.so_far)
        scheduler.wait_for_output("Run aaa is staged again for attempt 2")


@pytest.mark.parametrize("order", SIGNALS, ids=_name)
def test_run_of_a_shell_whose_job_is_cancelled_is_tried_again_if_its_command_ends_first(
    user: Sandbox, guild: Guild, cluster: DaskProcesses, order: Order
) -> None:
    # The shell exits by itself, with 128 and the signal.
    a_project(user, SHELL)
    worker = cluster.start_worker("one")
    stage(guild, "shell", "aaa")
    with guild.started(f"{SCHEDULER} lease=2 cluster={cluster.address}") as scheduler:
        (command,) = wait_until(lambda: _commands(user), describe=scheduler.so_far)
        shell = command.parent()
        assert shell
        _cancel(worker, command, shell, order)
        wait_until(lambda: statuses(user) == {"aaa": "staged"}, describe=scheduler.so_far)
        scheduler.wait_for_output("Run aaa is staged again for attempt 2")


def test_run_whose_job_is_cancelled_is_tried_again_if_its_starter_is_killed_first(
    user: Sandbox, guild: Guild, journal: Journal, cluster: DaskProcesses
) -> None:
    worker = cluster.start_worker("one")
    stage(guild, "work seconds=600", "aaa")
    with guild.started(f"{SCHEDULER} lease=2 cluster={cluster.address}") as scheduler:
        starter = psutil.Process(journal.wait_for("aaa").pid).parent()
        assert starter
        starter.kill()
        time.sleep(0.02)  # the fault itself
        os.kill(worker.pid, signal.SIGTERM)
        worker.wait()
        wait_until(lambda: statuses(user) == {"aaa": "staged"}, describe=scheduler.so_far)


@pytest.mark.parametrize("end", [(TERM, "was terminated"), (KILL, "was killed by signal 9")])
def test_run_that_is_killed_on_a_worker_that_stays_is_not_tried_again(
    user: Sandbox, guild: Guild, journal: Journal, cluster: DaskProcesses, end: tuple[signal.Signals, str]
) -> None:
    # A user who kills it may not want it back; the machine is well.
    cluster.start_worker("one")
    stage(guild, "work seconds=600", "aaa")
    with guild.started(f"{SCHEDULER} lease=2 cluster={cluster.address}") as scheduler:
        os.kill(journal.wait_for("aaa").pid, end[0])
        scheduler.wait_for_output(end[1])
        assert statuses(user) == {"aaa": "terminated"}
    assert len(journal.lives()) == 1


@pytest.mark.parametrize("case", [(7, TERM, True), (0, KILL, True), (7, KILL, False), (0, KILL, False)])
def test_run_that_has_ended_by_itself_is_not_tried_again_when_its_job_is_cancelled(
    user: Sandbox, guild: Guild, cluster: DaskProcesses, case: tuple[int, signal.Signals, bool]
) -> None:
    code, number, has_scheduler = case
    a_project(user, ENDS)
    worker = cluster.start_worker("one")
    stage(guild, f"ends code={code}", "aaa")
    with guild.started(f"{SCHEDULER} lease=2 cluster={cluster.address}") as scheduler:
        (left,) = wait_until(lambda: _left_behind(user), describe=scheduler.so_far)
        starter = left.parent()
        assert starter
        if not has_scheduler:
            scheduler_process(user).kill()
            scheduler.wait()
        for process in (psutil.Process(worker.pid), starter, left):
            with contextlib.suppress(psutil.NoSuchProcess):  # the starter may have ended it already
                process.send_signal(number)
        worker.wait()
        if has_scheduler:
            _wait_for_end(user, code, scheduler)
    if not has_scheduler:
        with guild.started(f"{SCHEDULER} lease=2 cluster={cluster.address}") as scheduler:
            _wait_for_end(user, code, scheduler)
    assert "attempt 2" not in scheduler.output


def test_run_that_was_not_handed_over_when_its_worker_died_starts_elsewhere_at_once(
    user: Sandbox, guild: Guild, journal: Journal, cluster: DaskProcesses
) -> None:
    # With a lease of a minute: it has not started anywhere, so there is nothing to wait for.
    worker = cluster.start_worker("one")
    with guild.started(f"{SCHEDULER} lease=60 cluster={cluster.address}") as scheduler:
        scheduler.wait_for_output("Worker one")
        os.kill(worker.pid, signal.SIGSTOP)
        stage(guild, "work seconds=0.2", "aaa")
        wait_until(
            lambda: statuses(user) == {"aaa": "pending"}, describe=lambda: f"{statuses(user)} {scheduler.so_far()}"
        )
        worker.kill()
        cluster.start_worker("two")
        wait_until(lambda: statuses(user) == {"aaa": "completed"}, describe=scheduler.so_far)
    journal.check(["aaa"])
    assert "Run aaa did not start and is staged again" in scheduler.output


def _commands(user: Sandbox) -> list[psutil.Process]:
    """Returns the command of the shell."""
    found = []
    for process in user.processes():
        with contextlib.suppress(psutil.Error):
            found += [process] if process.cmdline() == ["sleep", "601"] else []
    return found


def _wait_for_end(user: Sandbox, code: int, scheduler: Started) -> None:
    ended = "error" if code else "completed"
    wait_until(lambda: statuses(user)["aaa"] in (ended, "staged"), describe=scheduler.so_far)
    assert statuses(user) == {"aaa": ended}


def _left_behind(user: Sandbox) -> list[psutil.Process]:
    """Returns the process that the operation left behind, once the operation itself has ended."""
    for process in user.processes():
        with contextlib.suppress(psutil.Error):
            parent = process.parent()
            if process.cmdline()[1:] == ["-c", LEFT] and parent and LEFT not in " ".join(parent.cmdline()):
                return [process]
    return []
