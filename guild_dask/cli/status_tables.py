"""The tables of `guild-dask status`: workers, and running, waiting and ended runs. Empty tables have no lines."""

import os
from collections.abc import Iterable, Mapping, Sequence

from guild_dask.cli import common
from guild_dask.cli.run_table import table_of
from guild_dask.home import layout, run_view, trials
from guild_dask.home.outcome import Ending
from guild_dask.monitor import estimate, formatting, results
from guild_dask.monitor.flag_columns import columns_for, own_label, text_for
from guild_dask.monitor.schedulers import Survivor
from guild_dask.monitor.searches import PublishedSearch, Summary
from guild_dask.monitor.state import EndedRun, Phase, RunningRun, State, WaitingRun
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
    found = dict.fromkeys(worker.about_devices for worker in chosen[:most] if worker.about_devices)
    gpus = [line for text in found for line in common.wrapped(f"GPUs: {text}")]
    return common.table(columns, rows, wide=(0, -1)) + _more(len(state.workers), most) + gpus


class ShownRuns:
    """The runs that the tables of a scheduler show, by what tells them apart: operation, label and flags.

    Flags that all of them have in common are left out, and shown once.
    """

    def __init__(self, runs_dir: str, runs: Mapping[str, str]) -> None:
        """Reads runs, given by id with the operation to show for one that was deleted."""
        self._runs_dir = runs_dir
        views = {run: run_view.view(layout.run_in(runs_dir, run)) for run in runs if _is_there(runs_dir, run)}
        flags = {run: run_view.flags(view.dir) for run, view in views.items()}
        self._columns = columns_for([(views[run].operation, flags[run]) for run in views])
        self._numbers = {run: number for number, run in enumerate(views)}
        self._operations = {**runs, **{run: view.operation for run, view in views.items()}}
        self._labels = {run: own_label(view.label, view.tags, flags[run]) for run, view in views.items()}

    @property
    def common_text(self) -> str:
        """Returns the flags that all runs have in common."""
        return self._columns.common_text

    def cells(self, runs: Iterable[str]) -> dict[str, list[str]]:
        """Returns the columns that tell these runs apart; empty ones are left out by table_of()."""
        shown = list(runs)
        return {
            "OPERATION": [self._operations.get(run) or "(deleted)" for run in shown],
            "LABEL": [self._labels.get(run, "") for run in shown],
            "FLAGS": [text_for(flags) for flags in self.flags(shown)],
        }

    def flags(self, runs: Iterable[str]) -> list[Mapping[str, str]]:
        """Returns the flags that tell these runs apart."""
        return [self._columns.own[self._numbers[run]] if run in self._numbers else {} for run in runs]

    def ending(self, run: EndedRun) -> Ending:
        """Returns how a run ended, with the search that pruned it, if one did."""
        return trials.with_search(run.ending, layout.run_in(self._runs_dir, run.run))


def _is_there(runs_dir: str, run: str) -> bool:
    return os.path.isdir(layout.run_in(runs_dir, run))


def running(state: State, shown: ShownRuns, now: float, most: int | None) -> list[str]:
    """Returns the running runs: where, and for how long."""
    runs = state.running[:most]
    if not runs:
        return []
    columns = {
        "RUNNING": [formatting.short(run.run) for run in runs],
        **shown.cells(run.run for run in runs),
        "REQUESTS": [_requests(run, state) for run in runs],
        "WORKER": [run.worker for run in runs],
        "FOR": [formatting.duration(now - run.since) for run in runs],
    }
    spare = ("WORKER",) if len(state.workers) == 1 else ()
    return table_of(columns, shown.flags(run.run for run in runs), last="green", spare=spare) + _more(
        len(state.running), most
    )


def _requests(run: RunningRun, state: State) -> str:
    """Returns what a run requested, and the devices that it got; where GPUs are assigned, also that it got none."""
    devices = f" ({','.join(run.devices)})" if run.devices else " (no GPU)" if state.gpus is not None else ""
    return f"{format_amounts(run.requests)}{devices}".strip() or "-"


def waiting(state: State, shown: ShownRuns, now: float, most: int | None) -> list[str]:
    """Returns the first runs in the queue: position, reason, and estimated start."""
    rows = [row for row in _queue(state, now) if row[1] is not None]
    runs = [run for run, _, _ in rows[:most]]
    if not runs:
        return []
    is_least = estimate.is_least(state, now)
    columns = {
        "WAITING": [formatting.short(run.run) for run in runs],
        "#": [str(position) for _, position, _ in rows[:most]],
        **shown.cells(run.run for run in runs),
        "WHY": [_why(state, run) for run in runs],
        "STARTS": [formatting.about(start, is_least=is_least) for _, _, start in rows[:most]],
    }
    # If the reasons differ, they are cut, so that the queue stays short.
    beneath = ("WHY",) if len(set(columns["WHY"])) == 1 else ()
    return table_of(columns, shown.flags(run.run for run in runs), beneath=beneath) + _more(
        state.waiting - state.impossible, most
    )


def impossible(state: State, shown: ShownRuns, most: int | None) -> list[str]:
    """Returns the first runs that no present worker can ever run."""
    runs = [run for run, position in zip(state.first, state.positions, strict=True) if position is None][:most]
    if not runs:
        return []
    columns = {
        "IMPOSSIBLE": [formatting.short(run.run) for run in runs],
        **shown.cells(run.run for run in runs),
        "WHY": [str(run.why) for run in runs],
    }
    return table_of(columns, shown.flags(run.run for run in runs), beneath=("WHY",)) + _more(state.impossible, most)


def _queue(state: State, now: float) -> list[tuple[WaitingRun, int | None, float | None]]:
    """Returns the first waiting runs, each with its position, None if it is impossible, and its estimated start."""
    return list(zip(state.first, state.positions, estimate.seconds_until_starts(state, now), strict=True))


def _why(state: State, run: WaitingRun) -> str:
    """Returns why a run waits: no run can start now, or its own reason."""
    if state.phase is not Phase.WORKING:
        return f"the scheduler is {state.phase.value}"
    if state.blocked_by:
        return f"waits for {len(state.blocked_by)} other run(s) to end"
    return str(run.why or "is next")


def held(state: State, shown: ShownRuns, most: int | None) -> list[str]:
    """Returns the held runs."""
    runs = list(state.first_held)[:most]
    if not runs:
        return []
    columns = {
        "HELD": [formatting.short(run) for run in runs],
        **shown.cells(runs),
        "WHY": [str(state.first_held[run]) for run in runs],
    }
    return table_of(columns, shown.flags(runs), beneath=("WHY",)) + _more(state.held, most)


def retrying(state: State, shown: ShownRuns, now: float, most: int | None) -> list[str]:
    """Returns the runs that wait for their next attempt."""
    runs = sorted(state.retrying, key=lambda run: state.retrying[run])[:most]
    if not runs:
        return []
    columns = {
        "RETRYING": [formatting.short(run) for run in runs],
        **shown.cells(runs),
        "STARTS": [formatting.about(max(0.0, state.retrying[run] - now)) for run in runs],
    }
    return table_of(columns, shown.flags(runs)) + _more(len(state.retrying), most)


def ended(title: str, runs: Iterable[EndedRun], shown: ShownRuns, now: float, most: int | None) -> list[str]:
    """Returns ended runs, the latest first."""
    chosen = list(reversed(list(runs)))[:most]
    if not chosen:
        return []
    several = len({run.worker for run in chosen}) > 1
    columns = {
        title: [formatting.short(run.run) for run in chosen],
        **shown.cells(run.run for run in chosen),
        "WORKER": [run.worker if several else "" for run in chosen],
        "WHEN": [f"{formatting.duration(now - run.at)} ago" for run in chosen],
        "HOW": [shown.ending(run).text for run in chosen],
    }
    return table_of(columns, shown.flags(run.run for run in chosen), last="red", beneath=("HOW",))


def survivors(runs: Sequence[Survivor], runs_dir: str, now: float, most: int | None) -> list[str]:
    """Returns the runs that continue after their scheduler died."""
    if not runs:
        return []
    shown = ShownRuns(runs_dir, {run.run: "" for run in runs[:most]})
    columns = {
        "RUNNING": [formatting.short(run.run) for run in runs[:most]],
        **shown.cells(run.run for run in runs[:most]),
        "REQUESTS": [format_amounts(run.requests) or "-" for run in runs[:most]],
        "HOST": [run.host for run in runs[:most]],
        "FOR": [formatting.duration(now - run.since) for run in runs[:most]],
    }
    lines = common.wrapped(
        "These runs continue though their scheduler has died. The next scheduler counts the resources that they use."
    )
    return lines + table_of(columns, shown.flags(run.run for run in runs[:most]), last="green") + _more(len(runs), most)


def searches(found: Sequence[PublishedSearch], most: int | None) -> list[str]:
    """Returns the searches: what became of their trials, the best one with its flags, and the time left."""
    if not found:
        return []
    shown = [each.summary for each in found[:most]]
    columns = {
        "SEARCH": [formatting.short(each.batch) for each in shown],
        "OPERATION": [each.operation for each in shown],
        "TRIALS": [f"{_done(each)}/{each.max_trials}" for each in shown],
        **{
            name.upper(): [str(each.counts.get(key) or "") for each in shown]
            for key, name in (
                ("pruned", "pruned"),
                ("failed", "failed"),
                ("running", "running"),
                ("waiting", "waiting"),
            )
        },
        "BEST": [_best_value(each) for each in shown],
        "RUN": [formatting.short(each.best[0].run) if each.best else "" for each in shown],
        "FLAGS": [each.best[0].flags if each.best else "" for each in shown],
        "LEFT": [_left(each) for each in found[:most]],
    }
    lines = table_of(columns, beneath=("FLAGS",), spare=("WAITING", "OPERATION")) + _more(len(found), most)
    for each in found[:most]:
        if each.is_cut_short:
            batch = each.summary.batch
            lines += common.wrapped(f"Search {formatting.short(batch)} was {cut_short_text(batch)}")
    return lines


def cut_short_text(batch: str) -> str:
    """Returns that a search was cut short, and the command that continues it, as the end of a sentence."""
    return f"cut short; go on with: guild run --restart {formatting.short(batch)}"


def _done(summary: Summary) -> int:
    """Returns how many trials have ended."""
    return sum(count for name, count in summary.counts.items() if name not in ("running", "waiting"))


def _best_value(summary: Summary) -> str:
    if not summary.best:
        return "-"
    values = zip(summary.names, summary.best[0].values, strict=False)
    text = ", ".join(f"{name} {results.text_for(value)}" for name, value in values)
    return f"{text} (1 of {summary.best_count})" if summary.is_of_several and summary.best_count > 1 else text


def _left(search: PublishedSearch) -> str:
    """Returns how long a search goes on, or why it is over."""
    if search.is_at_work:
        return formatting.about(search.summary.seconds_left)
    return "cut short" if search.is_cut_short else "over"


def _more(count: int, most: int | None) -> list[str]:
    return [f"... and {count - most} more"] if most is not None and count > most else []
