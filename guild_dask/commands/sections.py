"""The tables of `guild-dask status`: workers, and runs that run, wait or have ended. One without a row has no line."""

import os
from collections.abc import Sequence

from guild_dask import estimate, runviews, shown
from guild_dask.commands import common
from guild_dask.resources import format_amounts
from guild_dask.schedulers import Survivor
from guild_dask.state import EndedRun, State


def workers(state: State) -> list[str]:
    if not state.workers:
        return ["There is no worker yet."]
    several = len({worker.host for worker in state.workers}) > 1
    rows = [
        (
            worker.name,
            *((worker.host,) if several else ()),
            f"{worker.used_slots}/{worker.slots}",
            shown.amount_shares(worker.used, worker.total) or "-",
        )
        for worker in state.workers
    ]
    return common.table(["WORKER", *(["HOST"] if several else []), "RUNS", "RESOURCES"], rows, wide=-1)


def _name(runs_dir: str, run_id: str) -> str:
    return runviews.view(os.path.join(runs_dir, run_id)).name


def running(state: State, runs_dir: str, now: float, most: int | None) -> list[str]:
    if not state.running:
        return []
    rows = [
        (
            shown.short(run.run),
            _name(runs_dir, run.run),
            format_amounts(run.asks) or "-",
            run.worker,
            shown.duration(now - run.since),
        )
        for run in state.running[:most]
    ]
    lines = common.table(["RUNNING", "OPERATION", "ASKS", "WORKER", "FOR"], rows, wide=1, last="green")
    return lines + _more(len(state.running), most)


def waiting(state: State, runs_dir: str, now: float, most: int | None) -> list[str]:
    if not state.first:
        return []
    starts = estimate.seconds_until_starts(state, now)
    blocked = f"waits for {len(state.blocked_by)} other run(s) to end" if state.blocked_by else ""
    rows = [
        (
            shown.short(run.run),
            str(place + 1),
            _name(runs_dir, run.run),
            blocked or (run.why.text if run.why else "its turn comes next"),
            "never" if run.why and run.why.is_final else shown.about(starts[place]),
        )
        for place, run in enumerate(state.first[:most])
    ]
    return _two_wide(["WAITING", "PLACE", "OPERATION", "WHY", "STARTS"], rows) + _more(state.waiting, most)


def _two_wide(columns: list[str], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Returns a table in which the operation gives way to the reason, down to a few letters, and then the reason."""
    reason = max(len(row[3]) for row in rows)
    room = common.width() - 12 - sum(max(len(columns[n]), *(len(row[n]) for row in rows)) for n in (0, 1, 4))
    name = max(20, room - reason)
    return common.table(columns, [(*row[:2], shown.cut(row[2], name), *row[3:]) for row in rows], wide=3)


def held(state: State, runs_dir: str, most: int | None) -> list[str]:
    rows = [
        (shown.short(run), runviews.view(os.path.join(runs_dir, run)).operation or "-", why)
        for run, why in list(state.aside.items())[:most]
    ]
    if not rows:
        return []
    return common.table(["HELD", "OPERATION", "WHY"], rows, wide=2) + _more(len(state.aside), most)


def to_be_tried_again(state: State, runs_dir: str, now: float, most: int | None) -> list[str]:
    resting = sorted(state.resting.items(), key=lambda each: each[1])
    rows = [(shown.short(run), _name(runs_dir, run), shown.about(max(0.0, at - now))) for run, at in resting[:most]]
    return common.table(["AGAIN", "OPERATION", "STARTS"], rows, wide=1) + _more(len(resting), most) if rows else []


def ended(title: str, runs: Sequence[EndedRun], runs_dir: str, now: float, most: int | None) -> list[str]:
    """Returns those of the last runs that somebody may want to look at, the latest first."""
    if not runs:
        return []
    several = len({run.worker for run in runs}) > 1
    hows = [_how(run) for run in runs]
    # A reason may be long; the operation gives way to it, and then it is cut itself.
    wide, most_name = (-1, 20) if max(map(len, hows)) > common.width() // 3 else (1, common.width())
    rows = [
        (
            shown.short(run.run),
            shown.cut(_name(runs_dir, run.run), most_name),
            *((run.worker,) if several else ()),
            f"{shown.duration(now - run.at)} ago",
            how,
        )
        for run, how in list(zip(reversed(runs), reversed(hows), strict=True))[:most]
    ]
    columns = [title, "OPERATION", *(["WORKER"] if several else []), "WHEN", "HOW"]
    return common.table(columns, rows, wide=wide, last="red")


def _how(run: EndedRun) -> str:
    if run.why:
        return run.why
    if run.end == "terminated":
        return "stopped"
    return run.end if run.exit_code is None else f"{run.end} (exit {run.exit_code})"


def _more(count: int, most: int | None) -> list[str]:
    return [f"... and {count - most} more"] if most is not None and count > most else []


def survivors(runs: list[Survivor], runs_dir: str, now: float, most: int | None) -> list[str]:
    if not runs:
        return []
    rows = [
        (
            shown.short(run.run),
            _name(runs_dir, run.run),
            format_amounts(run.asks) or "-",
            run.host,
            shown.duration(now - run.since),
        )
        for run in runs[:most]
    ]
    lines = common.wrapped("These runs go on though their scheduler has died. The next one counts what they use.")
    lines += common.table(["RUNNING", "OPERATION", "ASKS", "HOST", "FOR"], rows, wide=1, last="green")
    return lines + _more(len(runs), most)
