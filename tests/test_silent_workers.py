"""Workers of an existing cluster that do not answer: a node that thrashes, a process that was stopped by a signal."""

import asyncio
import signal
import threading
from collections.abc import Iterator

import pytest
from support import Sandbox, wait_until
from systems.dask_processes import DaskProcesses, dask_processes

from guild_dask import job
from guild_dask.choices import cluster_for_text
from guild_dask.cluster import Common, address, open_existing, remote
from guild_dask.cluster.background import Background, answers, in_loop_of, told
from guild_dask.cluster.on_worker import is_silence, problem_of_stranger
from guild_dask.cluster.remote import RemoteCluster
from guild_dask.events import Event, WorkerRefused


@pytest.fixture
def dask(user: Sandbox) -> Iterator[DaskProcesses]:
    with dask_processes(user) as processes:
        yield processes


def opened(user: Sandbox, dask: DaskProcesses, events: list[Event]) -> RemoteCluster:
    token = user.root / "token"
    token.touch()
    choice = cluster_for_text(f"scheduler-file:{dask.file}")
    return open_existing(choice, Common(str(user.guild_home), str(token), 60.0, events.append))


def closes(cluster: RemoteCluster) -> None:
    closing = threading.Thread(target=cluster.close, daemon=True)
    closing.start()
    wait_until(lambda: not closing.is_alive(), describe="the end of close()")


def test_silent_workers_hold_up_neither_words_to_others_nor_the_end(user: Sandbox, dask: DaskProcesses) -> None:
    events: list[Event] = []
    silent = dask.start_worker("silent")
    dask.start_worker("lively")
    cluster = opened(user, dask, events)
    places = {worker.label: worker.name for worker in cluster.workers()}
    silent.signal(signal.SIGSTOP)
    try:
        for _ in range(50):
            in_loop_of(cluster._client, told(cluster._client, 60.0, [places["silent"]], job.stop, "no such run"))
        answered: list[object] = []

        async def ask() -> None:
            answered.append(await answers(cluster._client, 60.0, [places["lively"]], job.stop, "no such run"))

        in_loop_of(cluster._client, ask())
        wait_until(lambda: answered, describe=lambda: events)
        closes(cluster)
    finally:
        silent.signal(signal.SIGCONT)


def test_worker_that_answers_late_is_welcome_then(
    user: Sandbox, dask: DaskProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_WELCOME", 0.5)
    monkeypatch.setattr(address, "PATIENCE", 5)
    events: list[Event] = []
    late = dask.start_worker("late")
    late.signal(signal.SIGSTOP)
    try:
        cluster = opened(user, dask, events)
        wait_until(lambda: cluster._silent, describe=lambda: events)
        cluster.tidy()
        wait_until(lambda: not cluster._silent, describe=lambda: events)  # it is asked once more
    finally:
        late.signal(signal.SIGCONT)
    monkeypatch.setattr(remote, "_WELCOME", 60.0)

    def comes() -> bool:
        cluster.tidy()
        return bool(cluster.workers())

    wait_until(comes, describe=lambda: events)
    refusals = [event for event in events if isinstance(event, WorkerRefused)]
    assert refusals == [WorkerRefused("late", "does not answer; it is asked again")]  # once, however often it was asked
    closes(cluster)


def test_clear_refusal_is_no_silence() -> None:
    assert is_silence(asyncio.TimeoutError())
    assert is_silence(ConnectionRefusedError("connection refused"))
    assert not is_silence(ModuleNotFoundError("No module named 'guild_dask'"))
    assert not is_silence(OSError("ModuleNotFoundError(\"No module named 'guild_dask'\")"))
    assert not is_silence(AttributeError("no such attribute"))
    assert "does not have guild-dask" in problem_of_stranger(ModuleNotFoundError("No module named 'guild_dask'"))


def test_thread_that_hangs_keeps_nobody_from_closing() -> None:
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
