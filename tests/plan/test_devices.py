"""Which devices a run gets: no device is assigned twice, fractions share one, and whole devices stay whole."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guild_dask.plan import devices
from guild_dask.plan.placement import PATIENCE, Plan, StagedRun, Worker, plan
from guild_dask.plan.reasons import IMPOSSIBLE, InUse, NotDefined, NotWhole, Reserved, TooLarge

checked = settings(deadline=None, max_examples=200)


def worker(slots: int = 9, name: str = "w", **free: float) -> Worker:
    """Returns a worker whose devices, named d0 and so on, have these shares free."""
    total = {"gpu": float(len(free))}
    return Worker(name, slots, total, slots, {"gpu": sum(free.values())}, free)


def run(run_id: str, gpu: float = 0, *pins: str, share: float = 1) -> StagedRun:
    return StagedRun(run_id, {"gpu": gpu} if not pins else {f"gpu:{pin}": share for pin in pins})


def given_by(decided: Plan) -> dict[str, dict[str, float]]:
    return {run_id: dict(shares) for run_id, shares in decided.devices.items()}


def test_runs_get_devices_of_their_own_in_order() -> None:
    decided = plan([run("aaa", 1), run("bbb", 2), run("ccc", 1)], [worker(d0=1, d1=1, d2=1)])
    assert given_by(decided) == {"aaa": {"d0": 1}, "bbb": {"d1": 1, "d2": 1}}
    assert decided.held == {"ccc": InUse("gpu", 1, 0)}


def test_two_halves_share_a_device_and_leave_the_other_whole() -> None:
    decided = plan([run("aaa", 0.5), run("bbb", 0.5), run("ccc", 1)], [worker(d0=1, d1=1)])
    assert given_by(decided) == {"aaa": {"d0": 0.5}, "bbb": {"d0": 0.5}, "ccc": {"d1": 1}}


def test_halves_of_two_devices_are_not_a_whole_device() -> None:
    # As a plain amount, there would be enough.
    decided = plan([run("aaa", 1)], [worker(d0=0.5, d1=0.5)])
    assert decided.held == {"aaa": InUse("gpu", 1, 0)}


def test_three_thirds_share_a_device() -> None:
    third = 1 / 3
    decided = plan([run(name, third) for name in "abc"], [worker(d0=1)])
    assert set(given_by(decided)) == {"a", "b", "c"}


def test_part_is_taken_of_the_device_that_has_the_least_left() -> None:
    decided = plan([run("aaa", 0.25)], [worker(d0=1, d1=0.5, d2=0.25)])
    assert given_by(decided) == {"aaa": {"d2": 0.25}}


def test_one_and_a_half_devices_are_impossible() -> None:
    held = plan([run("aaa", 1.5), run("bbb", 3)], [worker(d0=1, d1=1)]).held
    assert held == {"aaa": NotWhole("gpu", 1.5), "bbb": TooLarge("gpu", 3, 2)}
    assert str(held["aaa"]) == "requests gpu=1.5; use a whole number (1, 2, ...) or a part of one (0.5)"


def test_gpus_without_names_are_a_plain_amount() -> None:
    plain = Worker("w", 9, {"gpu": 2}, 9, {"gpu": 2})
    decided = plan([run("aaa", 1.5), run("bbb", 0, "d7")], [plain])
    assert [start.id for start, _ in decided.starts] == ["aaa", "bbb"]
    assert decided.devices == {}


def test_run_gets_the_device_that_it_names() -> None:
    decided = plan([run("aaa", 0, "d0"), run("bbb", 1), run("ccc", 0, "d0")], [worker(d0=1, d1=1)])
    assert given_by(decided) == {"aaa": {"d0": 1}, "bbb": {"d1": 1}}
    assert decided.held == {"ccc": InUse("gpu:d0", 1, 0)}


def test_reason_names_a_device_that_no_worker_has() -> None:
    held = plan([run("aaa", 0, "d9")], [worker(d0=1)]).held
    assert held == {"aaa": NotDefined(("gpu:d9",))}


def test_run_goes_to_the_worker_that_has_the_device() -> None:
    decided = plan([run("aaa", 0, "e1")], [worker(name="v", d0=1), worker(name="w", e0=1, e1=1)])
    assert decided.starts[0][1] == "w"
    assert given_by(decided) == {"aaa": {"e1": 1}}


def test_devices_are_reserved_for_a_run_that_was_passed_over_often() -> None:
    staged = [run("aaa", 2), run("bbb", 1), run("ccc", 0.5), run("ddd", 0, "d0")]
    decided = plan(staged, [worker(d0=1, d1=0)], {"aaa": PATIENCE})
    kept = Reserved("aaa")
    assert decided.held == {"aaa": InUse("gpu", 2, 1), "bbb": kept, "ccc": kept, "ddd": kept}


def test_device_is_reserved_for_a_run_that_names_it() -> None:
    staged = [run("aaa", 0, "d0"), run("bbb", 0.25), run("ccc", 1)]
    decided = plan(staged, [worker(d0=0.5, d1=1, d2=1)], {"aaa": PATIENCE})
    assert "d0" not in {name for shares in given_by(decided).values() for name in shares}


def test_passing_over_is_counted_whether_devices_have_names_or_not() -> None:
    decided = plan([run("aaa", 0, "d0", "d1"), run("bbb", 1)], [worker(d0=1, d1=0)])
    assert decided.passed == {"aaa": 1}


# Properties. Shares are quarters, kept as whole numbers here.

ASKS = st.sampled_from([0, 1, 2, 3, 4, 4, 8, 12, 6])
QUARTERS = st.lists(st.integers(0, 4), min_size=1, max_size=4)


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[StagedRun], list[Worker], dict[str, int]]:
    workers = []
    for number in range(draw(st.integers(1, 3))):
        free = {f"w{number}d{index}": quarters / 4 for index, quarters in enumerate(draw(QUARTERS))}
        workers.append(worker(draw(st.integers(0, 6)), f"w{number}", **free))
    names = [name for each in workers for name in each.devices]
    staged = []
    for number in range(draw(st.integers(0, 10))):
        requests = {"gpu": draw(ASKS) / 4}
        if draw(st.integers(0, 3)) == 0:
            pins = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
            requests = {f"gpu:{name}": draw(st.sampled_from([0.5, 1.0])) for name in pins}
            if draw(st.booleans()):
                requests["gpu"] = draw(st.sampled_from([0.5, 1.0]))
        staged.append(StagedRun(f"r{number}", requests))
    passed = {each.id: PATIENCE for each in staged if draw(st.booleans())}
    return staged, workers, passed


@checked
@given(situations())
def test_no_device_is_assigned_twice(situation: tuple[list[StagedRun], list[Worker], dict[str, int]]) -> None:
    staged, workers, passed = situation
    decided = plan(staged, workers, passed)
    left = {name: share for each in workers for name, share in each.devices.items()}
    where = {start.id: name for start, name in decided.starts}
    homes = {name: each.name for each in workers for name in each.devices}
    for run_id, shares in decided.devices.items():
        for name, share in shares.items():
            assert homes[name] == where[run_id]
            left[name] -= share
    assert all(share >= 0 for share in left.values())


@checked
@given(situations())
def test_run_gets_the_shares_that_it_requests_and_whole_devices_whole(
    situation: tuple[list[StagedRun], list[Worker], dict[str, int]],
) -> None:
    decided = plan(*situation)
    for start, _ in decided.starts:
        shares = decided.devices.get(start.id, {})
        pins = devices.pinned(start.requests)
        assert {name: shares[name] for name in pins} == pins
        others = sorted(share for name, share in shares.items() if name not in pins)
        asked = start.requests.get("gpu", 0)
        assert others == ([] if not asked else [asked] if asked < 1 else [1.0] * int(asked))


@checked
@given(situations())
def test_every_run_starts_or_has_a_reason_and_a_run_that_fits_is_not_held(
    situation: tuple[list[StagedRun], list[Worker], dict[str, int]],
) -> None:
    staged, workers, passed = situation
    decided = plan(staged, workers, passed)
    assert sorted([*(start.id for start, _ in decided.starts), *decided.held]) == sorted(each.id for each in staged)
    left = left_after(workers, decided)
    for each in staged:
        reason = decided.held.get(each.id)
        assert reason is None or str(reason)
        if reason is not None and not isinstance(reason, (Reserved, *IMPOSSIBLE)):
            wanted = {name: amount for name, amount in each.requests.items() if amount}
            assert not any(slots and wanted and devices.pick(free, wanted) is not None for slots, free in left)


def left_after(workers: Sequence[Worker], decided: Plan) -> list[tuple[int, Mapping[str, float]]]:
    """Returns the slots and shares that are left on each worker."""
    found = []
    for each in workers:
        here = [start.id for start, name in decided.starts if name == each.name]
        free: Mapping[str, float] = each.devices
        for run_id in here:
            free = devices.left(free, decided.devices.get(run_id, {}))
        found.append((each.free_slots - len(here), free))
    return found


@pytest.mark.parametrize("asked", [0.25, 0.5, 1, 2])
def test_stream_of_halves_does_not_starve_a_run_that_requests_whole_devices(asked: float) -> None:
    # Halves are staged for ever, and each runs for three rounds. The run that requests whole devices was staged first.
    waiting = [run("whole", 2)]
    running: list[tuple[int, Mapping[str, float]]] = []
    passed: Mapping[str, int] = {}
    for now in range(200):
        running = [(end, shares) for end, shares in running if end > now]
        waiting += [run(f"part{now}-{number}", asked) for number in range(9)]
        free: Mapping[str, float] = {"d0": 1.0, "d1": 1.0}
        for _, shares in running:
            free = devices.left(free, shares)
        decided = plan(waiting, [worker(9, "w", **free)] if now else [worker(d0=0.5, d1=0.5)], passed)
        passed = decided.passed
        if "whole" in decided.devices:
            return
        running += [(now + 3 + number % 2, decided.devices[each.id]) for number, (each, _) in enumerate(decided.starts)]
        waiting = [each for each in waiting if each.id in decided.held][:20]
    raise AssertionError("it never started")
