"""The stopping rules, as properties of curves: never the best, never after the end, whatever was read first."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from guild_dask.scheduler.search.stopping import Curve, Curves, Stop, asha, median

# Few values, so that there are ties, in curves of any length; trials are numbered.
CURVE = st.lists(st.integers(0, 9), min_size=1, max_size=12).map(
    lambda costs: {2 * step + 1: float(cost) for step, cost in enumerate(costs)}
)
NAMED = st.lists(CURVE, max_size=8).map(lambda curves: {str(number): curve for number, curve in enumerate(curves)})


def _curves(running: dict[str, Curve], completed: dict[str, Curve], stopped: dict[str, Curve]) -> Curves:
    """Returns curves of trials with different names."""
    groups = zip("rcs", (running, completed, stopped), strict=True)
    return Curves(*({f"{prefix}-{name}": curve for name, curve in group.items()} for prefix, group in groups))


@settings(deadline=None, max_examples=60)
@given(NAMED, NAMED, NAMED, st.integers(2, 5))
def test_asha_never_stops_the_best_at_its_rung(
    running: dict[str, Curve], completed: dict[str, Curve], stopped: dict[str, Curve], reduction: int
) -> None:
    curves = _curves(running, completed, stopped)
    for name, stop in asha(curves, reduction).items():
        reached = [cost for each in curves.all if (cost := each.cost_at(stop.step)) is not None]
        assert stop.cost == curves.running[name].cost_at(stop.step)
        assert stop.cost > min(reached)
        assert len(reached) >= reduction


@given(CURVE, st.integers(0, 30))
def test_cost_at_a_step_is_that_of_the_last_value_until_then_of_a_run_that_has_come_so_far(
    curve: Curve, step: int
) -> None:
    (found,) = Curves({"a": curve}, {}, {}).all
    before = [each for each in curve if each <= step]
    assert found.cost_at(step) == (curve[max(before)] if before and max(curve) >= step else None)
    assert found.best_until(step) == min((curve[each] for each in before), default=None)


@settings(deadline=None, max_examples=60)
@given(NAMED, NAMED, NAMED)
def test_no_rule_stops_a_trial_that_has_ended_or_comes_to_its_end(
    running: dict[str, Curve], completed: dict[str, Curve], stopped: dict[str, Curve]
) -> None:
    curves = _curves(running, completed, stopped)
    for found in (asha(curves), median(curves)):
        assert found.keys() <= curves.running.keys()
        assert all(stop.step < curves.last_step for stop in found.values())


@settings(deadline=None, max_examples=60)
@given(NAMED, NAMED, NAMED, st.randoms())
def test_rules_do_not_depend_on_what_was_read_first(
    running: dict[str, Curve], completed: dict[str, Curve], stopped: dict[str, Curve], chance: random.Random
) -> None:
    def shuffled(group: dict[str, Curve]) -> dict[str, Curve]:
        names = sorted(group)
        chance.shuffle(names)
        steps = {name: list(group[name]) for name in names}
        for each in steps.values():
            chance.shuffle(each)
        return {name: {step: group[name][step] for step in steps[name]} for name in names}

    curves = _curves(running, completed, stopped)
    other = _curves(shuffled(running), shuffled(completed), shuffled(stopped))
    assert asha(curves) == asha(other)
    assert median(curves) == median(other)


@settings(deadline=None, max_examples=60)
@given(NAMED, NAMED)
def test_median_never_stops_the_best_so_far(running: dict[str, Curve], completed: dict[str, Curve]) -> None:
    curves = _curves(running, completed, {})
    for stop in median(curves).values():
        assert stop.cost > min(min(curve.costs) for curve in curves.completed.values())


def test_asha_judges_at_the_highest_rung_that_a_trial_has_reached() -> None:
    # Rungs 1, 3 and 9. The slow trial is at 3, where two of three were better.
    good, fair, poor = ({step: cost / step for step in range(1, 10)} for cost in (1.0, 2.0, 3.0))
    slow = {1: 0.1, 2: 5.0, 3: 5.0, 4: 0.0}
    found = asha(Curves({"slow": slow}, {}, {"good": good, "fair": fair, "poor": poor}), 3)
    assert found == {"slow": Stop(3, 5.0, good[3])}


def test_trial_that_is_ahead_of_the_others_is_judged_where_enough_of_them_have_come() -> None:
    ahead = {1: 9.0, 3: 9.0, 9: 9.0}
    found = asha(Curves({"ahead": ahead}, {}, {"good": {1: 1.0, 3: 1.0}, "fair": {1: 2.0, 3: 2.0}}), 3)
    assert found == {"ahead": Stop(3, 9.0, 1.0)}


def test_few_trials_are_not_judged() -> None:
    assert asha(Curves({"a": {1: 9.0}, "b": {1: 1.0}}, {}, {})) == {}
    completed = {str(number): {1: 0.0, 2: 0.0} for number in range(4)}
    assert median(Curves({"a": {1: 9.0}}, completed, {})) == {}


def test_min_steps_is_the_first_rung() -> None:
    running = {name: {step: float(cost) for step in range(1, 6)} for name, cost in (("a", 1), ("b", 2), ("c", 3))}
    assert asha(Curves(running, {}, {}), 3, least=10) == {}
    assert set(asha(Curves(running, {}, {}), 3, least=5)) == {"b", "c"}


def test_steps_of_any_size_have_rungs() -> None:
    # A run that prints every 1000 steps has rungs at 1000, 3000, ...
    running = {name: {1000: float(cost)} for name, cost in (("a", 1), ("b", 2), ("c", 3))}
    assert {name: stop.step for name, stop in asha(Curves(running, {}, {})).items()} == {"b": 1000, "c": 1000}
