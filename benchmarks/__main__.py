"""All benchmarks of guild-dask in one command.

    python -m benchmarks --results RESULTS

makes virtual environments and Guild homes in a temporary folder, measures part by part, and writes results.json,
results.md and pictures. Things that are compared are measured alternately. A new measurement of a part replaces its
older figures in results.json, so that `--only PART` can follow a longer run.
"""

import json
import os
import pathlib
import platform
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import click
import psutil

from benchmarks import (
    backlog,
    contenders,
    endurance,
    footprint,
    idle_scheduler,
    latency,
    makespan,
    report,
    scale,
    search,
    throughput,
    trials,
)
from benchmarks.environments import Environment, dask_environment, environment_of_its_own, plugin_environment
from benchmarks.homes import Home, make_home, make_project, make_template
from benchmarks.sizes import EMPTY, FULL, QUICK, VERY_MANY, Sizes


@dataclass(frozen=True)
class Bench:
    """The environments and sizes that the parts use."""

    folder: pathlib.Path
    environments: pathlib.Path
    project: pathlib.Path
    plugin: Environment
    dask: Environment
    has_hyperqueue: bool
    sizes: Sizes
    length: endurance.Length

    def home(self, environment: Environment, size: str = EMPTY) -> Home:
        """Returns a new home with the number of finished runs of that size."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / environment.name
        return make_home(environment, folder, self.project, self.sizes.finished[size])


def measure_throughput(bench: Bench) -> object:
    """Returns what many no-op runs cost with each contender."""
    return _throughput(bench, "noop", contenders.available(bench.has_hyperqueue))


def measure_scalars(bench: Bench) -> object:
    """Returns what many runs cost that print a scalar, for which Guild loads TensorBoard."""
    compared = [
        replace(contender, homes=contender.homes & contenders.HOMES_OF_SCALARS)
        for contender in contenders.available(bench.has_hyperqueue)
        if contender.name in contenders.OF_SCALARS
    ]
    return _throughput(bench, "scalar", compared)


def _throughput(bench: Bench, operation: str, compared: list[contenders.Contender]) -> object:
    homes = {
        (environment.name, size): bench.home(environment, size)
        for size in bench.sizes.finished
        for environment in (bench.plugin, bench.dask)
        if any(c.environment == environment.name and size in c.homes for c in compared)
    }
    templates = {name: make_template(homes[name, EMPTY], operation) for name in (bench.plugin.name, bench.dask.name)}
    measured = throughput.measure(compared, homes, templates, bench.sizes)
    return [entry.as_data() for entry in measured]


def measure_latency(bench: Bench) -> object:
    """Returns how long runs wait for a scheduler."""
    ours, built_in = bench.home(bench.plugin), bench.home(bench.dask)
    templates = {home.environment.name: make_template(home, "stamped") for home in (ours, built_in)}
    return latency.measure(ours, built_in, templates, bench.sizes).as_data()


def measure_scale(bench: Bench) -> object:
    """Returns what a scheduler costs with very many runs."""
    home = bench.home(bench.plugin)
    full = bench.home(bench.plugin, VERY_MANY)
    return scale.measure(home, full, make_template(home, "stamped"), bench.sizes).as_data()


def measure_makespan(bench: Bench) -> object:
    """Returns how long a mixed set of runs takes."""
    return makespan.measure(bench.home(bench.plugin), bench.home(bench.dask), bench.sizes).as_data()


def measure_endurance(bench: Bench) -> object:
    """Returns how a scheduler's memory grows."""
    home = bench.home(bench.plugin)
    return endurance.measure(home, make_template(home, "nothing"), bench.length).as_data()


def measure_trials(bench: Bench) -> object:
    """Returns what runs cost that import scikit-learn and pandas, with these preloaded."""
    if not trials.install(bench.plugin, *trials.IMPORTED):
        raise click.ClickException("scikit-learn and pandas are needed")
    home = bench.home(bench.plugin)
    templates = {operation: make_template(home, operation) for operation in (trials.SMALL, trials.LARGER)}
    return trials.measure(home, bench.dask, templates, bench.sizes).as_data()


def measure_footprint(bench: Bench) -> object:
    """Returns the memory of warm runs, and where the time of one run goes."""
    home = bench.home(bench.plugin)
    return footprint.measure(home, make_template(home, "stamped"), bench.sizes).as_data()


def measure_idle_scheduler(bench: Bench) -> object:
    """Returns what a scheduler costs that has nothing to do."""
    return idle_scheduler.measure(bench.home(bench.plugin), bench.sizes).as_data()


def measure_backlog(bench: Bench) -> object:
    """Returns what a scheduler costs with a hundred thousand staged runs."""
    home = bench.home(bench.plugin)
    return backlog.measure(home, make_template(home, "stamped"), bench.sizes).as_data()


def measure_search(bench: Bench) -> Iterator[object]:
    """Yields how quickly searches find good flags, after each seed: all of them take more than an hour."""
    for found in search.measure(_home_of_searches(bench), _environments_of_searches(bench), bench.sizes):
        yield found.as_data()


def measure_search_overhead(bench: Bench) -> object:
    """Returns what a trial of a search costs beside its own time."""
    return search.measure_overhead(_home_of_searches(bench), _environments_of_searches(bench), bench.sizes).as_data()


def measure_search_stopping(bench: Bench) -> object:
    """Returns what it saves to end trials early."""
    return search.measure_stopping(_home_of_searches(bench), bench.sizes)


def _home_of_searches(bench: Bench) -> Home:
    if not trials.install(bench.plugin, "optuna>=5,<6", "scikit-learn"):
        raise click.ClickException("Optuna and scikit-learn are needed")
    folder = pathlib.Path(tempfile.mkdtemp(dir=bench.folder))
    return make_home(bench.plugin, folder / "search", search.make_search_project(folder / "project"), 0)


def _environments_of_searches(bench: Bench) -> dict[str, Environment]:
    """Returns the environments of contenders that have one, as far as pip can install them."""
    found = {
        name: environment_of_its_own(bench.environments, script.removesuffix(".py"), packages)
        for name, (script, packages) in search.OTHERS.items()
    }
    return {name: environment for name, environment in found.items() if environment}


PARTS: dict[str, Callable[[Bench], object]] = {
    "latency": measure_latency,
    "scale": measure_scale,
    "makespan": measure_makespan,
    "throughput": measure_throughput,
    "scalars": measure_scalars,
    "trials": measure_trials,
    "footprint": measure_footprint,
    "idle-scheduler": measure_idle_scheduler,
    "backlog": measure_backlog,
    "search": measure_search,
    "search-overhead": measure_search_overhead,
    "search-stopping": measure_search_stopping,
    "endurance": measure_endurance,
}

# Seconds over which the CPU use of other processes is measured.
_LISTENING = 5.0

FOLDER = click.Path(file_okay=False, path_type=pathlib.Path)


@click.command()
@click.option("--results", required=True, type=FOLDER, help="Where the results are written.")
@click.option("--quick", is_flag=True, help="Small numbers, to see that all of it works.")
@click.option("--rounds", type=click.IntRange(1), help="How often all contenders take turns.")
@click.option("--only", multiple=True, type=click.Choice(list(PARTS)), help="Measure this part only; may be repeated.")
@click.option("--environments", type=FOLDER, help="Where the virtual environments are, or will be made.")
def main(
    results: pathlib.Path,
    quick: bool,
    rounds: int | None,
    only: tuple[str, ...],
    environments: pathlib.Path | None,
) -> None:
    """Measure guild-dask against other ways to start staged runs."""
    results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as scratch:
        bench = _bench(pathlib.Path(scratch), environments, quick)
        if rounds:
            sizes = replace(bench.sizes, rounds=rounds, mixed_rounds=rounds, trial_rounds=rounds, search_seeds=rounds)
            bench = replace(bench, sizes=sizes)
        for name in only or PARTS:
            click.echo(f"measuring {name}", err=True)
            others = _used_by_others()
            found = PARTS[name](bench)
            for measured in found if isinstance(found, Iterator) else [found]:
                _add(results, name, measured, others)
    click.echo((results / "results.md").read_text(encoding="utf-8"))


def _bench(scratch: pathlib.Path, environments: pathlib.Path | None, quick: bool) -> Bench:
    folder = environments or scratch / "environments"
    plugin = plugin_environment(folder)
    dask = dask_environment(folder, plugin)
    return Bench(
        folder=scratch,
        environments=folder,
        project=make_project(scratch / "project"),
        plugin=plugin,
        dask=dask,
        has_hyperqueue=_has_hyperqueue(dask),
        sizes=QUICK if quick else FULL,
        length=endurance.QUICK if quick else endurance.Length(1_000, 100, 2),
    )


def _has_hyperqueue(environment: Environment) -> bool:
    try:
        environment.pip("install", "--quiet", "hyperqueue")
    except subprocess.CalledProcessError:
        click.echo("HyperQueue cannot be installed, and is left out", err=True)
        return False
    return True


def _add(results: pathlib.Path, name: str, measured: object, others: float) -> None:
    """Adds figures to the results, and writes the tables and pictures of all results."""
    path = results / "results.json"
    data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"machine": _machine()}
    data[name] = measured
    data.setdefault("others", {})[name] = others
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    (results / "results.md").write_text(report.markdown_for(data), encoding="utf-8")
    report.write_charts(data, results)


def _machine() -> dict[str, object]:
    system = f"{platform.system()} {platform.machine()}"
    return {"cpus": os.cpu_count(), "system": system, "python": platform.python_version()}


def _used_by_others() -> float:
    """Returns how many CPUs other processes use now; the load average would include earlier measurements."""
    return round(float(psutil.cpu_percent(_LISTENING)) / 100 * (os.cpu_count() or 1), 2)


if __name__ == "__main__":
    main()
