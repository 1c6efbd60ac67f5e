"""The tables of `guild-dask status`: workers, and runs that run, wait or have ended. One without a row has no line."""

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
    """Returns the workers, those with the most runs first where there are more than can be shown."""
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
    columns = ["WORKER", *(["HOST"] if several else []), "RUNS", "RESOURCES"]
    return common.table(columns, rows, wide=(0, -1)) + _more(len(state.workers), most)


def _name(runs_dir: str, run_id: str) -> str:
    return run_view.view(os.path.join(runs_dir, run_id)).name


def running(state: State, runs_dir: str, now: float, most: int | None) -> list[str]:
    """Returns the runs that run: where, and since when."""
    if not state.running:
        return []
    rows = [
        (
            formatting.short(run.run),
            _name(runs_dir, run.run),
            asks_of(run),
            run.worker,
            formatting.duration(now - run.since),
        )
        for run in state.running[:most]
    ]
    lines = common.table(["RUNNING", "OPERATION", "ASKS", "WORKER", "FOR"], rows, wide=(1, 3, 2), last="green")
    return lines + _more(len(state.running), most)


def asks_of(run: RunningRun) -> str:
    """Returns what a run has asked for, and which devices it has got."""
    devices = f" ({','.join(run.devices)})" if run.devices else ""
    return f"{format_amounts(run.asks)}{devices}".strip() or "-"


def waiting(state: State, runs_dir: str, now: float, most: int | None) -> list[str]:
    """Returns the first runs that wait: their places in the queue, why, and when they may start."""
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
    """Returns why a run waits; what keeps all of them from starting, before what keeps this one, if it ever could."""
    if run.why and run.why.is_final:
        return str(run.why)
    if state.phase != "working":
        return f"nothing starts while the scheduler is {state.phase}"
    if state.blocked_by:
        return f"waits for {len(state.blocked_by)} other run(s) to end"
    return str(run.why or "its turn comes next")


def held(state: State, runs_dir: str, most: int | None) -> list[str]:
    """Returns the runs that cannot be started as they are."""
    rows = [
        (formatting.short(run), run_view.view(os.path.join(runs_dir, run)).operation or "-", str(why))
        for run, why in list(state.aside.items())[:most]
    ]
    return common.table(["HELD", "OPERATION", "WHY"], rows, wide=(1, 2)) + _more(state.held, most) if rows else []


def to_be_tried_again(state: State, runs_dir: str, now: float, most: int | None) -> list[str]:
    """Returns the runs that rest before their next attempt."""
    resting = sorted(state.resting.items(), key=lambda each: each[1])
    rows = [
        (formatting.short(run), _name(runs_dir, run), formatting.about(max(0.0, at - now)))
        for run, at in resting[:most]
    ]
    return common.table(["AGAIN", "OPERATION", "STARTS"], rows, wide=(1,)) + _more(len(resting), most) if rows else []


def ended(title: str, runs: Iterable[EndedRun], runs_dir: str, now: float, most: int | None) -> list[str]:
    """Returns those of the last runs that somebody may want to look at, the latest first."""
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
    """Returns the runs that have outlived their scheduler."""
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
    lines = common.wrapped("These runs go on though their scheduler has died. The next one counts what they use.")
    lines += common.table(["RUNNING", "OPERATION", "ASKS", "HOST", "FOR"], rows, wide=(1, 3, 2), last="green")
    return lines + _more(len(runs), most)


def _more(count: int, most: int | None) -> list[str]:
    return [f"... and {count - most} more"] if most is not None and count > most else []
