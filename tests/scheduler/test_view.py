"""What observers see of a scheduler's core."""

from guild_dask.cluster.base import WorkerCapacity
from guild_dask.home.control import Control
from guild_dask.plan.reasons import NotDefined
from guild_dask.scheduler.answers import ClusterView
from guild_dask.scheduler.core import Rules
from guild_dask.scheduler.view import view_of
from guild_dask.scheduler.waiting import Demand
from tests.scheduler.world import ME, World


def seen(world: World) -> ClusterView:
    return ClusterView(tuple(world.workers.values()))


def test_kinds_that_differ_by_their_time_alone_are_told_apart() -> None:
    world = World(Rules("me", ME, demand=Demand(do_workers_end=True)))
    world.workers["job"] = WorkerCapacity("job", 1, {}, "host", label="job", lifetime=4000.0, ends=4000.0)
    world.stage("busy")
    world.cycle()
    for number in range(3):
        world.stage(f"run-{number}", "dask-time:30m")
    world.stage("long", "dask-time:5h")
    world.cycle()
    view = view_of(world.core, seen(world), world.now)
    assert [count for count, _ in view.kinds.values()] == [3, 1]
    assert {run.run: type(run.reason).__name__ for run in view.first} == {
        **dict.fromkeys(("run-0", "run-1", "run-2"), "NoFreeSlot"),
        "long": "TooLong",
    }


def test_reason_of_an_old_plan_is_not_shown_for_ever() -> None:
    # There is no new plan while nothing may start, but workers come and go.
    world = World()
    world.add_worker("small")
    world.stage("aaa", "dask:gpu=1")
    world.cycle()
    world.control = Control(is_paused=True)
    world.cycle(10.0)
    assert view_of(world.core, seen(world), world.now).first[0].reason == NotDefined(("gpu",))
    world.add_worker("large", gpu=1.0)
    world.cycle(10.0)
    assert view_of(world.core, seen(world), world.now).first[0].reason is None


def test_worker_is_shown_with_its_label_host_and_what_runs_use() -> None:
    world = World()
    world.add_worker("w", 2, gpu=2.0)
    world.stage("aaa", "dask:gpu=1")
    world.cycle()
    (worker,) = view_of(world.core, seen(world), world.now).workers
    assert (worker.name, worker.host, worker.used_slots, worker.slots) == ("w", "host-w", 1, 2)
    assert dict(worker.used) == {"gpu": 1.0}
