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
    memory: dict[str, Memory] = {}
    phases = {}
    for kind, flag in ((COLD, "warm=no"), (WARM, "warm=yes")):
        memory |= _memory(home, template, kind, flag)
        phases[kind] = _phases(home, template, flag, sizes.latencies)
    return Footprint(memory, WORKERS, phases, sizes.latencies)


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


def _phases(home: Home, template: Template, flag: str, count: int) -> dict[str, float]:
    with scheduler(home, "workers=1", flag) as ours:
        wait_until(lambda: ours.has_said(WAITING), WAITING)
        run_dirs = []
        for _ in range(count + 1):  # the first one waits for the warm server
            run_dirs.append(home.stage(template))
            wait_until(lambda: _moments(home, run_dirs[-1]), "the end of a run")
        moments = [found for found in (_moments(home, each) for each in run_dirs[1:]) if found]
    home.clear()
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
