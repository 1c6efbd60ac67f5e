"""Whether a run is started again, and after which pause."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guild_dask.plan.retries import LOSSES, may_try_again, pause_after, policy_for

OUTCOMES = st.lists(st.booleans(), max_size=30)


def test_lost_run_is_tried_again_three_times_by_default() -> None:
    policy = policy_for(None)
    assert [may_try_again(policy, [True] * n, is_loss=True) for n in range(5)] == [True, True, True, False, False]


def test_failed_run_is_not_tried_again_by_default() -> None:
    assert not may_try_again(policy_for(None), [], is_loss=False)


def test_losses_and_failures_are_counted_separately() -> None:
    # Lost workers must not use up the retries that the user set for failures of the run itself.
    policy = policy_for(1)
    assert may_try_again(policy, [True], is_loss=False)
    assert may_try_again(policy, [False], is_loss=True)
    assert not may_try_again(policy, [True, False], is_loss=False)


def test_retries_0_means_no_retry_after_a_loss_either() -> None:
    assert not may_try_again(policy_for(0), [], is_loss=True)
    assert not may_try_again(policy_for(0), [], is_loss=False)


@given(st.one_of(st.none(), st.integers(0, 10)), OUTCOMES)
def test_number_of_attempts_is_limited(retries: int | None, outcomes: list[bool]) -> None:
    policy = policy_for(retries)
    made: list[bool] = []
    for is_loss in outcomes:
        if not may_try_again(policy, made, is_loss):
            break
        made.append(is_loss)
    assert sum(made) <= (LOSSES if retries is None else retries)
    assert len(made) - sum(made) <= (retries or 0)


@pytest.mark.parametrize("attempts", [0, 1, 2, 5, 1000])
def test_pause_grows_and_stays_bounded(attempts: int) -> None:
    for first in (5.0, 10.0):
        assert first <= pause_after(attempts, first) <= pause_after(attempts + 1, first) <= 600
