"""The core of the scheduler, told whole stories as values, and any order of events against the promise."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guild_dask.cluster.events import JobEnded, JobLost
from guild_dask.home.control import Control
from guild_dask.home.outcome import End, Result
from guild_dask.home.recovery import Recovered
from guild_dask.monitor.state import Phase
from guild_dask.plan.capacity import SEARCH
from guild_dask.scheduler import instructions as do
from guild_dask.scheduler.answers import ClaimsRecovered, RunLeft
from guild_dask.scheduler.core import MOST_STARTS, Core, Rules
from guild_dask.scheduler.postponed import MOST_AT_A_TIME, PATIENCE
from guild_dask.scheduler.shutdown import DESTROY_AFTER, GIVE_UP_AFTER, KILL_AFTER
from guild_dask.scheduler.waiting import Demand
from guild_dask.worker.job import KILLED, NOT_STARTED
from tests.scheduler.world import CLAIMED, ENDED, ME, STAGED, STARTED, Run, World, staged_run


def a_world(slots: int = 1, **rules: Any) -> World:
    world = World(Rules("me", ME, poll_interval=10.0, **rules))
    world.add_worker("w", slots)
    return world


def a_world_with_a_run(slots: int = 1, **rules: Any) -> World:
    """Returns a world in which the run a was staged, claimed and started."""
    world = a_world(slots, **rules)
    world.stage("a")
    world.cycle()
    world.start("a")
    return world


def kinds_of(world: World, *kinds: type) -> list[do.Instruction]:
    return [each for each in world.done if isinstance(each, kinds)]


# Stories


def test_staged_run_is_claimed_submitted_and_settled() -> None:
    world = a_world()
    world.stage("a")
    world.cycle()
    assert world.statuses() == {"a": CLAIMED}
    assert world.jobs == {"a": "w"}
    world.start("a")
    world.end("a")
    assert world.statuses() == {"a": ENDED}
    assert not world.core.ledger.active
    assert world.core.ledger.outcomes == {End.COMPLETED: 1}


def test_claim_says_what_the_plan_decided() -> None:
    world = a_world(demand=Demand(has_devices=True))
    world.workers["w"] = replace(world.workers["w"], resources={"cpu": 4.0, "gpu": 2.0}, devices=("0", "1"))
    world.stage("a", "dask:cpu=1", "dask:gpu=1")
    world.runs["a"].staged = replace(world.runs["a"].staged, gpus=("1",))
    world.cycle()
    claim = world.core.ledger.active["a"].claim
    assert (claim.scheduler_id, claim.scheduler, claim.owner) == ("me", ME, ME)
    assert (claim.worker, claim.devices) == ("w", {"1": 1.0})
    assert claim.requests == {"cpu": 1.0, "gpu": 1.0}  # a particular device counts as one of the GPUs


def test_claim_on_a_search_takes_nothing_of_what_runs_share() -> None:
    world = a_world()
    world.workers["w"] = replace(world.workers["w"], resources={SEARCH: 1.0})
    world.stage("a", "dask:cpu=1")
    world.runs["a"].staged = replace(world.runs["a"].staged, is_search=True)
    world.cycle()
    assert world.core.ledger.active["a"].claim.requests == {}


def test_run_waits_for_a_free_slot_and_starts_in_order() -> None:
    world = a_world()
    for run_id in "abc":
        world.stage(run_id)
    world.cycle()
    assert world.jobs == {"a": "w"}
    world.start("a")
    world.end("a")
    world.cycle()
    assert world.jobs == {"b": "w"}


def test_later_run_of_higher_priority_starts_first() -> None:
    world = a_world()
    world.stage("a")
    world.stage("b", "dask-priority:1")
    world.cycle()
    assert world.jobs == {"b": "w"}


def test_lost_job_is_staged_again_and_starts_after_the_next_poll() -> None:
    world = a_world()
    world.stage("a")
    world.cycle()
    world.lose("a")
    assert world.statuses() == {"a": STAGED}
    world.cycle(1.0)
    assert not world.jobs  # else a worker that refuses it would be asked again at once
    world.cycle(10.0)
    assert world.jobs == {"a": "w"}
    assert any(line.startswith("Run a could not be started: its worker says: no; ") for line in world.log)


def test_worker_that_cannot_start_runs_gets_one_at_a_time_until_one_has_started() -> None:
    # Else a full disk would take every waiting run out of the queue and back at each poll.
    world = a_world(slots=3)
    for run_id in "abcd":
        world.stage(run_id)
    world.cycle()
    assert set(world.jobs) == {"a", "b", "c"}
    for run_id in "abc":
        world.refuse(run_id, "No space left on device")
    assert set(world.statuses().values()) == {STAGED}
    world.cycle(1.0)
    assert not world.jobs
    world.cycle(10.0)
    assert set(world.jobs) == {"d"}, "one that was not tried yet: the others may need more than there is"
    world.refuse("d", "No space left on device")
    world.cycle(1.0)
    assert not world.jobs
    world.cycle(10.0)
    assert set(world.jobs) == {"a"}
    world.start("a")
    world.cycle(10.0)
    assert set(world.jobs) == {"a", "b", "c"}
    failed = [line for line in world.log if "could not be started: No space left on device" in line]
    assert len(failed) == 1
    assert world.log.count("Worker w can start runs again") == 1


def test_worker_that_cannot_start_runs_does_not_hold_up_the_others() -> None:
    world = a_world(slots=1)
    world.add_worker("v")
    world.stage("a")
    world.cycle()
    (failing,) = world.jobs.values()
    world.refuse("a", "no more processes or threads can be started")
    world.cycle()
    assert set(world.jobs.values()) == {"v", "w"} - {failing}


def test_run_once_waits_for_a_worker_that_cannot_start_runs() -> None:
    world = a_world(run_once=True)
    world.stage("a")
    world.cycle()
    for _ in range(2 * MOST_STARTS):  # it is never the run's fault
        world.refuse("a", "Too many open files")
        world.cycle(10.0)
        assert not world.core.is_over
        assert world.jobs
    world.start("a")
    world.end("a")
    world.cycle()
    assert world.core.is_over
    assert world.core.ledger.outcomes[End.COMPLETED] == 1


def test_run_that_no_worker_can_start_is_held_with_the_problem_and_others_start() -> None:
    world = a_world(run_once=True)
    world.stage("a")
    world.cycle()
    for _ in range(MOST_STARTS - 1):
        world.refuse("a", "Permission denied", may_be_of_run=True)
        world.cycle(10.0)
        assert world.jobs == {"a": "w"}
    world.refuse("a", "Permission denied", may_be_of_run=True)
    assert "Leaving run a staged (3 attempts to start it failed: Permission denied)" in world.log
    world.stage("b")
    world.cycle(10.0)
    assert world.jobs == {"b": "w"}
    world.start("b")
    world.end("b")
    world.cycle()
    assert world.core.is_over


def test_run_that_cannot_be_sent_to_a_worker_is_held_and_ends_no_other() -> None:
    world = a_world(slots=2)
    world.stage("a")
    world.stage("b")
    world.cycle()
    world.start("b")
    for _ in range(MOST_STARTS):
        world.jobs.pop("a")
        world.tell(JobLost("a", "OverflowError()", may_be_of_run=True))
        world.cycle(10.0)
    assert "Leaving run a staged (3 attempts to start it failed: OverflowError())" in world.log
    assert world.statuses() == {"a": STAGED, "b": STARTED}


def test_worker_that_starts_no_run_while_another_does_holds_few() -> None:
    world = a_world(slots=1)
    world.add_worker("v", 1)
    runs = [f"r{number}" for number in range(9)]
    for run_id in runs:
        world.stage(run_id)
    world.cycle()
    well, broken = "v", "w"
    world.start(next(run_id for run_id, worker in world.jobs.items() if worker == well))
    for _ in range(40):  # the run on the other worker goes on
        for run_id in [run_id for run_id, worker in world.jobs.items() if worker == broken]:
            world.refuse(run_id, "Permission denied", may_be_of_run=True)
        world.cycle(10.0)
    assert len([line for line in world.log if line.startswith("Leaving run")]) == 2


def test_run_whose_starter_dies_again_and_again_is_set_aside_until_it_is_tagged() -> None:
    world = a_world()
    world.stage("a")
    for _ in range(MOST_STARTS):
        world.cycle()
        world.end("a", KILLED)  # before it has started
    world.cycle(100.0)
    assert not world.jobs
    assert world.statuses() == {"a": STAGED}
    assert world.log.count("Leaving run a staged (3 attempts to start it failed)") == 1
    world.tag("a", "mine")
    world.cycle(100.0)
    assert world.jobs == {"a": "w"}


def test_run_out_of_sight_is_recovered_and_tried_again_after_its_pause() -> None:
    world = a_world()
    world.retries = 1
    world.stage("a")
    world.cycle()
    world.start("a")
    world.remove_worker("w")
    assert "a" in world.core.ledger.unseen
    world.add_worker("v")
    world.cycle()  # recovers it
    assert world.statuses() == {"a": STAGED}
    world.cycle()
    assert not world.jobs  # it rests
    pause = world.core.ledger.retrying["a"] - world.now
    assert pause > 0
    world.cycle(pause)
    assert world.jobs == {"a": "v"}


def test_home_that_fails_is_logged_once_and_polled_again() -> None:
    world = a_world()
    world.stage("a")
    world.is_home_available = False
    for _ in range(3):
        world.cycle(10.0)
        assert world.core.due > world.now  # no busy loop
    assert world.log.count("the disk is full; trying again every 10 seconds") == 1
    world.is_home_available = True
    world.cycle(10.0)
    assert world.log.count("The Guild home can be used again") == 1
    assert world.jobs == {"a": "w"}


def test_end_that_cannot_be_settled_is_settled_later() -> None:
    world = a_world_with_a_run()
    world.is_home_available = False
    world.end("a")
    assert world.core.ledger.unsettled == {"a": 0}
    world.cycle(10.0)
    world.is_home_available = True
    world.cycle(10.0)
    assert world.statuses() == {"a": ENDED}
    assert not world.core.ledger.unsettled


def test_retried_run_that_is_due_while_the_home_fails_makes_no_busy_loop() -> None:
    world = a_world()
    world.retries = 1
    world.stage("a")
    world.cycle()
    world.start("a")
    world.end("a", 1)
    world.is_home_available = False
    world.cycle(100.0)
    assert world.core.due > world.now


def test_stop_ends_runs_step_by_step_and_starts_nothing_more() -> None:
    world = a_world()
    world.stage("a")
    world.stage("b")
    world.cycle()
    world.start("a")
    world.stop()
    for seconds in (0.0, KILL_AFTER, DESTROY_AFTER - KILL_AFTER, GIVE_UP_AFTER - DESTROY_AFTER):
        assert not world.core.is_over
        world.cycle(seconds)
    assert kinds_of(world, do.RequestStop) == [do.RequestStop(("a",))]
    assert kinds_of(world, do.StopRun, do.KillRun, do.DestroyRun) == [
        do.StopRun("a"),
        do.KillRun("a"),
        do.DestroyRun("a"),
    ]
    assert world.core.is_over
    assert world.statuses() == {"a": STARTED, "b": STAGED}


def test_stop_is_over_as_soon_as_the_last_run_has_ended() -> None:
    world = a_world_with_a_run()
    world.stop()
    world.cycle()
    world.end("a", -15)
    assert world.core.due == -math.inf
    world.cycle()
    assert world.core.is_over
    assert not kinds_of(world, do.KillRun)


def test_second_stop_kills_at_once() -> None:
    world = a_world_with_a_run()
    world.stop()
    world.cycle()
    world.stop()
    assert kinds_of(world, do.KillRun) == [do.KillRun("a")]


def test_stop_that_finds_the_home_unavailable_names_what_the_next_scheduler_does() -> None:
    world = a_world_with_a_run()
    world.stop()
    world.cycle()
    world.is_home_available = False
    world.end("a", -15)
    world.cycle()
    assert world.core.is_over
    assert world.log[-1] == "the disk is full; the next scheduler will stage 1 run(s) again"


def test_run_after_another_starts_when_that_one_has_completed() -> None:
    world = a_world(slots=2)
    world.stage("a")
    world.stage("b", "dask-after:a")
    world.cycle()
    assert world.jobs == {"a": "w"}
    assert "Found staged run b (waiting for runs to finish: a)" in world.log
    world.start("a")
    world.end("a")
    world.cycle()
    assert world.jobs == {"b": "w"}


def test_run_waits_while_it_cannot_be_seen_what_holds_it_back() -> None:
    world = a_world(slots=2)
    world.runs["gone"] = Run(staged_run("gone", 0), ENDED, end=End.FAILED)
    world.can_look_up = False
    world.stage("b", "dask-after:gone")
    for _ in range(3):
        world.cycle(0.5)
        assert world.core.due > world.now  # no busy loop
    world.cycle(10.0)
    assert not kinds_of(world, do.Claim)
    world.can_look_up = True
    world.runs["gone"].end = End.COMPLETED
    world.cycle(10.0)
    assert world.jobs == {"b": "w"}


def test_run_waits_while_it_cannot_be_seen_whether_others_are_running() -> None:
    world = a_world(wait_for_running=True)
    world.running_elsewhere = ("other",)
    world.stage("a")
    world.cycle()
    world.can_look_up = False
    for _ in range(3):
        world.cycle(10.0)
        world.cycle(0.5)
    assert not kinds_of(world, do.Claim)


def test_run_after_one_that_failed_is_held() -> None:
    world = a_world(slots=2)
    world.stage("a")
    world.stage("b", "dask-after:a")
    world.cycle()
    world.start("a")
    world.end("a", 1)
    world.cycle()
    assert not world.jobs
    assert "b" in world.core.waiting.holds


@pytest.mark.parametrize(
    ("control", "phase"), [(Control(is_paused=True), Phase.PAUSED), (Control(is_draining=True), Phase.DRAINING)]
)
def test_nothing_starts_while_paused_or_draining(control: Control, phase: Phase) -> None:
    world = a_world(slots=2)
    world.stage("a")
    world.cycle()
    world.control = control
    world.stage("b")
    world.cycle(10.0)
    assert world.jobs == {"a": "w"}
    assert world.core.phase is phase
    world.start("a")
    world.end("a")
    world.cycle(10.0)
    assert world.core.is_over == control.is_draining
    assert world.statuses()["b"] == STAGED


def test_run_once_is_over_when_nothing_is_left_that_could_start() -> None:
    world = a_world(run_once=True)
    world.stage("a")
    world.stage("b", "dask:gpu=1")
    world.cycle()
    world.start("a")
    world.end("a")
    world.cycle()
    assert world.core.is_over
    assert "1 run(s) completed, 0 failed, 1 left staged" in world.core.summary(world.now)
    assert "Ignorning staged run b (requires resources not defined for cluster: gpu)" in world.log


def test_run_once_stays_for_a_run_that_is_retried() -> None:
    world = a_world(run_once=True)
    world.retries = 1
    world.stage("a")
    world.cycle()
    world.start("a")
    world.end("a", 1)
    world.cycle()
    assert not world.core.is_over
    world.cycle(1000.0)
    assert world.jobs == {"a": "w"}


def test_run_that_was_deleted_or_taken_before_the_claim_is_passed_over() -> None:
    world = a_world()
    world.stage("a")
    world.stage("b")
    world.stage("c")
    world.control = Control(is_paused=True)
    world.cycle()
    world.control = Control()
    world.cycle(10.0)
    assert world.jobs == {"a": "w"}
    world.start("a")
    world.delete("b")
    world.take_elsewhere("c")
    world.end("a")
    world.cycle()
    assert not world.jobs
    assert "Staged run b was deleted before it could start" in world.log
    assert not any("run c was deleted" in text for text in world.log)


def test_announced_run_that_another_scheduler_takes_is_logged_once() -> None:
    # Else both logs would say that they start it.
    world = a_world()
    for run_id in "abc":
        world.stage(run_id)
    world.cycle()
    world.start("a")
    world.take_elsewhere("b")
    world.delete("c")
    for _ in range(2):
        world.cycle(10.0)
    assert world.log.count("Starting staged run b") == 1
    assert [text for text in world.log if "was taken" in text] == ["Run b was taken by scheduler other"]


def test_run_that_was_not_announced_is_not_logged_when_another_scheduler_takes_it() -> None:
    world = a_world()
    world.stage("a", "dask:gpu=1")
    world.cycle()
    assert "Ignorning staged run a (requires resources not defined for cluster: gpu)" in world.log
    world.take_elsewhere("a")
    world.cycle(10.0)
    assert not any("was taken" in text for text in world.log)


def test_last_run_that_another_scheduler_takes_is_logged_before_run_once_ends() -> None:
    world = a_world(run_once=True)
    world.stage("a")
    world.stage("b")
    world.cycle()
    world.take_elsewhere("b")
    world.start("a")
    world.end("a")
    world.cycle()
    assert world.core.is_over
    assert world.log.count("Run b was taken by scheduler other") == 1


@pytest.mark.parametrize("run_once", [False, True])
def test_run_that_stays_listed_and_cannot_be_claimed_is_tried_once_a_poll(run_once: bool) -> None:
    # As where another scheduler has the devices that it would get.
    world = a_world(run_once=run_once)
    world.unclaimable = {"a"}
    world.stage("a")
    world.cycle()
    assert len(kinds_of(world, do.Claim)) == 2
    assert world.core.due > world.now
    assert not world.core.is_over
    world.unclaimable.clear()
    world.cycle(10.0)
    assert world.jobs == {"a": "w"}


def test_run_that_cannot_be_claimed_does_not_hold_up_others() -> None:
    world = a_world()
    world.unclaimable = {"a"}
    world.stage("a")
    world.stage("b")
    world.cycle()
    assert world.jobs == {"b": "w"}


def test_runs_that_are_left_to_be_logged_make_no_busy_loop_while_the_home_fails() -> None:
    world = a_world(logged_at_a_time=1, wait_for_running=True)
    for run_id in "abc":
        world.stage(run_id)
    world.cycle()
    assert world.core.announcer.has_more
    world.is_home_available = False
    world.cycle()
    assert world.core.due > world.now


def test_first_interrupt_drains_while_runs_are_running_and_the_second_stops() -> None:
    world = a_world_with_a_run()
    world.stage("b")
    world.interrupt()
    world.cycle(10.0)
    assert (world.core.phase, world.control) == (Phase.DRAINING, Control(is_draining=True))
    assert world.statuses() == {"a": STARTED, "b": STAGED}
    world.interrupt()
    world.cycle()
    assert world.core.phase is Phase.STOPPING
    assert kinds_of(world, do.StopRun) == [do.StopRun("a")]


def test_interrupt_stops_at_once_when_no_run_is_running() -> None:
    world = a_world()
    world.interrupt()
    world.cycle()
    assert world.core.is_over


def test_unexpected_error_ends_runs_as_a_stop_does_and_publishes_nothing() -> None:
    world = a_world_with_a_run()
    world.done.clear()
    world.core.abandon(world.now)
    world.cycle()
    assert kinds_of(world, do.RequestStop, do.StopRun) == [do.RequestStop(("a",)), do.StopRun("a")]
    assert not kinds_of(world, do.Publish, do.KillRun)


def test_unexpected_error_during_a_stop_does_not_kill_at_once() -> None:
    world = a_world_with_a_run()
    world.stop()
    world.cycle()
    world.core.abandon(world.now)
    world.cycle()
    assert not kinds_of(world, do.KillRun)


def test_job_without_the_claim_leaves_the_run_to_the_one_that_has_it() -> None:
    # Dask sent the run to a worker twice: the second job found the claim taken, and the run goes on.
    world = a_world_with_a_run()
    world.tell(JobEnded("a", NOT_STARTED, had_claim=False))
    assert "a" in world.core.ledger.unseen
    assert world.statuses() == {"a": STARTED}
    assert not kinds_of(world, do.Settle)


def test_run_that_cannot_be_claimed_is_held_with_the_reason_and_others_start() -> None:
    world = a_world()
    world.refused = {"a": "cannot claim run a: Permission denied"}
    world.stage("a")
    world.stage("b")
    world.cycle()
    assert world.jobs == {"b": "w"}
    assert "Leaving run a staged (cannot claim run a: Permission denied)" in world.log


def test_run_that_cannot_be_read_now_keeps_no_other_from_starting() -> None:
    world = a_world(slots=1)
    world.unreadable = {"a"}
    world.stage("a")
    world.stage("b")
    world.stage("c")
    world.cycle()
    assert world.jobs == {"b": "w"}
    for _ in range(3):
        world.cycle(10.0)
        assert world.core.due > world.now  # no busy loop
    text = "Run a cannot start now (cannot read attribute 'flags': Input/output error); it will be tried again"
    assert world.log.count(text) == 1
    world.unreadable.clear()
    world.start("b")
    world.end("b")
    for _ in range(2):
        world.cycle(10.0)
        if "c" in world.jobs:
            world.start("c")
            world.end("c")
    world.cycle(30.0)
    assert world.jobs == {"a": "w"}


def test_run_that_cannot_be_read_now_says_so() -> None:
    world = a_world(slots=2)
    world.unreadable = {"a"}
    world.stage("a")
    world.cycle()
    assert str(world.core.announcer.held["a"]) == "cannot read attribute 'flags': Input/output error"


def test_home_of_which_nothing_can_be_read_is_not_read_run_by_run() -> None:
    world = a_world(slots=1)
    names = [f"{number:03}" for number in range(200)]
    world.unreadable = set(names)
    for name in names:
        world.stage(name)
    world.cycle()
    assert len(kinds_of(world, do.Claim)) <= MOST_AT_A_TIME


def test_many_runs_that_cannot_be_read_keep_no_other_from_starting_for_long() -> None:
    world = a_world(slots=4)
    names = [f"{number:03}" for number in range(3 * MOST_AT_A_TIME)]
    world.unreadable = set(names)
    for name in (*names, "readable"):
        world.stage(name)
    for _ in range(12):
        world.cycle(10.0)
    assert world.jobs == {"readable": "w"}


def test_run_that_cannot_be_read_requests_no_worker() -> None:
    world = a_world(slots=1)
    world.most_waiting = 4
    world.unreadable = {"a"}
    world.stage("a")
    for _ in range(3):
        world.cycle(10.0)
    adjustments = [each for each in kinds_of(world, do.AdjustWorkers) if isinstance(each, do.AdjustWorkers)]
    assert [each.waiting for each in adjustments] == [[], [], []]
    world.stage("b")
    world.stage("c")
    world.cycle()
    assert isinstance(world.done[-2], do.AdjustWorkers)
    assert [run.id for run in world.done[-2].waiting] == ["c"]


def test_run_once_waits_a_while_for_a_run_that_cannot_be_read() -> None:
    world = a_world(run_once=True)
    world.unreadable = {"a"}
    world.stage("a")
    for _ in range(30):
        world.cycle(0.1)  # events make no difference
        assert not world.core.is_over
    for _ in range(2 * PATIENCE):
        world.cycle(10.0)
    assert world.core.is_over
    assert "1 left staged" in world.core.summary(world.now)


def test_run_once_waits_a_while_for_many_runs_that_cannot_be_read() -> None:
    world = a_world(slots=200, run_once=True)
    names = [f"{number:03}" for number in range(2 * MOST_AT_A_TIME)]
    world.unreadable = set(names)
    for name in names:
        world.stage(name)
    world.cycle()
    assert not world.core.is_over
    world.unreadable.clear()
    for _ in range(3):
        world.cycle(10.0)
    assert sorted(world.jobs) == names


def test_wait_for_running_holds_all_runs_until_others_have_ended() -> None:
    world = a_world(wait_for_running=True)
    world.running_elsewhere = ("other",)
    world.stage("a")
    world.cycle()
    assert not world.jobs
    assert "Found staged run a (waiting for runs to finish: other)" in world.log
    world.running_elsewhere = ()
    world.cycle(10.0)
    assert world.jobs == {"a": "w"}


def test_idle_scheduler_logs_that_it_waits_once_after_each_run() -> None:
    world = a_world()
    for _ in range(2):
        world.cycle(10.0)
    assert world.log.count("Waiting for staged runs") == 1
    world.stage("a")
    world.cycle()
    world.start("a")
    world.end("a")
    world.cycle()
    assert world.log.count("Waiting for staged runs") == 2


# Any order of events

RUNS = ("a", "b", "c", "d")
WORKERS = ("u", "v")
ACTIONS = st.one_of(
    st.tuples(
        st.sampled_from(
            (
                "stage",
                "delete",
                "tag",
                "take",
                "start",
                "end",
                "fail",
                "die",
                "lose",
                "short",
                "fault",
                "deny",
                "allow",
                "spoil",
                "heal",
            )
        ),
        st.sampled_from(RUNS),
    ),
    st.tuples(st.sampled_from(("come", "go")), st.sampled_from(WORKERS)),
    st.tuples(st.sampled_from(("home", "hide", "pause", "resume", "drain", "interrupt", "stop")), st.just("")),
    st.tuples(st.just("cycle"), st.sampled_from((0.0, 1.0, 10.0, 700.0))),
)
TAGS = (("dask-priority:1",), ("dask:gpu=1",), ("dask-after:a",), ("dask:nonsense",), ())


def _where(world: World, run_id: str) -> str:
    return world.runs[run_id].where if run_id in world.runs else ""


def _on_worker(world: World, run_id: str, where: str) -> bool:
    return run_id in world.jobs and _where(world, run_id) == where


def _toggle_home(world: World) -> None:
    world.is_home_available = not world.is_home_available


def _control(world: World, control: Control) -> None:
    world.control = control


# For each action, whether it can happen now, and what it does.
ACTS: dict[str, tuple[Callable[[World, Any], bool], Callable[[World, Any, int], None]]] = {
    "cycle": (lambda _w, _s: True, lambda w, seconds, _n: w.cycle(seconds)),
    "stage": (lambda w, r: r not in w.runs, lambda w, r, n: w.stage(r, *TAGS[n % len(TAGS)])),
    "delete": (lambda w, r: _where(w, r) in (STAGED, ENDED), lambda w, r, _n: w.delete(r)),
    "tag": (lambda w, r: _where(w, r) == STAGED, lambda w, r, n: w.tag(r, *TAGS[n % len(TAGS)])),
    "take": (lambda w, r: _where(w, r) == STAGED, lambda w, r, _n: w.take_elsewhere(r)),
    "start": (lambda w, r: _on_worker(w, r, CLAIMED), lambda w, r, _n: w.start(r)),
    "end": (lambda w, r: _on_worker(w, r, STARTED), lambda w, r, _n: w.end(r)),
    "fail": (lambda w, r: _on_worker(w, r, STARTED), lambda w, r, _n: w.end(r, 1)),
    "die": (lambda w, r: _on_worker(w, r, CLAIMED), lambda w, r, _n: w.end(r, KILLED)),
    "lose": (lambda w, r: r in w.jobs, lambda w, r, _n: w.lose(r)),
    "short": (lambda w, r: _on_worker(w, r, CLAIMED), lambda w, r, _n: w.refuse(r, "Too many open files")),
    "fault": (lambda w, r: _on_worker(w, r, CLAIMED), lambda w, r, _n: w.refuse(r, "no", may_be_of_run=True)),
    "deny": (lambda _w, _r: True, lambda w, r, _n: w.unclaimable.add(r)),
    "allow": (lambda _w, _r: True, lambda w, r, _n: w.unclaimable.discard(r)),
    "spoil": (lambda _w, _r: True, lambda w, r, _n: w.unreadable.add(r)),
    "heal": (lambda _w, _r: True, lambda w, r, _n: w.unreadable.discard(r)),
    "come": (lambda w, name: name not in w.workers, lambda w, name, n: w.add_worker(name, 1 + n % 2, gpu=float(n % 2))),
    "go": (lambda w, name: name in w.workers, lambda w, name, _n: w.remove_worker(name)),
    "home": (lambda _w, _n: True, lambda w, _s, _n: _toggle_home(w)),
    "hide": (lambda _w, _n: True, lambda w, _s, _n: setattr(w, "can_look_up", not w.can_look_up)),
    "pause": (lambda _w, _n: True, lambda w, _s, _n: _control(w, Control(is_paused=True))),
    "resume": (lambda _w, _n: True, lambda w, _s, _n: _control(w, Control())),
    "drain": (lambda _w, _n: True, lambda w, _s, n: _control(w, Control(is_draining=True)) if n % 7 == 0 else None),
    "interrupt": (lambda _w, _n: True, lambda w, _s, n: w.interrupt() if n % 7 == 0 else None),
    "stop": (lambda _w, _n: True, lambda w, _s, n: w.stop() if n % 7 == 0 else None),
}


def act(world: World, what: str, which: Any, number: int) -> None:
    """Does one thing to the world, if it can happen now."""
    can_happen, do_it = ACTS[what]
    if can_happen(world, which):
        do_it(world, which, number)


@settings(max_examples=300, deadline=None)
@given(st.lists(ACTIONS, max_size=60), st.integers(0, 2), st.booleans())
def test_no_order_of_events_loses_a_run_or_starts_one_twice(
    actions: list[tuple[str, Any]], retries: int, run_once: bool
) -> None:
    world = a_world(run_once=run_once)
    world.retries = retries
    for number, (what, which) in enumerate(actions):
        before, submitted = world.core.phase, len(kinds_of(world, do.Submit))
        act(world, what, which, number)
        world.check()
        starts_runs = Phase.WORKING in (before, world.core.phase)
        assert starts_runs or len(kinds_of(world, do.Submit)) == submitted


@settings(max_examples=100, deadline=None)
@given(st.lists(ACTIONS, max_size=40), st.booleans())
def test_after_any_order_of_events_every_run_that_can_start_does(
    actions: list[tuple[str, Any]], run_once: bool
) -> None:
    world = a_world(run_once=run_once, logged_at_a_time=1)
    for number, (what, which) in enumerate(actions):
        if what != "stop":
            act(world, what, which, number)
    world.is_home_available = world.can_look_up = True
    world.control = Control()
    world.unclaimable.clear()
    world.unreadable.clear()
    for name in WORKERS:
        if name not in world.workers:
            world.add_worker(name, 1, gpu=1.0)
    for _ in range(25):
        world.cycle(700.0)
        for run_id in list(world.jobs):
            if run_id in world.runs and world.runs[run_id].where == CLAIMED:
                world.start(run_id)
            world.end(run_id)
        world.check()
    if world.core.is_over:
        return  # by run-once, a drain or a Ctrl-C, before the last run was staged
    waiting = {run_id for run_id, run in world.runs.items() if run.where == STAGED}
    explained = world.core.waiting.listed_holds().keys() | {
        run_id for run_id in world.core.waiting.in_order() if world.core.announcer.held.get(run_id)
    }
    assert waiting <= explained, f"{waiting - explained} wait without a reason"


@settings(max_examples=100, deadline=None)
@given(st.lists(ACTIONS, max_size=40))
def test_core_never_asks_to_be_called_again_at_once_for_ever(actions: list[tuple[str, Any]]) -> None:
    world = a_world(logged_at_a_time=1)
    for number, (what, which) in enumerate(actions):
        act(world, what, which, number)
    for _ in range(10):
        world.cycle()
    assert world.core.is_over or world.core.due > world.now


def test_run_that_could_not_be_settled_counts_as_left_until_it_is_recovered() -> None:
    core = Core(Rules("me", ME), 0.0)
    core.handle(RunLeft("aaa", "cannot settle run aaa"), 0.0)
    assert "1 left to the next scheduler" in core.summary(1.0)
    logs = core.handle(ClaimsRecovered(Recovered(ended=(("aaa", Result(End.COMPLETED, 0)),))), 1.0)
    assert any(isinstance(each, do.Log) for each in logs)
    assert "1 run(s) completed" in core.summary(2.0)
    assert "left to the next scheduler" not in core.summary(2.0)


def test_run_that_could_not_be_settled_and_is_deleted_is_not_left() -> None:
    core = Core(Rules("me", ME), 0.0)
    core.handle(RunLeft("aaa", "cannot settle run aaa"), 0.0)
    (recover,) = (each for each in core.begin_cycle(0.0) if isinstance(each, do.Recover))
    assert recover.unseen == {"aaa"}
    core.handle(ClaimsRecovered(Recovered(gone=("aaa",))), 1.0)
    assert "left to the next scheduler" not in core.summary(2.0)
