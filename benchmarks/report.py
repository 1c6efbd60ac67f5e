"""The results as Markdown tables and as pictures."""

import pathlib
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks import charts
from benchmarks.contenders import BUILT_IN, FLOOR, OURS, XARGS
from benchmarks.targets import Results, rows_for


def markdown_for(results: Results) -> str:
    """Returns the figures beside their targets, and all figures of the contenders."""
    machine = results["machine"]
    lines = [
        f"{machine['cpus']} CPUs, {machine['system']}, Python {machine['python']}.",
        f"Others used {max(results['others'].values()):.2g} CPUs at most, just before a part was measured.",
        "",
        "| what | figure | target | |",
        "| --- | ---: | ---: | --- |",
        *map(str, rows_for(results)),
    ]
    for part, text in (("throughput", "Runs that do nothing:"), ("scalars", "Runs that print a scalar:")):
        if part in results:
            lines += ["", text, "", *_contenders(results[part])]
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
    pictures: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
        ("throughput", "cost-cpu", lambda data: _cost_chart(data, "cpu", "CPU")),
        ("throughput", "cost-wall", lambda data: _cost_chart(data, "wall", "wall time")),
        ("latency", "latency", _latency_chart),
        ("makespan", "makespan", _makespan_chart),
        ("footprint", "phases", _phases_chart),
    )
    for part, name, picture in pictures:
        if part in results:
            (folder / f"{name}.svg").write_text(picture(results[part]), encoding="utf-8")


def _cost_chart(data: list[dict[str, Any]], kind: str, kind_text: str) -> str:
    sizes = sorted({entry["finished"] for entry in data})
    each = {(entry["contender"], entry["finished"]): entry["one_more"][kind] for entry in data}
    series = {name: [each.get((name, size)) for size in sizes] for name in (FLOOR, OURS, XARGS, BUILT_IN)}
    few, more = data[0]["counts"]
    note = f"Finished runs in the Guild home. Medians of ({more} runs - {few} runs) / {more - few}."
    texts = charts.Texts(f"One more no-op run, two at a time: {kind_text}", note, OURS)
    return charts.lines(texts, [f"{size:,}" for size in sizes], series)


def _latency_chart(data: Results) -> str:
    ours = "staged, guild-dask waits"
    samples = {
        "the run's own process": data["own"],
        "`guild run --start`": data["start"],
        ours: data["staged"],
        "staged, built-in scheduler waits": data["staged_built_in"],
    }
    texts = charts.Texts("Until a run's first instruction", "One dot a run; the line is the median.", ours)
    return charts.strips(texts, samples)


def _phases_chart(data: Results) -> str:
    note = f"Medians of {data['samples']} runs that do nothing, one after the other, in milliseconds."
    texts = charts.Texts("Where the time of one run goes", note, "warm run")
    return charts.stacks(texts, {f"{kind} run": phases for kind, phases in data["phases"].items()})


def _makespan_chart(data: Results) -> str:
    taken = {name: median(values) for name, values in data["taken"].items()}
    note = f"{len(data['items'])} runs of random length that request GPUs and memory; from first start to last end."
    texts = charts.Texts("A mixed set of runs that share resources", note, OURS)
    return charts.bars(texts, taken, ("lower bound", data["lower_bound"]))
