"""The results as a table for people, and as pictures."""

import pathlib
from collections.abc import Callable
from typing import Any

from benchmarks import charts
from benchmarks.contenders import BUILT_IN, FLOOR, OURS, XARGS
from benchmarks.targets import Results, rows_for


def markdown_for(results: Results) -> str:
    """Returns the figures against the targets, and all that was measured of the contenders."""
    machine = results["machine"]
    lines = [
        f"{machine['cpus']} CPUs, {machine['system']}, Python {machine['python']}; load before: {machine['load']}.",
        "",
        "| what | figure | target | |",
        "| --- | ---: | ---: | --- |",
        *map(str, rows_for(results)),
    ]
    if "throughput" in results:
        lines += ["", *_contenders(results["throughput"])]
    return "\n".join(lines) + "\n"


def _contenders(data: list[dict[str, Any]]) -> list[str]:
    count = data[0]["counts"][1]
    lines = [
        f"| contender | finished runs | one more run, wall (s) | CPU (s) | {count} runs, wall (s) | CPU (s) |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for entry in data:
        each, whole = entry["one_more"], entry["all_of_it"]
        figures = f"{each['wall']:.3f} | {each['cpu']:.3f} | {whole['wall']:.1f} | {whole['cpu']:.1f}"
        lines.append(f"| {entry['contender']} | {entry['finished']:,} | {figures} |")
    return lines


def write_charts(results: Results, folder: pathlib.Path) -> None:
    """Writes a picture for each part of the results that has one."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, Callable[[Any], str]] = {
        "throughput": _cost_chart,
        "latency": _latency_chart,
        "makespan": _makespan_chart,
    }
    for name, picture in pictures.items():
        if name in results:
            (folder / f"{name}.svg").write_text(picture(results[name]), encoding="utf-8")


def _cost_chart(data: list[dict[str, Any]]) -> str:
    sizes = sorted({entry["finished"] for entry in data})
    each = {(entry["contender"], entry["finished"]): entry["one_more"]["wall"] for entry in data}
    series = {name: [each.get((name, size)) for size in sizes] for name in (FLOOR, OURS, XARGS, BUILT_IN)}
    few, more = data[0]["counts"]
    note = f"Finished runs in the Guild home. Medians of (time for {more} runs - time for {few} runs) / {more - few}."
    return charts.lines("One more no-op run, two at a time", note, [f"{size:,}" for size in sizes], series)


def _latency_chart(data: Results) -> str:
    samples = {
        "the run's own process": data["own"],
        "`guild run --start`": data["start"],
        "staged, guild-dask waits": data["staged"],
        "staged, built-in scheduler waits": data["staged_built_in"],
    }
    return charts.strips("Until a run's first instruction", "One dot a run; the line is the median.", samples)


def _makespan_chart(data: Results) -> str:
    taken = {name: sorted(values)[len(values) // 2] for name, values in data["taken"].items()}
    note = f"{len(data['items'])} runs of random length that ask for GPUs and memory; from first start to last end."
    return charts.bars("A mixed set of runs that share resources", note, taken, ("lower bound", data["lower_bound"]))
