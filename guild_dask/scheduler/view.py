"""What observers see of a scheduler's core at a moment, as a value that the publisher takes."""

from guild_dask.monitor.publisher import QueuedRun, View
from guild_dask.monitor.state import MOST_WAITING, WorkerState
from guild_dask.plan.placement import Worker
from guild_dask.plan.reasons import IMPOSSIBLE, CannotBeRead, Delay
from guild_dask.scheduler.answers import ClusterView
from guild_dask.scheduler.core import Core


def view_of(core: Core, cluster: ClusterView, now: float) -> View:
    """Returns what observers see now."""
    waiting = core.waiting
    first = [run.id for run in waiting.first(MOST_WAITING)[:MOST_WAITING]]
    reasons = {waiting.kind(run.id): _reason(core, run.id) for run in waiting.first(1)}
    # That a file of the first run cannot be read keeps no other one from starting.
    heads = {kind: None if isinstance(reason, CannotBeRead) else reason for kind, reason in reasons.items()}
    shown_as = {
        worker.name: (worker.label or worker.name, worker.host, worker.about_devices) for worker in cluster.workers
    }
    return View(
        workers=tuple(
            _worker_state(each, *shown_as[each.name])
            for each in core.present_workers(cluster, now)
            if not each.is_for_searches
        ),
        kinds={kind: (count, heads.get(kind)) for kind, count in waiting.kinds().items()},
        first=tuple(_queued(core, run_id, heads.get(waiting.kind(run_id))) for run_id in first),
        held=waiting.listed_holds(),
        held_count=waiting.held_count,
        blocked_by=core.blocked_by,
        phase=core.phase,
        troubles=core.troubles.current(cluster.workers, core.failing),
        retrying=dict(core.ledger.retrying),
        whole_queue=lambda: [_queued(core, run_id) for run_id in waiting.in_order()],
    )


def _worker_state(worker: Worker, label: str, host: str, about_devices: str) -> WorkerState:
    used = {name: max(0.0, total - worker.free.get(name, 0.0)) for name, total in worker.total.items()}
    slots = max(0, worker.slots - worker.free_slots)
    return WorkerState(label, host, worker.slots, slots, worker.total, used, about_devices)


def _queued(core: Core, run_id: str, reason_of_kind: Delay | None = None) -> QueuedRun:
    run, kind = core.waiting[run_id], core.waiting.kind(run_id)
    reason = _reason(core, run_id) or reason_of_kind
    return QueuedRun(run_id, run.dir, run.since / 1e6, core.waiting.key(run_id)[0], kind, reason)


def _reason(core: Core, run_id: str) -> Delay | None:
    """Returns why a run waits: it never could start, or as the last plan has it, which may be outdated."""
    held = core.announcer.held.get(run_id)
    return core.announcer.impossible(core.waiting.kind(run_id)) or (None if isinstance(held, IMPOSSIBLE) else held)
