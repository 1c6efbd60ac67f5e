"""A scheduler with very many runs in its home: staged runs to start, and finished runs to ignore."""

import pathlib
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import click

from benchmarks.contenders import WORKERS
from benchmarks.homes import Home, Template
from benchmarks.measuring import WAITING, Scheduler, scheduler, wait_until
from benchmarks.sizes import Sizes

DASK_TASKS = pathlib.Path(__file__).parent / "scripts" / "dask_tasks.py"


@dataclass(frozen=True)
class Scale:
    """What a scheduler costs with very many runs."""

    staged: int
    first_of_one: float  # seconds from the command to the first instruction of the only staged run
    first_of_many: float  # the same for the first of very many
    log_first: float  # seconds from the scheduler's first line to the first instruction, with very many
    cpu_each: float  # seconds of the scheduler's own CPU for each further run
    cpu_dask: float  # seconds of CPU of an empty task in Dask alone
    memory_idle: float  # megabytes
    memory: float  # megabytes at most, with very many staged runs
    idle_finished: int
    idle_percent: float  # of one CPU
    idle_seconds: float
    ready: list[float]  # seconds from the command to `Waiting for staged runs`
    import_distributed: list[float]  # seconds of a Python process that only imports it
    bare_guild: list[float]  # seconds of `guild run` to the first instruction of a no-op operation

    @property
    def until_first(self) -> float:
        """Returns how many seconds the many staged runs add to the start of the first one."""
        return self.first_of_many - self.first_of_one

    def as_data(self) -> dict[str, object]:
        return {**asdict(self), "until_first": self.until_first}


def measure(home: Home, full: Home, template: Template, sizes: Sizes) -> Scale:
    """Returns what a scheduler costs with very many staged runs in one home, and idle in the full one."""
    ready, imports, bare = _ready(home, sizes.ready)
    memory_idle = _idle_memory(home)
    ones = [_first_of(home, [home.stage(template)]) for _ in range(sizes.ready)]
    many, log_first, cpu_each, memory = _work_off(home, template, sizes.staged, sizes.further)
    return Scale(
        staged=sizes.staged,
        first_of_one=statistics.median(ones),
        first_of_many=many,
        log_first=log_first,
        cpu_each=cpu_each,
        cpu_dask=_cpu_of_a_task(home, sizes.further),
        memory_idle=memory_idle,
        memory=memory,
        idle_finished=full.finished,
        idle_percent=_idle_percent(full, sizes.idle),
        idle_seconds=sizes.idle,
        ready=ready,
        import_distributed=imports,
        bare_guild=bare,
    )


def _first_of(home: Home, run_dirs: Sequence[pathlib.Path]) -> float:
    with scheduler(home, f"workers={WORKERS}") as ours:
        since = _wait_for_begun(ours, run_dirs, 1)
    home.clear()
    return since


def _wait_for_begun(ours: Scheduler, run_dirs: Sequence[pathlib.Path], count: int) -> float:
    """Waits until a number of runs have begun, and returns the seconds from the command to the first of them."""
    first = run_dirs[:count]
    wait_until(lambda: sum((path / "ended").exists() for path in first) == len(first), "runs to end", every=0.1)
    return min(float((path / "begun").read_text()) for path in first) - ours.since


def _work_off(home: Home, template: Template, staged: int, further: int) -> tuple[float, float, float, float]:
    """Returns the seconds until the first starts, from the command and from the first line; CPU a run; memory."""
    click.echo(f"staging {staged} runs", err=True)
    run_dirs = home.staged(template, staged)
    with scheduler(home, f"workers={WORKERS}") as ours:
        wait_until(lambda: ours.has_said("Starting Dask scheduler"), "its first line")
        said = time.time() - ours.since
        since = _wait_for_begun(ours, run_dirs, 10)
        memory = [ours.memory()]
        before, cpu = _count_begun(run_dirs), ours.cpu()
        while _count_begun(run_dirs) < before + further:
            time.sleep(0.5)
            memory.append(ours.memory())
        cpu_each = (ours.cpu() - cpu) / (_count_begun(run_dirs) - before)
    home.clear()
    return since, since - said, cpu_each, max(memory)


def _count_begun(run_dirs: Sequence[pathlib.Path]) -> int:
    """Returns how many runs have begun; they begin roughly in order."""
    count = 0
    for number, path in enumerate(run_dirs):
        count += (path / "begun").exists()
        if number > count + 50:
            break
    return count


def _cpu_of_a_task(home: Home, count: int) -> float:
    command = [home.environment.python, str(DASK_TASKS), str(count)]
    return float(subprocess.run(command, check=True, env=home.variables, stdout=subprocess.PIPE, text=True).stdout)


def _idle_memory(home: Home) -> float:
    with scheduler(home, f"workers={WORKERS}") as ours:
        wait_until(lambda: ours.has_said(WAITING), WAITING)
        memory = ours.memory()
    home.clear()
    return memory


def _idle_percent(home: Home, seconds: float) -> float:
    """Returns the percentage of a CPU that an idle scheduler uses."""
    with scheduler(home, f"workers={WORKERS}") as ours:
        wait_until(lambda: ours.has_said(WAITING), WAITING)
        time.sleep(5)
        cpu, since = ours.cpu(), time.monotonic()
        time.sleep(seconds)
        percent = 100 * (ours.cpu() - cpu) / (time.monotonic() - since)
    home.clear()
    return percent


def _ready(home: Home, rounds: int) -> tuple[list[float], list[float], list[float]]:
    """Returns the seconds until a scheduler is ready, and of its parts, measured alternately."""
    ready, imports, bare = [], [], []
    for _ in range(rounds):
        with scheduler(home, f"workers={WORKERS}") as ours:
            wait_until(lambda: ours.has_said(WAITING), WAITING, every=0.005)
            ready.append(time.time() - ours.since)
        since = time.monotonic()
        subprocess.run([home.environment.python, "-c", "import distributed"], check=True, env=home.variables)
        imports.append(time.monotonic() - since)
        home.clear()
        begun = time.time()
        home.guild("run", "stamped", "-y")
        (run_dir,) = [path for path in home.runs.iterdir() if path.name not in home.kept]
        bare.append(home.began(run_dir) - begun)
        home.clear()
    return ready, imports, bare
