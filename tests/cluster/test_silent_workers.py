"""Workers of an existing cluster that do not answer: a node that thrashes, a process that was stopped by a signal."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest
from distributed import Worker

from guild_dask import __version__
from guild_dask.cluster.background import Background, call_workers, in_loop_of, try_to_call
from guild_dask.cluster.base import Common, Timeouts
from guild_dask.cluster.events import ClusterEvent, JobEnded, JobUnseen, WorkerRefused, WorkersChanged
from guild_dask.cluster.existing import open_existing
from guild_dask.cluster.handshake import PLUGIN, is_no_answer, problem_for_error
from guild_dask.cluster.remote import RemoteCluster
from guild_dask.home import claims
from guild_dask.host import processes
from guild_dask.plan.troubles import NoAnswer, NotInstalled, Paused, WorkerWithoutRuns
from guild_dask.scheduler.answers import ClusterView
from guild_dask.scheduler.ledger import Ledger
from guild_dask.scheduler.workers import Troubles, workers_for
from guild_dask.settings.cluster_spec import cluster_for_text
from guild_dask.worker import runner
from guild_dask.worker.job import NOT_STARTED, Job
from tests.support.sandbox import DEADLINE, Sandbox, free_port, wait_until
from tests.systems.dask_processes import DaskProcesses, dask_processes


@pytest.fixture
def dask(user: Sandbox) -> Iterator[DaskProcesses]:
    with dask_processes(user) as processes:
        yield processes


def opened(
    user: Sandbox,
    dask: DaskProcesses,
    events: list[ClusterEvent],
    name: str = "token",
    timeouts: Timeouts | None = None,
) -> RemoteCluster:
    token = user.root / name
    token.touch()
    choice = cluster_for_text(f"scheduler-file:{dask.file}")
    common = Common(str(user.guild_home), str(token), 60.0, events.append, timeouts=timeouts or Timeouts())
    return open_existing(choice, common)


def closes(cluster: RemoteCluster) -> None:
    closing = threading.Thread(target=cluster.close, daemon=True)
    closing.start()
    wait_until(lambda: not closing.is_alive(), describe="the end of close()")


def test_silent_workers_delay_neither_calls_to_others_nor_the_end(user: Sandbox, dask: DaskProcesses) -> None:
    events: list[ClusterEvent] = []
    silent = dask.start_worker("silent")
    dask.start_worker("lively")
    cluster = opened(user, dask, events)
    addresses = {worker.label: worker.name for worker in cluster.workers()}
    silent.signal(signal.SIGSTOP)
    try:
        for _ in range(50):
            in_loop_of(
                cluster.client, try_to_call(cluster.client, 60.0, [addresses["silent"]], runner.stop, "no such run")
            )
        answered: list[object] = []

        async def ask() -> None:
            answered.append(await call_workers(cluster.client, 60.0, [addresses["lively"]], runner.stop, "no such run"))

        in_loop_of(cluster.client, ask())
        wait_until(lambda: answered, describe=lambda: events)
        closes(cluster)
    finally:
        silent.signal(signal.SIGCONT)


def is_silent(cluster: RemoteCluster) -> bool:
    return any(worker.is_silent for worker in cluster.known_workers())


def test_worker_that_answers_late_joins_then(user: Sandbox, dask: DaskProcesses) -> None:
    events: list[ClusterEvent] = []
    late = dask.start_worker("late")
    late.signal(signal.SIGSTOP)
    try:
        cluster = opened(user, dask, events, timeouts=Timeouts(connect=5.0, handshake=1.0))
        wait_until(lambda: is_silent(cluster), describe=lambda: events)
        cluster.tidy()
        wait_until(lambda: not is_silent(cluster), describe=lambda: events)  # it is asked again
    finally:
        late.signal(signal.SIGCONT)

    def comes() -> bool:
        cluster.tidy()
        return bool(cluster.workers())

    wait_until(comes, describe=lambda: events)
    refusals = [event for event in events if isinstance(event, WorkerRefused)]
    assert refusals == [WorkerRefused("late", NoAnswer())]  # once, however often it was asked
    closes(cluster)


def a_job(user: Sandbox, run_id: str) -> Job:
    """Returns a job without a claim, whose starter therefore starts nothing."""
    me = processes.identity(os.getpid())
    assert me
    run_dir = user.guild_home / "runs" / run_id
    run_dir.mkdir(parents=True)
    claim = claims.Claim(run_id, "sss", me, me)
    return Job(
        str(run_dir), claim, str(user.guild_home / "dask" / "claims"), str(user.folder), None, str(user.root / "output")
    )


def test_worker_that_does_not_send_results_delays_no_other(user: Sandbox, dask: DaskProcesses) -> None:
    # Dask has one thread for the ends of all tasks, fetches five results at a time, and has no timeout for a result.
    events: list[ClusterEvent] = []
    dask.start_worker("silent", "--nthreads 8")
    cluster = opened(user, dask, events, timeouts=Timeouts(result=10.0))
    (silent,) = cluster.workers()
    dask.start_worker("well")
    wait_until(lambda: len(cluster.workers()) == 2, describe=lambda: events)
    (well,) = (worker for worker in cluster.workers() if worker != silent)

    def hand_out_nothing(dask_worker: Worker) -> None:
        async def wait_for_ever(*_args: object, **_kwargs: object) -> None:
            await asyncio.Event().wait()

        dask_worker.handlers["get_data"] = wait_for_ever

    cluster.client.run(hand_out_nothing, workers=[silent.name])
    runs = [f"aaa{number}" for number in range(8)]
    for run_id in runs:
        cluster.submit(a_job(user, run_id), silent.name, {})
    cluster.submit(a_job(user, "bbb"), well.name, {})
    wait_until(lambda: JobEnded("bbb", NOT_STARTED, had_claim=False) in events, describe=lambda: events)
    assert not [each for each in events if isinstance(each, JobUnseen)]
    wait_until(
        lambda: {each.run_id for each in events if isinstance(each, JobUnseen)} == {*runs}, describe=lambda: events
    )
    cluster.submit(a_job(user, "ccc"), well.name, {})
    wait_until(lambda: JobEnded("ccc", NOT_STARTED, had_claim=False) in events, describe=lambda: events)
    closes(cluster)


def set_status(cluster: RemoteCluster, name: str) -> None:
    """Sets the status of all workers, as Dask does for example if memory is nearly full."""

    def set_it(dask_worker: Worker) -> None:
        dask_worker.status = type(dask_worker.status)[name]

    cluster.client.run(set_it)


def test_worker_that_dask_has_paused_gets_no_runs(user: Sandbox, dask: DaskProcesses) -> None:
    events: list[ClusterEvent] = []
    dask.start_worker("one", "--memory-limit 0")  # otherwise Dask would see that memory is free, and resume it
    cluster = opened(user, dask, events)

    def is_seen(slots: int) -> bool:
        cluster.tidy()
        view = ClusterView(tuple(cluster.workers()))
        return [worker.free_slots for worker in workers_for(view, Ledger(), 0.0)] == [slots]

    # It is still there, with what it has: a run that could start on it later is not one that never can.
    troubles = Troubles()
    set_status(cluster, "paused")
    wait_until(lambda: is_seen(0), describe=lambda: events)
    assert troubles.current(cluster.workers()) == (WorkerWithoutRuns("one", Paused()),)
    set_status(cluster, "init")  # as one that has just come, and will be running in an instant
    wait_until(lambda: is_seen(1), describe=lambda: events)
    assert not troubles.current(cluster.workers())
    set_status(cluster, "closing_gracefully")
    wait_until(lambda: is_seen(0), describe=lambda: events)
    news = [each.news.partition(" on ")[2].partition(" ")[2] for each in events if isinstance(each, WorkersChanged)]
    assert news[-3:] == [
        "is paused by Dask, and gets no run",
        "accepts runs again",
        "is about to close, and gets no run",
    ]
    closes(cluster)


def who_has_our_plugin(cluster: RemoteCluster) -> list[bool]:
    """Returns for each worker whether it has our plugin."""

    def has_plugin(dask_worker: Worker) -> bool:
        return PLUGIN in dask_worker.plugins

    return list(cluster.client.run(has_plugin).values())


def test_worker_keeps_our_plugin_until_the_last_of_our_schedulers_has_left(user: Sandbox, dask: DaskProcesses) -> None:
    dask.start_worker("one")
    first, second = (opened(user, dask, [], token) for token in ("first", "second"))
    closes(second)
    assert who_has_our_plugin(first) == [True]
    third = opened(user, dask, [], "third")
    (user.root / "first").unlink()  # as if it had been killed
    closes(third)
    assert who_has_our_plugin(first) == [False]
    closes(first)


class HeldAtPause(list[ClusterEvent]):
    """Events. The thread that reports that a worker is paused waits until may_go_on is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()

    def append(self, event: ClusterEvent) -> None:
        super().append(event)
        if isinstance(event, WorkersChanged) and "is paused" in event.news:
            assert self.may_go_on.wait(DEADLINE)


def test_worker_that_was_restarted_at_its_address_is_another_worker(user: Sandbox, dask: DaskProcesses) -> None:
    events = HeldAtPause()
    port = f"--worker-port {free_port()} --memory-limit 0"
    before = dask.start_worker("one", port)
    cluster = opened(user, dask, events)
    (first,) = cluster.workers()

    def is_held() -> bool:
        cluster.tidy()
        return any(isinstance(event, WorkersChanged) and "is paused" in event.news for event in events)

    # The list of workers is not refreshed between the end of one and the beginning of the next.
    set_status(cluster, "paused")
    wait_until(is_held, describe=lambda: events)
    before.kill()
    dask.start_worker("one", port)
    events.may_go_on.set()

    def has_joined_again() -> bool:
        cluster.tidy()
        return sum("has joined" in event.news for event in events if isinstance(event, WorkersChanged)) == 2

    wait_until(has_joined_again, describe=lambda: events)
    assert [worker.name for worker in cluster.workers()] == [first.name]
    assert who_has_our_plugin(cluster) == [True]
    closes(cluster)


def test_refusal_is_distinguished_from_no_answer() -> None:
    assert is_no_answer(asyncio.TimeoutError())
    assert is_no_answer(ConnectionRefusedError("connection refused"))
    assert not is_no_answer(ModuleNotFoundError("No module named 'guild_dask'"))
    assert not is_no_answer(OSError("ModuleNotFoundError(\"No module named 'guild_dask'\")"))
    assert not is_no_answer(AttributeError("no such attribute"))
    assert problem_for_error(ModuleNotFoundError("No module named 'guild_dask'")) == NotInstalled(__version__)


def test_thread_that_hangs_does_not_delay_closing() -> None:
    hanging = threading.Event()
    background = Background("test")
    done: list[int] = []
    assert background.start(hanging.wait)
    assert background.start(done.append, 1)
    background.close(0.1)
    hanging.set()
    assert not background.start(done.append, 2)
    assert done == []


def test_error_in_the_background_does_not_end_its_thread() -> None:
    background = Background("test")
    done: list[int] = []
    background.start(lambda: 1 / 0)
    background.start(done.append, 1)
    wait_until(lambda: done == [1], describe=lambda: done)
    background.close(1)
