"""The memory of a warm server and of warm runs, and where the time of one run goes, warm and cold."""

import itertools
import json
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import psutil

from benchmarks.contenders import WORKERS
from benchmarks.homes import Home, Template
from benchmarks.measuring import WAITING, scheduler, wait_until
from benchmarks.sizes import Sizes

WARM, COLD = "warm", "cold"

# The parts of a run's time, in their order; the first begins when the scheduler sends the run to its worker.
PHASES = ("starter and Guild", "the operation's process, up to the user's code", "the user's code", "end and records")

# Seconds that a run sleeps while its memory is measured.
_ASLEEP = 3600.0


@dataclass(frozen=True)
class Memory:
    """Megabytes: all that a process has mapped and touched, its share of that, and what it has for itself."""

    resident: float
    share: float
    own: float


@dataclass(frozen=True)
class Footprint:
    """Memory by process, and medians of seconds by phase, for warm and cold runs."""

    memory: dict[str, Memory]
    runs: int  # that ran at the same time when memory was measured
    phases: dict[str, dict[str, float]]
    samples: int

    def as_data(self) -> dict[str, object]:
        return asdict(self)


def measure(home: Home, template: Template, sizes: Sizes) -> Footprint:
    """Returns the memory with as many runs as there are slots, and the phases of runs one after the other."""
    memory = {**_memory(home, template, COLD, "warm=no"), **_memory(home, template, WARM, "warm=yes")}
    return Footprint(memory, WORKERS, _phases(home, template, sizes.latencies), sizes.latencies)


def _memory(home: Home, template: Template, kind: str, flag: str) -> dict[str, Memory]:
    run_dirs = home.staged(template, WORKERS, _ASLEEP)
    with scheduler(home, f"workers={WORKERS}", flag):
        wait_until(lambda: all((path / "begun").exists() for path in run_dirs), "the runs to begin")
        pids = [int((path / ".guild" / "LOCK").read_text()) for path in run_dirs]
        operations = [psutil.Process(pid) for pid in pids]
        found = {f"a {kind} run": _mean(operations)}
        if kind == WARM:
            supervisors = [each.parent() for each in operations]
            found["the supervisor of a warm run"] = _mean(each for each in supervisors if each)
            servers = [each for each in psutil.process_iter() if _is_server(each, home)]
            found["the warm server"] = _mean(servers)
    home.clear()
    return found


def _is_server(process: psutil.Process, home: Home) -> bool:
    try:
        is_ours = process.environ().get("GUILD_HOME") == str(home.folder)
        return is_ours and list(process.cmdline())[1:] == ["-um", "guild.op_main"]
    except psutil.Error:
        return False


def _mean(processes: Iterable[psutil.Process]) -> Memory:
    found = [each.memory_full_info() for each in processes]
    return Memory(*(statistics.mean(getattr(each, name) for each in found) / 1e6 for name in ("rss", "pss", "uss")))


def _phases(home: Home, template: Template, count: int) -> dict[str, dict[str, float]]:
    """Returns the phases of cold and warm runs, which take turns, each in a home with a scheduler of its own."""
    apart = Home(home.environment, home.folder.with_name("apart"), home.project, 0, frozenset())
    apart.runs.mkdir(parents=True, exist_ok=True)
    homes = {COLD: home, WARM: apart}
    moments: dict[str, list[list[float]]] = {COLD: [], WARM: []}
    with scheduler(home, "workers=1", "warm=no") as cold, scheduler(apart, "workers=1", "warm=yes") as warm:
        wait_until(lambda: cold.has_said(WAITING) and warm.has_said(WAITING), WAITING)
        for _ in range(count + 1):
            for kind, place in homes.items():
                run_dir = place.stage(template)
                wait_until(lambda place=place, run_dir=run_dir: _moments(place, run_dir), "the end of a run")  # type: ignore[misc]
                moments[kind].append(_moments(place, run_dir) or [])
    home.clear()
    apart.clear()
    return {kind: _medians(found[1:]) for kind, found in moments.items()}  # the first one waits for the warm server


def _medians(moments: Sequence[Sequence[float]]) -> dict[str, float]:
    parts = [[later - earlier for earlier, later in itertools.pairwise(each)] for each in moments]
    return {name: statistics.median(part[number] for part in parts) for number, name in enumerate(PHASES)}


def _moments(home: Home, run_dir: pathlib.Path) -> list[float] | None:
    """Returns when a run was sent, Guild started it, its code began, its code ended, and it was settled."""
    events = _events(home, run_dir.name)
    if len(events) < 2:
        return None
    started = int((run_dir / ".guild" / "attrs" / "started").read_text()) / 1e6
    begun, ended = (float((run_dir / name).read_text()) for name in ("begun", "ended"))
    return [events["started"], started, begun, ended, events["ended"]]


def _events(home: Home, run_id: str) -> Mapping[str, float]:
    lines: Sequence[str] = [
        line for path in home.runs.glob("*/events.jsonl") for line in path.read_text().splitlines() if run_id in line
    ]
    return {event["event"]: float(event["at"]) for event in map(json.loads, lines)}
