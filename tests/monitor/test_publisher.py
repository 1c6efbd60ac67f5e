"""What a scheduler tells others: its state in the Guild home, and its events in its run directory."""

import json
import pathlib
import time
from dataclasses import replace
from typing import Any

import pytest

from guild_dask.home import layout
from guild_dask.home.outcome import End, Excess, Result
from guild_dask.host.processes import ProcessIdentity
from guild_dask.monitor import journal
from guild_dask.monitor.publisher import Publisher, QueuedRun, View, scheduler_state
from guild_dask.monitor.state import (
    MOST_WAITING,
    EndedRun,
    Phase,
    RunningRun,
    State,
    WorkerState,
    as_data,
    left_for_data,
    state_for_data,
)
from guild_dask.plan.placement import kind_of
from guild_dask.plan.reasons import Broken, InUse, TooLarge
from guild_dask.plan.units import Amount
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, scheduler_process, stage

SCHEDULER = scheduler_state("sss", ProcessIdentity(1, 1.0, "boot", "here"))
WORKER = WorkerState("local", "here", 2, 1, {"gpu": 1.0}, {"gpu": 1.0})

OPERATIONS = """
nap: {exec: 'sleep ${seconds}', flags: {seconds: 1}}
bad: {exec: 'false'}
"""


def a_view(count: int) -> View:
    """Returns a view with so many runs in the queue, of two kinds, and one that cannot be read."""
    kinds = [kind_of({"mem": 8e9}), kind_of({"gpu": 1.0})]
    why = InUse("gpu", 1.0, 0.0)
    queue = [
        QueuedRun(f"run-{number:05}", "/nowhere", number, number, kinds[number % 2], why) for number in range(count)
    ]
    return View(
        workers=(WORKER,),
        kinds={kind: (sum(run.kind == kind for run in queue), why) for kind in kinds},
        first=tuple(queue[:MOST_WAITING]),
        held={"bbb": Broken("it is broken")},
        held_count=1,
        whole_queue=lambda: queue,
    )


def published(home: pathlib.Path, scheduler: str = "sss") -> State:
    state = state_for_data(json.loads(layout.scheduler_state(str(home), scheduler).read_text()))
    assert state
    return state


def test_state_comes_back_from_data() -> None:
    state = State(
        "sss",
        "here",
        7,
        1.5,
        workers=(WorkerState("local", "here", 2, 1, {"mem": Amount(8e9, "8GB")}, {"mem": 4e9}),),
        running=(RunningRun("aaa", "train", "local", "here", 2.5, 1.0, 1, {"gpu": 1.0}),),
        ended=(
            EndedRun(
                "bbb",
                "train",
                "failed",
                1,
                "local",
                "here",
                3.5,
                1.0,
                1.0,
                2,
                cause="out-of-memory",
                excess=Excess(1e9, 2e9),
            ),
        ),
        retrying={"ccc": 9.5},
        ends={"failed": 1},
    )
    again = state_for_data(json.loads(json.dumps(as_data(state))))
    assert again == state
    assert as_data(state, for_people=True)["workers"][0]["total"] == {"mem": 8e9}
    assert again
    assert as_data(again)["workers"][0]["total"] == {"mem": "8GB"}, "an amount is shown as it was typed"


@pytest.mark.parametrize(
    "data", [None, 3, "text", [], {}, {"scheduler": "sss"}, {**as_data(SCHEDULER), "waiting": "x"}]
)
def test_other_data_is_no_state(data: Any) -> None:
    assert state_for_data(data) is None


def test_state_does_not_grow_with_the_queue(tmp_path: pathlib.Path) -> None:
    # It is written every second or so while runs start.
    publisher = Publisher(str(tmp_path), str(tmp_path), SCHEDULER)
    publisher.publish(lambda: a_view(10_000))
    state = published(tmp_path)
    assert state.waiting == 10_000
    assert [run.run for run in state.first] == [f"run-{number:05}" for number in range(MOST_WAITING)]
    assert [(kind.count, dict(kind.requests)) for kind in state.kinds] == [(5000, {"mem": 8e9}), (5000, {"gpu": 1.0})]
    assert {run.why for run in state.first} == {InUse("gpu", 1.0, 0.0)}
    assert state.first_held == {"bbb": Broken("it is broken")}
    assert state.held == 1
    assert layout.scheduler_state(str(tmp_path), "sss").stat().st_size < 50_000


def test_state_has_the_expected_duration_of_runs_with_the_same_flags(tmp_path: pathlib.Path) -> None:
    for run, epochs in (("short", 1), ("long", 9), ("next", 9)):
        attributes = tmp_path / "runs" / run / ".guild" / "attrs"
        attributes.mkdir(parents=True)
        (attributes / "flags").write_text(f"{{epochs: {epochs}}}")
        (attributes.parent / "opref").write_text("guildfile:/x 1 '' train\n")
    publisher = Publisher(str(tmp_path), str(tmp_path), SCHEDULER)
    for run, seconds in (("short", 10.0), ("long", 500.0), ("short", 10.0)):
        publisher.started(RunningRun(run, "train", "local", "here", time.time() - seconds, 0.0, 1))
        publisher.ended(run, Result(End.COMPLETED, 0))
    publisher.started(RunningRun("next", "train", "local", "here", time.time(), 0.0, 1))
    state = publisher.state(View())
    assert round(state.expected["next"]) == 500
    assert round(state.durations["train"]) == 10


def test_state_is_written_when_it_has_changed_and_once_a_second_at_most(tmp_path: pathlib.Path) -> None:
    publisher = Publisher(str(tmp_path), str(tmp_path), SCHEDULER)
    publisher.publish(lambda: a_view(2))
    assert publisher.due is None
    path = layout.scheduler_state(str(tmp_path), "sss")
    path.unlink()
    publisher.publish(lambda: a_view(2))
    assert publisher.due is not None, "it requests to be called again, since something may have changed"
    publisher.publish(lambda: a_view(2), at_once=True)
    assert not path.exists(), "nothing has changed"
    publisher.publish(lambda: a_view(1), at_once=True)
    assert published(tmp_path).waiting == 1


def test_home_that_cannot_be_written_is_no_reason_to_stop(tmp_path: pathlib.Path) -> None:
    (tmp_path / "dask").write_text("not a folder")
    publisher = Publisher(str(tmp_path), str(tmp_path / "no" / "such"), SCHEDULER)
    publisher.publish(lambda: a_view(1))
    publisher.close()


@pytest.mark.parametrize(
    ("phases", "left"),
    [
        ((Phase.WORKING,), "waits for gpu=1, 0 free"),
        ((Phase.WORKING, Phase.DRAINING), "the scheduler was drained"),
        ((Phase.WORKING, Phase.STOPPING), "the scheduler was stopped"),
        ((Phase.PAUSED, Phase.STOPPING), "the scheduler was paused"),
        ((Phase.WORKING, Phase.DRAINING, Phase.STOPPING), "the scheduler was drained"),
        ((Phase.PAUSED, Phase.WORKING, Phase.STOPPING), "the scheduler was stopped"),
        ((Phase.STOPPING,), "the scheduler was stopped"),
    ],
)
def test_runs_are_left_because_the_scheduler_ended_if_it_started_none(
    phases: tuple[Phase, ...], left: str, tmp_path: pathlib.Path
) -> None:
    # Reasons are those of the last plan, and slots may have become free since.
    publisher = Publisher(str(tmp_path), str(tmp_path), SCHEDULER)
    never = QueuedRun("never", "/nowhere", 5.0, 5, kind_of({"gpu": 9.0}), TooLarge("gpu", 9.0, 1.0))
    view = a_view(1)
    view = replace(view, first=(*view.first, never), retrying={"again": 1.0})
    for phase in phases:
        publisher.publish(lambda phase=phase: replace(view, phase=phase), at_once=True)  # type: ignore[misc]
    publisher.close()
    found = left_for_data(journal.read(layout.events(str(tmp_path)))[-1]["left"])
    assert {run: str(why) for run, why in found.items()} == {
        "run-00000": left,
        "never": "requests gpu=9, largest worker has gpu=1",
        "bbb": "it is broken",
        "again": "was waiting for its next attempt",
    }


def test_listener_that_fails_is_told_no_more(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        def ended(self, run: EndedRun) -> None:
            raise KeyError(run.run)

        def state_changed(self, state: State) -> None:
            raise RuntimeError(state.scheduler)

    publisher = Publisher(str(tmp_path), str(tmp_path), SCHEDULER)
    publisher.listeners.append(Failing())
    publisher.publish(lambda: a_view(1))
    assert published(tmp_path).waiting == 1
    assert not publisher.listeners
    assert "Failing is switched off after an error: RuntimeError('sss')" in caplog.text


def test_half_a_line_of_a_journal_is_left_out(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "events.jsonl"
    book = journal.Journal(str(path))
    book.note("started", 1.0, {"run": "aaa"})
    book.close()
    with path.open("a") as f:
        f.write('3\n{"event": 1, "at": 2}\n{"event": "ended", "at"')
    assert journal.read(str(path)) == [{"event": "started", "at": 1.0, "run": "aaa"}]
    assert journal.read(str(tmp_path / "none")) == []


def test_scheduler_tells_what_runs_and_why_the_rest_waits(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=30", "aaa", "bbb", options="--tag dask:gpu=1")
    stage(guild, "nap seconds=30", "ccc", options="--tag dask:gpu=7")
    with guild.started(f"run dask:scheduler resources=gpu=1 workers=2 {NO_DASHBOARD} --run-id sss -y") as scheduler:
        state = wait_until(lambda: _with_running(user.guild_home), describe=scheduler.so_far)
        assert state
        (running,) = state.running
        assert (running.run, running.operation, running.worker, running.attempt) == ("aaa", "nap", "local", 1)
        assert dict(running.requests) == {"gpu": 1.0}
        assert [(run.run, str(run.why)) for run in state.first] == [
            ("bbb", "waits for gpu=1, 0 free"),
            ("ccc", "requests gpu=7, largest worker has gpu=1"),
        ]
        assert [run.why.is_final for run in state.first if run.why] == [False, True]
        (worker,) = state.workers
        assert (worker.used_slots, worker.slots, dict(worker.used)) == (1, 2, {"gpu": 1.0})
        assert state.pid == scheduler_process(user).pid
    folder = user.guild_home / "dask" / "schedulers"
    wait_until(lambda: not list(folder.iterdir()), describe="the end of all that it told")


def _with_running(home: pathlib.Path) -> State | None:
    if not layout.scheduler_state(str(home), "sss").exists():
        return None
    state = published(home)
    return state if state.running and len(state.first) == 2 else None


def test_events_stay_in_the_run_of_the_scheduler(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap seconds=0.1", "aaa", options="--tag dask:gpu=1")
    stage(guild, "bad", "bbb")
    guild(f"run dask:scheduler resources=gpu=1 workers=1 run-once=yes {NO_DASHBOARD} --run-id sss -y")
    events = journal.read(layout.events(layout.run_dir(str(user.guild_home), "sss")))
    assert [(event["event"], event.get("run"), event.get("end")) for event in events] == [
        ("began", None, None),
        ("workers", None, None),
        ("started", "aaa", None),
        ("ended", "aaa", "completed"),
        ("started", "bbb", None),
        ("ended", "bbb", "failed"),
        ("stopped", None, None),
    ]
    ended = events[3]
    assert ended["requests"] == {"gpu": "1"}
    assert ended["ran"] > 0
    assert ended["waited"] > 0
    assert events[5]["exit_code"] == 1
    assert events[-1]["ends"] == {"completed": 1, "failed": 1}


def test_state_of_a_killed_scheduler_is_swept(user: Sandbox, guild: Guild) -> None:
    with guild.started(f"run dask:scheduler {NO_DASHBOARD} --run-id sss -y") as first:
        wait_until(layout.scheduler_state(str(user.guild_home), "sss").exists, describe=first.so_far)
        scheduler_process(user).kill()
        first.wait()
    assert layout.scheduler_state(str(user.guild_home), "sss").exists()
    guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y")
    assert not layout.scheduler_state(str(user.guild_home), "sss").exists()
