"""Figures and their targets. All targets are ratios or differences within one measurement."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks import search
from benchmarks.contenders import BUILT_IN, FLOOR, HYPERQUEUE, OURS, PARALLEL, WORKERS

Results = Mapping[str, Any]

# The share of the CPUs that other processes may use without an effect on wall times.
QUIET = 0.15

# The floor's time over its shortest time above which other processes must have disturbed it.
STEADY = 1.15

# Kilobytes a run that do not count as growth: 10 MB in 10,000 runs.
MOST_GROWTH = 1.0


@dataclass(frozen=True)
class Row:
    """A figure and its target; a figure without a target is for information."""

    what: str
    figure: float
    unit: str
    limit: float | None = None
    at_least: bool = False
    is_disturbed: bool = False  # other processes disturbed the measurement

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        if self.is_disturbed:
            return "open: disturbed"
        is_met = self.figure >= self.limit if self.at_least else self.figure <= self.limit
        return "met" if is_met else "**missed**"

    def __str__(self) -> str:
        target = "" if self.limit is None else f"{'at least' if self.at_least else 'at most'} {self.limit:g}{self.unit}"
        cells = (self.what, f"{self.figure:.3g}{self.unit}", target, self.verdict)
        return f"| {' | '.join(cells)} |"


def rows_for(results: Results) -> list[Row]:
    """Returns a row for each target that the results have figures for."""
    parts: dict[str, Callable[[Any, bool], Iterable[Row]]] = {
        "throughput": _throughput,
        "scalars": _scalars,
        "trials": _trials,
        "footprint": _footprint,
        "idle-scheduler": _idle_scheduler,
        "backlog": _backlog,
        "search": _search,
        "search-overhead": _search_overhead,
        "search-stopping": _search_stopping,
        "latency": _latency,
        "scale": _scale,
        "makespan": _makespan,
        "endurance": _endurance,
    }
    return [
        row for name, rows in parts.items() if name in results for row in rows(results[name], was_busy(results, name))
    ]


def was_busy(results: Results, part: str) -> bool:
    """Returns whether others used the machine when the measurement of a part began, so wall times are unreliable."""
    return float(results["others"][part]) > QUIET * float(results["machine"]["cpus"])


def _throughput(data: list[Results], is_busy: bool) -> Iterable[Row]:
    by = {(entry["contender"], entry["finished"]): entry for entry in data}
    disturbed = {size for _, size in by} if is_busy else _disturbed_homes(by)
    ours, floor = by[OURS, 0], by[FLOOR, 0]
    for kind, text in (("wall", "wall time"), ("cpu", "CPU")):
        ratio = ours["one_more"][kind] / floor["one_more"][kind]
        what = f"one more no-op run, {text} over the floor's"
        yield Row(what, ratio, " times", 0.35, is_disturbed=kind == "wall" and 0 in disturbed)
    for size in sorted(finished for name, finished in by if name == OURS and finished):
        for kind, text in (("wall", "wall time"), ("cpu", "CPU")):
            ratio = by[OURS, size]["one_more"][kind] / ours["one_more"][kind]
            what = f"the same, {size:,} finished runs against an empty home, {text}"
            yield Row(what, ratio, " times", 1.1, is_disturbed=kind == "wall" and bool({0, size} & disturbed))
    yield from _against_all(by, "runs", disturbed)


def _scalars(data: list[Results], is_busy: bool) -> Iterable[Row]:
    by = {(entry["contender"], entry["finished"]): entry for entry in data}
    disturbed = {size for _, size in by} if is_busy else _disturbed_homes(by)
    yield from _against_all(by, "runs that print a scalar", disturbed)


def _against_all(by: Mapping[tuple[str, int], Results], runs: str, disturbed: set[int]) -> Iterable[Row]:
    for name, size, limit in _rivals(by):
        yield from _against(by, (name, size), runs, limit, size in disturbed)


def _against(
    by: Mapping[tuple[str, int], Results], rival: tuple[str, int], runs: str, limit: float, disturbed: bool
) -> list[Row]:
    """Returns how many times faster guild-dask is than a contender, and how many times less CPU it uses."""
    name, size = rival
    theirs, ours, floor = (by[each, size]["all_of_it"] for each in (name, OURS, FLOOR))
    home = f"{size:,} finished runs" if size else "empty home"
    runs = f"{by[OURS, size]['counts'][1]} {runs} from command to end"
    wall, most = theirs["wall"] / ours["wall"], f"(the floor: {theirs['wall'] / floor['wall']:.3g} times)"
    cpu, least = theirs["cpu"] / ours["cpu"], f"(the floor: {theirs['cpu'] / floor['cpu']:.3g} times)"
    return [
        Row(f"{runs}, faster than {name}, {home} {most}", wall, " times", limit, True, disturbed),
        Row(f"- the same, CPU {least}", cpu, " times"),
    ]


def _disturbed_homes(by: Mapping[tuple[str, int], Results]) -> set[int]:
    """Returns the homes in which wall times are unreliable.

    The floor does the same work in every home, so it should take the same time.
    """
    floors = {size: entry for (name, size), entry in by.items() if name == FLOOR}
    best = min(cost["wall"] for entry in floors.values() for cost in entry["more"])
    return {
        size
        for size, floor in floors.items()
        if floor["all_of_it"]["wall"] > STEADY * best
        or max(cost["wall"] for cost in by[OURS, size]["more"]) > STEADY**2 * by[OURS, size]["all_of_it"]["wall"]
    }


def _rivals(by: Mapping[tuple[str, int], Results]) -> Iterable[tuple[str, int, float]]:
    """Returns the contenders that the total time is compared with, their homes, and the target ratios."""
    for name, size in by:
        if name == BUILT_IN:
            yield name, size, 10.0 if size else 4.0
        elif name in (HYPERQUEUE, PARALLEL):
            yield name, size, 3.0


def _latency(data: Results, is_busy: bool) -> Iterable[Row]:
    what = "staging to first instruction, beyond the run's own start-up"
    yield Row(what, data["beyond"], " s", 0.5, is_disturbed=is_busy)
    what = "end of a run to start of the next, beyond the same by xargs"
    yield Row(what, 1000 * data["next_beyond"], " ms", 50, is_disturbed=is_busy)


def _scale(data: Results, is_busy: bool) -> Iterable[Row]:
    many = f"{data['staged']:,} staged runs"
    what = f"{many}: command to first instruction, Guild's and Dask's start-up included"
    yield Row(what, data["first_of_many"], " s", 2, is_disturbed=is_busy)
    what = f"{many}: the same, beyond that with one staged run"
    yield Row(what, data["until_first"], " s", 2, is_disturbed=is_busy)
    yield Row(f"{many}: the scheduler's CPU for each further run", 1000 * data["cpu_each"], " ms", 5)
    yield Row("- for comparison, a task that does nothing, by Dask alone", 1000 * data["cpu_dask"], " ms")
    yield Row(f"{many}: memory above an idle scheduler", data["memory"] - data["memory_idle"], " MB", 150)
    yield Row(f"idle beside {data['idle_finished']:,} runs", data["idle_percent"], " % of a CPU", 0.5)
    ready, distributed, bare = (median(data[name]) for name in ("ready", "import_distributed", "bare_guild"))
    yield Row("command to `Waiting for staged runs`", ready, " s")
    yield Row("- of which a Python that imports distributed and does nothing else takes", distributed, " s")
    yield Row("- and `guild run` of an operation, up to its first instruction,", bare, " s")


def _trials(data: Results, is_busy: bool) -> Iterable[Row]:
    by = {entry["contender"]: entry["one_more"] for entry in data["one_more"]}
    for kind, text in (("cpu", "CPU"), ("wall", "wall time")):
        what = f"one more run that imports scikit-learn and pandas, with `preload`: {text} over that of its own process"
        limit = 0.2 if kind == "cpu" else None
        yield Row(what, by[OURS][kind] / by[FLOOR][kind], " times", limit)
    for totals in data["totals"]:
        yield from _totals(totals, is_busy)


def _totals(data: Results, is_busy: bool) -> Iterable[Row]:
    pools = {name: wall for name, wall in data["medians"].items() if name != OURS}
    if pools:
        best = min(pools, key=lambda name: pools[name])
        each = 1000 * pools[best] * WORKERS / data["count"]
        what = f"{data['count']} runs of {each:.0f} ms with these, from command to end, over {best}"
        yield Row(what, data["medians"][OURS] / pools[best], " times", 1.5, is_disturbed=is_busy)
    for name, wall in data["medians"].items():
        yield Row(f"- {name}", wall, " s")


def _footprint(data: Results, _is_busy: bool) -> Iterable[Row]:
    for name, memory in data["memory"].items():
        resident = f"memory of {name}, its own (resident {memory['resident']:.0f} MB, share {memory['share']:.0f} MB)"
        yield Row(resident, memory["own"], " MB")


def _idle_scheduler(data: Results, is_busy: bool) -> Iterable[Row]:
    nothing, guild = data["medians"]["nothing"], data["medians"]["guild"]
    what = "a scheduler with nothing to do (`run-once=yes`), from command to end"
    yield Row(what, nothing["wall"], " s", 1.0, is_disturbed=is_busy)
    yield Row("- the same, CPU", nothing["cpu"], " s")
    yield Row("- for comparison, `guild run` of an operation that does nothing: CPU", guild["cpu"], " s")


def _backlog(data: Results, is_busy: bool) -> Iterable[Row]:
    many = f"{data['staged']:,} staged runs"
    yield Row(f"{many}: command to first instruction", data["first"], " s", 10, is_disturbed=is_busy)
    yield Row("- the scheduler's CPU up to then", data["first_cpu"], " s")
    yield Row(f"{many}: `guild-dask status`", median(data["status"]), " s", 0.5, is_disturbed=is_busy)
    yield Row("- the same, CPU", median(data["status_cpu"]), " s")
    yield Row(f"{many}: memory of the scheduler", data["memory"], " MB", 500)


def _search(data: Results, is_busy: bool) -> Iterable[Row]:
    for problem, sooner in data["sooner"].items():
        what = f"{problem}: sooner at what Guild's gp reaches in {data['count']} trials, with {data['slots']} slots"
        yield Row(what, sooner[search.TPE], " times", 5, True, is_busy)
        for name, times in sooner.items():
            if name not in (search.TPE, search.GP):
                yield Row(f"- the same, {name} (0: not at all)", times, " times")
        for name, value in data["medians"][problem].items():
            yield Row(f"- {problem}, best value by {name}, median of seeds", value, "")


def _search_overhead(data: Results, is_busy: bool) -> Iterable[Row]:
    walls = {name: median(found) for name, found in data["walls"].items()}
    ours = walls[search.TPE]
    base = search.DASK if search.DASK in walls else search.BARE
    for name, wall in walls.items():
        if name != search.TPE:
            what = f"{data['count']} trials of {data['seconds']:g} s, from command to end, over {name}"
            yield Row(what, ours / wall, " times", 1.3 if name == base else None, is_disturbed=is_busy)
    ends = {name: median(found) for name, found in data["last_ends"].items()}
    yield Row(f"- the same until the end of the last trial, over {base}", ends[search.TPE] / ends[base], " times")
    least = math.ceil(data["count"] / data["slots"]) * data["seconds"]
    yield Row("- from command to end, over the trials' own time", ours / least, " times")
    for name, wall in walls.items():
        share = (wall - least) * data["slots"] / data["count"]
        yield Row(f"- beyond that, for each trial and slot, with the start of everything, {name}", share, " s")


def _search_stopping(data: Results, _is_busy: bool) -> Iterable[Row]:
    never, asha = data["never"], data["asha"]
    share = sum(each["steps"] for each in asha) / sum(each["steps"] for each in never)
    yield Row("digits: epochs with `stop-early=asha`, over all epochs", share, " times", 0.5)
    differences = [one["error"] - other["error"] for one, other in zip(asha, never, strict=True)]
    errors = [each["error"] for each in never]
    yield Row(f"- best error with it, beyond that without, median of {len(never)} seeds", median(differences), "")
    yield Row("- spread of the best error without it, from seed to seed", max(errors) - min(errors), "")


def _endurance(data: Results, _is_busy: bool) -> Iterable[Row]:
    runs = data["notes"][-1]["runs"]
    yield Row(f"growth of the scheduler with each of {runs:,} runs, second half", data["slope"], " kB", MOST_GROWTH)
    yield Row(f"idle for {data['idle_minutes']:.0f} minutes", data["idle_percent"], " % of a CPU", 0.5)


def _makespan(data: Results, _is_busy: bool) -> Iterable[Row]:
    for name, ratio in data["over_bound"].items():
        yield Row(f"{len(data['items'])} runs that share resources, {name}: time over the lower bound", ratio, " times")
