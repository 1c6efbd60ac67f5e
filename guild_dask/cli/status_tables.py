"""The tables of `guild-dask status`: workers, and running, waiting and ended runs. Empty tables have no lines."""

import os
from collections.abc import Iterable, Sequence

from guild_dask.cli import common
from guild_dask.home import run_view
from guild_dask.home.outcome import End
from guild_dask.monitor import estimate, formatting
from guild_dask.monitor.schedulers import Survivor
from guild_dask.monitor.state import EndedRun, RunningRun, State, WaitingRun
from guild_dask.plan.resources import format_amounts


def workers(state: State, most: int | None) -> list[str]:
    """Returns the workers; if not all can be shown, those with the most runs."""
    if not state.workers:
        return ["There is no worker yet."]
    several = len({worker.host for worker in state.workers}) > 1
    is_cut = most is not None and len(state.workers) > most
    chosen = sorted(state.workers, key=lambda worker: -worker.used_slots) if is_cut else state.workers
    rows = [
        (
            worker.name,
            *((worker.host,) if several else ()),
            f"{worker.used_slots}/{worker.slots}",
            formatting.amount_shares(worker.used, worker.total) or "-",
        )
        for worker in chosen[:most]
    ]
    columns = ["WORKER", *(["HOST"] if several else []), "SLOTS", "RESOURCES"]
    return common.table(columns, rows, wide=(0, -1)) + _more(len(state.workers), most)


def _name(runs_dir: str, run_id: str) -> str:
    return run_view.view(os.path.join(runs_dir, run_id)).name


def running(state: State, runs_dir: str, now: float, most: int | None) -> list[str]:
    """Returns the running runs: where, and for how long."""
    if not state.running:
        return []
    rows = [
        (
            formatting.short(run.run),
            _name(runs_dir, run.run),
            _requests(run),
            run.worker,
            formatting.duration(now - run.since),
        )
        for run in state.running[:most]
    ]
    lines = common.table(["RUNNING", "OPERATION", "REQUESTS", "WORKER", "FOR"], rows, wide=(1, 3, 2), last="green")
    return lines + _more(len(state.running), most)


def _requests(run: RunningRun) -> str:
    """Returns what a run requested, and the devices that it got."""
    devices = f" ({','.join(run.devices)})" if run.devices else ""
    return f"{format_amounts(run.asks)}{devices}".strip() or "-"


def waiting(state: State, runs_dir: str, now: float, most: int | None) -> list[str]:
    """Returns the first waiting runs: position in the queue, reason, and estimated start."""
    if not state.first:
        return []
    starts = estimate.seconds_until_starts(state, now)
    rows = [
        (
            formatting.short(run.run),
            "-" if place is None else str(place),
            _name(runs_dir, run.run),
            _why(state, run),
            "never" if place is None else formatting.about(start),
        )
        for run, place, start in list(zip(state.first, state.places, starts, strict=True))[:most]
    ]
    lines = common.table(["WAITING", "#", "OPERATION", "WHY", "STARTS"], rows, wide=(2, 3))
    return lines + _more(state.waiting, most)


def _why(state: State, run: WaitingRun) -> str:
    """Returns why a run waits: it is impossible, no run can start now, or its own reason; in this order."""
    if run.why and run.why.is_final:
        return str(run.why)
    if state.phase != "working":
        return f"the scheduler is {state.phase}"
    if state.blocked_by:
        return f"waits for {len(state.blocked_by)} other run(s) to end"
    return str(run.why or "is next")


def held(state: State, runs_dir: str, most: int | None) -> list[str]:
    """Returns the held runs."""
    rows = [
        (formatting.short(run), run_view.view(os.path.join(runs_dir, run)).operation or "-", str(why))
        for run, why in list(state.aside.items())[:most]
    ]
    return common.table(["HELD", "OPERATION", "WHY"], rows, wide=(1, 2)) + _more(state.held, most) if rows else []


def retrying(state: State, runs_dir: str, now: float, most: int | None) -> list[str]:
    """Returns the runs that wait for their next attempt."""
    runs = sorted(state.resting.items(), key=lambda each: each[1])
    rows = [
        (formatting.short(run), _name(runs_dir, run), formatting.about(max(0.0, at - now))) for run, at in runs[:most]
    ]
    return common.table(["RETRYING", "OPERATION", "STARTS"], rows, wide=(1,)) + _more(len(runs), most) if rows else []


def ended(title: str, runs: Iterable[EndedRun], runs_dir: str, now: float, most: int | None) -> list[str]:
    """Returns ended runs, the latest first."""
    chosen = list(reversed(list(runs)))[:most]
    if not chosen:
        return []
    several = len({run.worker for run in chosen}) > 1
    rows = [
        (
            formatting.short(run.run),
            _name(runs_dir, run.run),
            *((run.worker,) if several else ()),
            f"{formatting.duration(now - run.at)} ago",
            _how(run),
        )
        for run in chosen
    ]
    columns = [title, "OPERATION", *(["WORKER"] if several else []), "WHEN", "HOW"]
    return common.table(columns, rows, wide=(1, 2, 3) if several else (1, 3), last="red")


def _how(run: EndedRun) -> str:
    if run.why:
        return run.why
    if run.end == End.TERMINATED.value:
        return "stopped"
    return run.end if run.exit_code is None else f"{run.end} (exit {run.exit_code})"


def survivors(runs: Sequence[Survivor], runs_dir: str, now: float, most: int | None) -> list[str]:
    """Returns the runs that continue after their scheduler died."""
    if not runs:
        return []
    rows = [
        (
            formatting.short(run.run),
            _name(runs_dir, run.run),
            format_amounts(run.asks) or "-",
            run.host,
            formatting.duration(now - run.since),
        )
        for run in runs[:most]
    ]
    lines = common.wrapped(
        "These runs continue though their scheduler has died. The next scheduler counts the resources that they use."
    )
    lines += common.table(["RUNNING", "OPERATION", "REQUESTS", "HOST", "FOR"], rows, wide=(1, 3, 2), last="green")
    return lines + _more(len(runs), most)


def _more(count: int, most: int | None) -> list[str]:
    return [f"... and {count - most} more"] if most is not None and count > most else []
