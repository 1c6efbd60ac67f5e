"""The plan: which staged runs start now, on which worker, and why the others wait."""

import functools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from guild_dask.plan.capacity import SEARCH, TIME
from guild_dask.plan.placement import DAY, PATIENCE, StagedRun, Worker, is_impossible, plan, position_for
from guild_dask.plan.reasons import (
    IMPOSSIBLE,
    InUse,
    NoFreeSlot,
    NoSingleWorker,
    NotDefined,
    NoWorker,
    Reason,
    Reserved,
    TooLarge,
    TooLong,
)
from guild_dask.plan.resources import remaining

checked = settings(deadline=None, max_examples=150)


def idle(name: str, slots: int, **total: float) -> Worker:
    return Worker(name, slots, total, slots, total)


def run(run_id: str, **requests: float) -> StagedRun:
    return StagedRun(run_id, requests)


def started(
    staged: Sequence[StagedRun], workers: Sequence[Worker], passed: Mapping[str, int] | None = None
) -> list[str]:
    return [start.id for start, _ in plan(staged, workers, passed).starts]


# Examples


def test_runs_start_in_order_while_there_are_slots() -> None:
    decided = plan([run("aaa"), run("bbb"), run("ccc")], [idle("w", 2)])
    assert decided.starts == ((run("aaa"), "w"), (run("bbb"), "w"))
    assert decided.held == {"ccc": NoFreeSlot(2)}


def test_run_that_fits_passes_an_earlier_one_that_waits_for_something_else() -> None:
    # Dask's worker considers only the first of its waiting tasks, and would leave the free `b` idle.
    busy = Worker("w", 4, {"a": 1, "b": 1}, 3, {"a": 0, "b": 1})
    decided = plan([run("aaa", a=1), run("bbb", b=1)], [busy])
    assert [start.id for start, _ in decided.starts] == ["bbb"]
    assert decided.held == {"aaa": InUse("a", 1, 0)}
    # It took nothing that the earlier run requests, so that run was not passed over.
    assert decided.passed == {}


def test_run_larger_than_every_worker_is_held() -> None:
    # Two workers with 2 GPUs each have 4 together, but a run needs a single worker.
    workers = [idle("v", 1, gpu=2), idle("w", 1, gpu=2)]
    assert plan([run("aaa", gpu=3)], workers).held == {"aaa": TooLarge("gpu", 3, 2)}


def test_run_a_byte_larger_than_every_worker_is_held() -> None:
    # The tolerance is for sums. Here two typed numbers are compared, and Dask compares them to the byte.
    assert plan([run("aaa", mem=8e9 + 1)], [idle("w", 1, mem=8e9)]).held == {"aaa": TooLarge("mem", 8e9 + 1, 8e9)}


@pytest.mark.parametrize("amount", [1e-300, 1e-10, 1])
def test_no_amount_is_too_small_to_be_more_than_nothing(amount: float) -> None:
    assert plan([run("aaa", a=amount)], [idle("w", 1, a=0)]).held == {"aaa": TooLarge("a", amount, 0)}


def test_all_undefined_names_are_reported_before_other_reasons() -> None:
    held = plan([run("aaa", foo=5, baz=1, bar=1)], [idle("w", 1, foo=3)]).held
    assert held == {"aaa": NotDefined(("bar", "baz"))}
    assert str(held["aaa"]) == "requires resources not defined for cluster: bar, baz"


@pytest.mark.parametrize("amount", [1e-300, 1e-10, 1])
def test_no_amount_is_too_small_to_be_undefined(amount: float) -> None:
    assert plan([run("aaa", foo=amount)], [idle("w", 1)]).held == {"aaa": NotDefined(("foo",))}


def test_request_for_0_of_an_undefined_resource_is_no_request() -> None:
    assert started([run("aaa", foo=0)], [idle("w", 1)]) == ["aaa"]


def test_run_whose_amounts_are_on_different_workers_is_held() -> None:
    held = plan([run("aaa", a=1, b=1)], [idle("v", 1, a=1), idle("w", 1, b=1)]).held
    assert held == {"aaa": NoSingleWorker(("a", "b"))}


def test_without_workers_runs_wait_for_one() -> None:
    # This must not be reported as a run that can never start.
    assert plan([run("aaa", a=1)], []).held == {"aaa": NoWorker()}
    assert is_impossible(run("aaa", a=1), []) is None


def test_worker_without_slots_is_ignored() -> None:
    assert plan([run("aaa")], [idle("w", 0)]).held == {"aaa": NoWorker()}
    assert plan([run("aaa", a=1)], [idle("v", 0, a=1), idle("w", 1)]).held == {"aaa": NotDefined(("a",))}


def test_fractions_of_a_resource_add_up_to_the_whole() -> None:
    # 0.1 + 0.2 is more than 0.3 in binary.
    assert started([run("aaa", a=0.1), run("bbb", a=0.2)], [idle("w", 2, a=0.3)]) == ["aaa", "bbb"]


def test_run_goes_where_it_leaves_the_larger_gap() -> None:
    # Otherwise the second run would find 3 on each worker.
    workers = [idle("v", 2, a=4), Worker("w", 2, {"a": 4}, 1, {"a": 1})]
    assert plan([run("aaa", a=1), run("bbb", a=4)], workers).starts == ((run("aaa", a=1), "w"), (run("bbb", a=4), "v"))


def test_overcommitted_worker_holds_runs() -> None:
    # Runs of a dead scheduler continue, and count, even if the new scheduler has fewer slots.
    crowded = Worker("w", 1, {"a": 1}, -1, {"a": -2})
    assert plan([run("aaa"), run("bbb", a=1)], [crowded]).held == {
        "aaa": NoFreeSlot(1),
        "bbb": InUse("a", 1, -2),
    }


def test_reason_is_the_resource_if_a_free_slot_would_not_be_enough() -> None:
    full = Worker("w", 2, {"gpu": 1}, 0, {"gpu": 0})
    assert plan([run("aaa", gpu=1)], [full]).held == {"aaa": InUse("gpu", 1, 0)}
    other = Worker("v", 2, {"gpu": 1}, 0, {"gpu": 1})
    assert plan([run("aaa", gpu=1)], [full, other]).held == {"aaa": NoFreeSlot(4)}


def test_passing_over_is_counted_if_the_later_run_takes_what_the_earlier_one_requests() -> None:
    busy = Worker("w", 9, {"a": 4, "b": 1}, 8, {"a": 3, "b": 1})
    staged = [run("aaa", a=4), run("bbb", a=1), run("ccc", b=1), run("ddd", a=2)]
    decided = plan(staged, [busy], {"aaa": 5})
    assert [start.id for start, _ in decided.starts] == ["bbb", "ccc", "ddd"]
    assert decided.passed == {"aaa": 7}


def test_requests_of_a_run_that_was_passed_over_often_are_reserved() -> None:
    busy = Worker("w", 9, {"a": 4, "b": 1}, 8, {"a": 3, "b": 1})
    staged = [run("aaa", a=4), run("bbb", a=1), run("ccc", b=1)]
    assert started(staged, [busy], {"aaa": PATIENCE - 1}) == ["bbb", "ccc"]
    decided = plan(staged, [busy], {"aaa": PATIENCE})
    assert [start.id for start, _ in decided.starts] == ["ccc"]
    assert decided.held == {"aaa": InUse("a", 4, 3), "bbb": Reserved("aaa")}


def test_run_that_fits_beside_a_reservation_starts() -> None:
    busy = Worker("w", 9, {"a": 4}, 8, {"a": 3.5})
    other = Worker("v", 9, {"a": 1}, 9, {"a": 1})
    assert started([run("aaa", a=4), run("bbb", a=1)], [busy, other], {"aaa": PATIENCE}) == ["bbb"]
    assert started([run("aaa", a=2, b=1), run("bbb", a=2)], [_half_busy()], {"aaa": PATIENCE}) == ["bbb"]


def _half_busy() -> Worker:
    return Worker("w", 9, {"a": 4, "b": 1}, 8, {"a": 4, "b": 0})


def test_worker_that_lacks_the_least_is_reserved() -> None:
    workers = [Worker("v", 9, {"a": 4}, 8, {"a": 1}), Worker("w", 9, {"a": 4}, 8, {"a": 3})]
    decided = plan([run("aaa", a=4), run("bbb", a=2), run("ccc", a=1)], workers, {"aaa": PATIENCE})
    assert decided.held == {"aaa": InUse("a", 4, 3), "bbb": Reserved("aaa")}
    assert decided.starts == ((run("ccc", a=1), "v"),)


def test_reservation_is_not_given_to_a_later_run_that_was_passed_over_often_too() -> None:
    busy = Worker("w", 9, {"a": 4, "b": 1}, 7, {"a": 3, "b": 0})
    staged = [run("aaa", a=4), run("bbb", a=2, b=1), run("ccc", a=1)]
    held = plan(staged, [busy], {"aaa": PATIENCE, "bbb": PATIENCE}).held
    assert held == {"aaa": InUse("a", 4, 3), "bbb": InUse("b", 1, 0), "ccc": Reserved("aaa")}


def test_one_worker_is_reserved_for_one_run() -> None:
    # If both were reserved, both workers would be idle, and small runs would wait for nothing.
    workers = [Worker(name, 9, {"a": 4}, 8, {"a": 3}) for name in ("v", "w")]
    staged = [run("aaa", a=4), run("bbb", a=1), run("ccc", a=1)]
    assert started(staged, workers, {"aaa": PATIENCE}) == ["bbb", "ccc"]


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (TooLarge("gpu", 3, 2), "requests gpu=3, largest worker has gpu=2"),
        (NoSingleWorker(("a", "b")), "no single worker has all that it requests: a, b"),
        (NoWorker(), "waits for a worker"),
        (NoFreeSlot(2), "waits for one of 2 slot(s)"),
        (InUse("a", 2, -1), "waits for a=2, 0 free"),
        (Reserved("aaa"), "waits because run aaa has been passed over too often and is next"),
    ],
)
def test_reasons_say_what_a_user_can_act_on(reason: Reason, text: str) -> None:
    assert str(reason) == text


# Properties. Amounts are tenths, as whole numbers here, so that the expected remainders are exact.

NAMES = ("a", "b", "c")
TENTHS = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 25))


@dataclass(frozen=True)
class Machine:
    """A worker in whole tenths."""

    name: str
    slots: int
    total: Mapping[str, int]
    free_slots: int
    free: Mapping[str, int]

    def worker(self) -> Worker:
        return Worker(self.name, self.slots, in_units(self.total), self.free_slots, in_units(self.free))

    def could_hold(self, requests: Mapping[str, int]) -> bool:
        return self.slots > 0 and all(self.total.get(name, 0) >= amount for name, amount in requests.items())


def in_units(tenths: Mapping[str, int]) -> dict[str, float]:
    return {name: amount / 10 for name, amount in tenths.items()}


@st.composite
def machines(draw: st.DrawFn) -> list[Machine]:
    found = []
    for number in range(draw(st.integers(0, 4))):
        slots = draw(st.integers(0, 4))
        total = draw(TENTHS)
        taken = draw(st.fixed_dictionaries({name: st.integers(0, amount) for name, amount in total.items()}))
        free = {name: amount - taken[name] for name, amount in total.items()}
        found.append(Machine(f"w{number}", slots, total, draw(st.integers(0, slots)), free))
    return found


@dataclass(frozen=True)
class Situation:
    """The arguments of a plan."""

    requests: Mapping[str, Mapping[str, int]]  # run id -> tenths, in the order of the queue
    machines: Sequence[Machine]
    passed: Mapping[str, int]
    patience: int

    @property
    def staged(self) -> list[StagedRun]:
        return [StagedRun(run_id, in_units(requests)) for run_id, requests in self.requests.items()]

    @property
    def workers(self) -> list[Worker]:
        return [machine.worker() for machine in self.machines]


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    # Few kinds, so that several runs have equal requests.
    kinds = draw(st.lists(TENTHS, min_size=1, max_size=4))
    chosen = draw(st.lists(st.sampled_from(kinds), max_size=12))
    requests = {f"r{number:02}": kind for number, kind in enumerate(chosen)}
    passed = draw(st.dictionaries(st.sampled_from([*requests, "gone"]), st.integers(1, 6)))
    return Situation(requests, draw(machines()), passed, draw(st.integers(1, 4)))


def left_after(situation: Situation) -> dict[str, tuple[int, dict[str, int]]]:
    """Returns the slots and tenths that are left on each worker after the plan's starts."""
    left = {machine.name: (machine.free_slots, dict(machine.free)) for machine in situation.machines}
    for start, name in plan(situation.staged, situation.workers, situation.passed, situation.patience).starts:
        slots, free = left[name]
        for resource, amount in situation.requests[start.id].items():
            if amount:
                free[resource] -= amount
        left[name] = (slots - 1, free)
    return left


def fits_in(requests: Mapping[str, int], slots: int, free: Mapping[str, int]) -> bool:
    return slots > 0 and all(free.get(name, 0) >= amount for name, amount in requests.items())


@checked
@given(situations())
def test_no_worker_is_over_committed(situation: Situation) -> None:
    for slots, free in left_after(situation).values():
        assert slots >= 0
        assert all(amount >= 0 for amount in free.values())


@checked
@given(situations())
def test_every_run_starts_or_has_a_reason(situation: Situation) -> None:
    decided = plan(situation.staged, situation.workers, situation.passed, situation.patience)
    starts = [start.id for start, _ in decided.starts]
    assert sorted([*starts, *decided.held]) == sorted(situation.requests)
    assert starts == sorted(starts, key=list(situation.requests).index)
    assert all(str(reason) for reason in decided.held.values())


@checked
@given(situations())
def test_run_that_fits_is_held_only_for_an_earlier_run_that_was_passed_over_often(situation: Situation) -> None:
    left = left_after(situation)
    decided = plan(situation.staged, situation.workers, situation.passed, situation.patience)
    order = list(situation.requests)
    for run_id, reason in decided.held.items():
        fitting = any(fits_in(situation.requests[run_id], slots, free) for slots, free in left.values())
        assert isinstance(reason, Reserved) or not fitting
        if isinstance(reason, Reserved):
            assert order.index(reason.for_run) < order.index(run_id)
            assert situation.passed[reason.for_run] >= situation.patience
            assert reason.for_run in decided.held


@checked
@given(situations())
def test_order_is_kept_among_runs_with_equal_requests(situation: Situation) -> None:
    held_kinds = []
    starts = {start.id for start, _ in plan(situation.staged, situation.workers, situation.passed).starts}
    for run_id, requests in situation.requests.items():
        needs = {name: amount for name, amount in requests.items() if amount}
        if run_id in starts:
            assert needs not in held_kinds
        else:
            held_kinds.append(needs)


@checked
@given(situations())
def test_exactly_the_impossible_runs_have_a_final_reason(situation: Situation) -> None:
    held = plan(situation.staged, situation.workers, situation.passed, situation.patience).held
    with_slots = [machine for machine in situation.machines if machine.slots > 0]
    for staged in situation.staged:
        requests = {name: amount for name, amount in situation.requests[staged.id].items() if amount}
        reason = held.get(staged.id)
        undefined = tuple(sorted(name for name in requests if all(name not in machine.total for machine in with_slots)))
        largest = {name: max((machine.total.get(name, 0) for machine in with_slots), default=0) for name in requests}
        too_large = sorted(name for name in requests if requests[name] > largest[name])
        expected: Reason | None = None
        if not with_slots:
            expected = NoWorker()
        elif undefined:
            expected = NotDefined(undefined)
        elif too_large:
            expected = TooLarge(too_large[0], requests[too_large[0]] / 10, largest[too_large[0]] / 10)
        elif not any(machine.could_hold(requests) for machine in with_slots):
            expected = NoSingleWorker(tuple(sorted(requests)))
        if expected:
            assert reason == expected
        else:
            assert not isinstance(reason, (*IMPOSSIBLE, NoWorker))
        # The scheduler uses this to report such runs before it makes a plan.
        assert is_impossible(staged, situation.workers) == (None if isinstance(expected, NoWorker) else expected)


@checked
@given(situations())
def test_reason_of_a_waiting_run_is_true(situation: Situation) -> None:
    left = left_after(situation)
    held = plan(situation.staged, situation.workers, situation.passed, situation.patience).held
    for run_id, reason in held.items():
        requests = situation.requests[run_id]
        able = [machine for machine in situation.machines if machine.could_hold(requests)]
        if isinstance(reason, NoFreeSlot):
            assert reason.slots == sum(machine.slots for machine in able)
            assert all(left[machine.name][0] == 0 for machine in able)
        if isinstance(reason, InUse):
            assert reason.requested == requests[reason.name] / 10
            assert reason.free < reason.requested <= max(machine.total[reason.name] for machine in able) / 10


@checked
@given(situations())
def test_only_waiting_runs_are_counted_as_passed_over_and_counts_never_fall(situation: Situation) -> None:
    decided = plan(situation.staged, situation.workers, situation.passed, situation.patience)
    order = list(situation.requests)
    starts = [start.id for start, _ in decided.starts]
    for run_id, count in decided.passed.items():
        assert not isinstance(decided.held[run_id], IMPOSSIBLE)
        later = [start for start in starts if order.index(start) > order.index(run_id)]
        assert 0 <= count - situation.passed.get(run_id, 0) <= len(later)


@checked
@given(situations())
def test_same_situation_gives_the_same_plan(situation: Situation) -> None:
    # The order in which a user wrote the parts of a tag does not matter.
    turned = [StagedRun(run.id, dict(reversed(list(run.requests.items())))) for run in situation.staged]
    first = plan(situation.staged, situation.workers, situation.passed, situation.patience)
    assert plan(turned, situation.workers, situation.passed, situation.patience) == first


# Priorities

SECOND = 1_000_000
PRIORITIES = st.integers(-1000, 1000)


@checked
@given(st.lists(st.tuples(st.integers(0, DAY // SECOND - 1), PRIORITIES), max_size=20))
def test_of_runs_staged_within_a_day_higher_priorities_come_first_and_then_the_older(
    runs: list[tuple[int, int]],
) -> None:
    in_line = sorted(runs, key=lambda run: position_for(run[0] * SECOND, run[1]))
    assert in_line == sorted(runs, key=lambda run: (-run[1], run[0]))


@checked
@given(st.integers(0, 2**53), PRIORITIES, PRIORITIES, st.integers(1, DAY))
def test_run_is_overtaken_only_by_those_that_come_within_a_day_for_each_point_of_priority(
    since: int, low: int, high: int, later: int
) -> None:
    # All runs that are staged after that are behind it: no run waits for ever.
    comes = since + max(0, high - low) * DAY + later
    assert position_for(since, low) < position_for(comes, high)


# Over time


class Cluster:
    """Workers over time: each run that a plan starts takes a given number of rounds."""

    def __init__(self, workers: Sequence[Worker], patience: int) -> None:
        self.patience = patience
        self.waiting: list[StagedRun] = []
        self._workers = workers
        self._running: dict[str, tuple[StagedRun, str]] = {}
        self._passed: Mapping[str, int] = {}
        self._ends: dict[str, int] = {}

    def round(self, now: int, durations: Iterator[int]) -> None:
        for run_id in [run_id for run_id, end in self._ends.items() if end <= now]:
            del self._ends[run_id]
            del self._running[run_id]
        workers = [self._with_what_is_free(worker) for worker in self._workers]
        decided = plan(self.waiting, workers, self._passed, self.patience)
        self._passed = decided.passed
        for start, worker in decided.starts:
            self._running[start.id] = start, worker
            self._ends[start.id] = now + next(durations)
        self.waiting = [staged for staged in self.waiting if staged.id in decided.held]

    def _with_what_is_free(self, worker: Worker) -> Worker:
        here = [run.requests for run, name in self._running.values() if name == worker.name]
        free = functools.reduce(remaining, here, dict(worker.total))
        return replace(worker, free_slots=worker.slots - len(here), free=free)


def durations_for(seed: int) -> Iterator[int]:
    """Yields one to three rounds, in an order that a seed decides and hypothesis can shrink."""
    state = seed
    while True:
        state = (state * 1103515245 + 12345) % 2**31
        yield 1 + (state >> 16) % 3


LONGEST = 3


@settings(deadline=None, max_examples=150)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8), st.integers(0, 4)), min_size=1, max_size=3),
    early=st.lists(st.fixed_dictionaries({"a": st.integers(0, 8), "b": st.integers(0, 4)}), min_size=1, max_size=5),
    stream=st.lists(st.fixed_dictionaries({"a": st.integers(0, 2), "b": st.integers(0, 1)}), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
    patience=st.integers(1, 5),
)
def test_no_run_waits_for_ever_while_small_ones_keep_coming(
    sizes: list[tuple[int, int, int]],
    early: list[dict[str, int]],
    stream: list[dict[str, int]],
    seed: int,
    patience: int,
) -> None:
    workers = [idle(f"w{number}", slots, a=a, b=b) for number, (slots, a, b) in enumerate(sizes)]
    cluster = Cluster(workers, patience)
    possible = [StagedRun(f"early{number}", requests) for number, requests in enumerate(early)]
    cluster.waiting = [staged for staged in possible if is_impossible(staged, workers) is None]
    assume(cluster.waiting)
    durations = durations_for(seed)
    slots = sum(worker.slots for worker in workers)
    # Each early run is passed over a limited number of times, then waits for running runs, one early run at a time.
    bound = len(early) * (patience + 2) * (LONGEST + 1)
    for now in range(bound):
        # More small runs than could ever start: a run that ends is replaced at once.
        for number in range(slots + 1):
            requests = stream[(now + number) % len(stream)]
            cluster.waiting.append(StagedRun(f"small{now:04}-{number}", requests))
        cluster.round(now, durations)
        if not any(staged.id.startswith("early") for staged in cluster.waiting):
            return
        # The stream stays endless, and the queue short.
        del cluster.waiting[len(early) + 2 * slots :]
    assert [staged for staged in cluster.waiting if staged.id.startswith("early")] == []


def test_large_run_starts_soon_although_small_ones_keep_its_worker_busy() -> None:
    # Without a reservation it never would: two of the four units are always in use.
    cluster = Cluster([idle("w", 4, a=4)], patience=PATIENCE)
    cluster.waiting = [run("small0", a=1), run("small1", a=1), run("large", a=4)]
    rounds = 0
    while any(staged.id == "large" for staged in cluster.waiting):
        rounds += 1
        assert rounds < 2 * PATIENCE
        cluster.waiting += [run(f"small{rounds}-{number}", a=1) for number in range(2)]
        cluster.round(rounds, iter([2] * 4))
    assert rounds > 2


# Cost


def test_cost_of_a_plan_grows_with_kinds_and_workers_rather_than_with_runs() -> None:
    # If one run does not fit, the thousands behind it with the same requests are not checked again.
    workers = [idle(f"w{number:03}", 4, a=8, b=4) for number in range(100)]

    def seconds_for(count: int) -> float:
        staged = [run(f"r{number:05}", a=number % 20 / 4 + 1, b=number % 3) for number in range(count)]
        passed = {staged[number].id: number % (2 * PATIENCE) for number in range(0, count, 7)}
        times = []
        for _ in range(3):
            before = time.process_time()
            decided = plan(staged, workers, passed)
            times.append(time.process_time() - before)
            assert len(decided.held) > count / 2
        return min(times)

    assert seconds_for(10_000) < 4 * seconds_for(1_000)


LASTING = Worker("lasting", 1, {}, 1, {}, lasts=600)


def test_run_with_a_time_limit_is_placed_where_it_fits_in_time() -> None:
    short = Worker("short", 1, {}, 1, {}, lasts=60)
    run = StagedRun("aaa", {TIME: 300.0})
    assert plan([run], [short, LASTING]).starts == ((run, "lasting"),)


def test_run_waits_for_a_worker_that_lasts_long_enough() -> None:
    # The present worker ends too soon, and a requested one would not.
    run = StagedRun("aaa", {TIME: 300.0})
    short = Worker("short", 1, {}, 1, {}, lasts=60)
    to_come = Worker("to come", 1, {}, 0, {}, is_to_come=True, lasts=600)
    assert plan([run], [short, to_come]).held == {"aaa": NoWorker()}


def test_run_that_may_take_longer_than_any_worker_lasts_is_impossible() -> None:
    assert plan([StagedRun("aaa", {TIME: 3600.0})], [LASTING]).held == {"aaa": TooLong(3600.0, 600)}


def test_runs_do_not_use_up_the_time_of_a_worker() -> None:
    two = Worker("two", 2, {}, 2, {}, lasts=600)
    runs = [StagedRun("aaa", {TIME: 500.0}), StagedRun("bbb", {TIME: 500.0})]
    assert len(plan(runs, [two]).starts) == 2


LIMITS = st.one_of(st.none(), st.integers(1, 100))


@given(
    limits=st.lists(LIMITS, min_size=1, max_size=8),
    lasting=st.lists(st.tuples(st.integers(1, 3), LIMITS), min_size=1, max_size=4),
)
@checked
def test_no_run_is_placed_where_it_may_not_end_in_time_and_none_is_held_that_may(
    limits: list[int | None], lasting: list[tuple[int, int | None]]
) -> None:
    workers = [
        Worker(f"w{number}", slots, {}, slots, {}, lasts=math.inf if lasts is None else lasts)
        for number, (slots, lasts) in enumerate(lasting)
    ]
    staged = [StagedRun(f"r{number}", {TIME: float(limit)} if limit else {}) for number, limit in enumerate(limits)]
    decided = plan(staged, workers)
    left = {worker.name: worker.slots for worker in workers}
    lasts = {worker.name: worker.lasts for worker in workers}
    for start, worker in decided.starts:
        left[worker] -= 1
        assert start.requests.get(TIME, 0.0) <= lasts[worker]
    longest = max(lasts.values())
    for each in (each for each in staged if each.id in decided.held):
        asked = each.requests.get(TIME, 0.0)
        assert not any(left[name] > 0 and asked <= lasts[name] for name in lasts)
        assert isinstance(decided.held[each.id], TooLong) == (asked > longest)


def test_worker_for_searches_alone_makes_no_other_run_impossible() -> None:
    # Workers of a cluster that has just been opened join later.
    head = Worker("scheduler", 16, {SEARCH: 16}, 16, {SEARCH: 16})
    runs = [StagedRun("plain"), StagedRun("large", {"gpu": 9})]
    assert plan(runs, [head]).held == {"plain": NoWorker(), "large": NoWorker()}
    assert [is_impossible(run, [head]) for run in runs] == [None, None]


def test_search_takes_no_slot_and_nothing_else_takes_its_place() -> None:
    # The one worker that has places for searches is the scheduler's own process.
    head = Worker("scheduler", 16, {SEARCH: 16}, 16, {SEARCH: 16})
    busy = Worker("busy", 1, {}, 0, {})
    found = plan([StagedRun("search", {SEARCH: 1}), StagedRun("trial")], [busy, head])
    assert [(run.id, worker) for run, worker in found.starts] == [("search", "scheduler")]
    assert found.held == {"trial": NoFreeSlot(1)}
