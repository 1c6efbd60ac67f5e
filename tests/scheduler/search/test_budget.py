"""How many trials are proposed, and when a search is over."""

import math
import struct

import pytest

from guild_dask.home.trials import Trial, TrialState
from guild_dask.plan.objectives import Objective
from guild_dask.plan.search_ends import FailedInARow, MissingScalar, OutOfTime, TargetReached, TrialsUsed
from guild_dask.scheduler.search.budget import Limits, NextTrials, next_trials
from guild_dask.scheduler.search.width import Capacity, Pool, width_for, width_of_pools, width_to_come

LOSS = (Objective("loss"),)


def _trials(*states: TrialState, values: tuple[float, ...] | None = (1.0,)) -> list[Trial]:
    return [
        Trial(f"t{number}", number, {"x": number}, 0.0, state, values, scalars=("loss",), ended=float(number))
        for number, state in enumerate(states, start=1)
    ]


def _next(trials: list[Trial], limits: Limits, width: int = 4, elapsed: float = 0.0) -> NextTrials:
    return next_trials(trials, limits, LOSS, width, elapsed)


def test_trials_in_flight_fill_the_width_and_all_trials_the_limit() -> None:
    running, done = TrialState.RUNNING, TrialState.COMPLETED
    assert _next([], Limits(20)).proposals == 4
    assert _next(_trials(running, done, TrialState.WAITING), Limits(20)).proposals == 2
    assert _next(_trials(*[done] * 18, running), Limits(20)).proposals == 1
    assert _next(_trials(*[running] * 6), Limits(20)).proposals == 0
    assert _next(_trials(*[done] * 20), Limits(20)).over == TrialsUsed(20)


def test_deleted_trial_does_not_count_and_other_ends_do() -> None:
    states = (TrialState.DELETED, TrialState.STOPPED, TrialState.PRUNED, TrialState.FAILED)
    assert _next(_trials(*states), Limits(4)).proposals == 1


def test_search_whose_first_trials_fail_is_stopped() -> None:
    failed = TrialState.FAILED
    assert not _next(_trials(*[failed] * 4), Limits(20)).is_failure
    assert _next(_trials(*[failed] * 5), Limits(20)).is_failure
    assert _next(_trials(*[failed] * 6), Limits(20)).over == FailedInARow(5, is_first=True, last="t5")
    assert _next(_trials(*[failed] * 6), Limits(20, max_failures=2)).over == FailedInARow(2, is_first=False, last="t6")
    # One that completes shows that trials can; later failures are the fault of their points.
    assert not _next(_trials(TrialState.COMPLETED, *[failed] * 9), Limits(20)).is_failure
    assert _next(_trials(TrialState.COMPLETED, *[failed] * 9), Limits(20, max_failures=9)).is_failure
    assert not _next(_trials(*[failed] * 9, TrialState.COMPLETED), Limits(20, max_failures=3)).is_failure


def test_failures_before_a_restart_do_not_end_the_search_again() -> None:
    trials = _trials(*[TrialState.FAILED] * 5)
    assert not next_trials(trials, Limits(20), LOSS, 4, 0.0, former=[each.id for each in trials]).is_failure


def test_missing_scalar_is_named_after_the_first_completed_trial() -> None:
    found = next_trials(_trials(TrialState.COMPLETED, values=None), Limits(20), (Objective("accuracy"),), 4, 0.0)
    assert found.is_failure
    assert found.over == MissingScalar("t1", ("accuracy",), ("loss",), "", "minimize")
    assert "it has loss" in str(found.over)


def test_trials_before_a_restart_may_lack_the_scalar() -> None:
    # The user may have corrected the script.
    trials = _trials(TrialState.COMPLETED, values=None)
    assert not next_trials(trials, Limits(20), LOSS, 4, 0.0, former=["t1"]).is_failure


def test_trial_without_a_value_does_not_end_a_search_whose_other_trials_have_one() -> None:
    # What it printed may be no scalar for Guild, as `loss: nan` is.
    diverged = Trial("t0", 0, {"x": 0}, 0.0, TrialState.COMPLETED, None)
    for state in (TrialState.RUNNING, TrialState.PRUNED, TrialState.STOPPED, TrialState.FAILED, TrialState.COMPLETED):
        trials = [diverged, *_trials(state)]
        assert not _next(trials, Limits(20)).is_failure, state
        assert not next_trials(trials, Limits(20), LOSS, 4, 0.0, former=["t1"]).is_failure, (
            "it has a value all the same"
        )


def test_message_about_a_missing_scalar_has_the_command_to_type() -> None:
    accuracy = (Objective("accuracy", is_maximized=True),)
    found = next_trials(_trials(TrialState.COMPLETED, values=None), Limits(20), accuracy, 4, 0.0, batch="a" * 32)
    assert str(found.over).endswith("name one to optimize: guild run --restart aaaaaaaa --maximize NAME")
    without = [Trial("t1", 1, {"x": 1}, 0.0, TrialState.COMPLETED, None)]
    assert "it has no scalars" in str(_next(without, Limits(20)).over)


def test_target_is_reached_by_a_completed_trial_only() -> None:
    assert _next(_trials(TrialState.COMPLETED), Limits(20, target=1.0)).over
    assert not _next(_trials(TrialState.RUNNING), Limits(20, target=1.0)).over
    assert not _next(_trials(TrialState.COMPLETED), Limits(20, target=0.9)).over
    accuracy = (Objective("loss", is_maximized=True),)
    assert next_trials(_trials(TrialState.COMPLETED), Limits(20, target=0.9), accuracy, 4, 0.0).over


def test_target_may_have_been_reached_by_an_earlier_run() -> None:
    limits = Limits(20, target=0.5)
    earlier = {"bad": (0.7,), "good": (0.5,)}
    assert next_trials([], limits, LOSS, 4, 0.0, earlier=earlier).over == TargetReached("loss", 0.5, "good")
    trials = _trials(TrialState.COMPLETED, values=(0.4,))
    assert next_trials(trials, limits, LOSS, 4, 0.0, earlier=earlier).over == TargetReached("loss", 0.5)
    assert next_trials([], limits, LOSS, 4, 0.0, earlier={"bad": (0.7,)}).proposals == 4


@pytest.mark.parametrize("target", [0.9, 0.1, 0.05, -0.7, 1e-45, 1e300])
def test_target_is_reached_by_the_very_value_as_event_files_store_it(target: float) -> None:
    (stored,) = struct.unpack("<f", struct.pack("<f", target)) if target < 1e39 else (math.inf,)
    for is_maximized in (False, True):
        for value in (stored, target):  # a file may also have all 64 bits
            trials = _trials(TrialState.COMPLETED, values=(value,))
            objectives = (Objective("loss", is_maximized=is_maximized),)
            found = next_trials(trials, Limits(20, target=target), objectives, 4, 0.0)
            assert found.over == TargetReached("loss", target), (value, is_maximized)


def test_time_ends_proposals() -> None:
    assert _next([], Limits(20, max_time=60), elapsed=59).proposals
    assert _next([], Limits(20, max_time=60), elapsed=60).over == OutOfTime()


def test_value_that_is_not_a_number_reaches_no_target() -> None:
    assert not _next(_trials(TrialState.COMPLETED, values=(math.nan,)), Limits(20, target=5.0)).over


def test_width_is_what_fits_on_the_workers() -> None:
    workers = [Capacity(8, {"gpu": 2, "mem": 64e9})]
    assert width_for(workers, {}) == 8
    assert width_for(workers, {"gpu": 1}) == 2
    assert width_for(workers, {"gpu": 0.25, "mem": 16e9}) == 4
    assert width_for(workers, {"tpu": 1}) == 0
    assert width_for([Capacity(4, {"x": 1.0})] * 5, {"x": 0.1}) == 20
    assert width_for([Capacity(20, {"x": 1.0})], {"x": 0.1}) == 10


def test_width_of_several_pools_is_what_fits_on_each_of_them() -> None:
    fixed = Pool([Capacity(4, {})])
    elastic = Pool([Capacity(1, {})] * 3, slots_at_most=20, kinds=[Capacity(1, {})])
    with_gpus = Pool([], slots_at_most=8, kinds=[Capacity(2, {"gpu": 1})])
    assert width_of_pools([fixed, elastic, with_gpus], {}) == 4 + 20 + 8
    assert width_of_pools([fixed, elastic, with_gpus], {"gpu": 1}) == 4


def test_width_of_an_elastic_pool_counts_the_workers_to_come() -> None:
    # Up to 5 workers with 4 slots and 2 GPUs each.
    assert width_to_come(20, [Capacity(4, {"gpu": 2})], {"gpu": 1}) == 10
    assert width_to_come(20, [Capacity(4, {})], {}) == 20
    assert width_to_come(0, [], {}) == 0
