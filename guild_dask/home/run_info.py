"""Where a run ran, and what it used: an attribute of the run, which `guild runs info` shows.

The scheduler provides where, and the run's starter adds what was used. The YAML has one level only, since Guild shows
deeper levels in an unreadable way.
"""

import contextlib
import json
import os
import pathlib
import resource
import signal
import sys
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from guild_dask.home import layout, process_start, run_directory
from guild_dask.home.outcome import Cause, Excess
from guild_dask.home.process_start import ProcessStart
from guild_dask.host import files

NAME = "dask"

# What the run's starter adds: seconds of all CPUs together, and the largest memory of all processes that was measured.
CPU = "cpu_seconds"
MEMORY = "max_memory"

# Also the name of the cause that cut it short, if any, or that ended processes which it left behind; a limit has
# numbers beside it. A run that was killed by a signal that we did not send has the signal's number.
ENDED = "ended"
LEFT = "left_behind_ended"
_LIMIT = "_limit"
_REACHED = "_reached"
KILLED_BY = "killed_by_signal"

# Bytes of these records that are read; they are much shorter.
_LONGEST = 20_000


def text_for(facts: Mapping[str, Any]) -> str:
    """Returns facts, which are texts and numbers, as YAML."""
    # A text in JSON is the same text in YAML.
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in facts.items())


def write(run_dir: str, text: str) -> None:
    """Writes where a run is that is about to start. Errors are ignored: the run starts all the same."""
    with contextlib.suppress(OSError):
        started = text_for({"started": time.strftime("%Y-%m-%d %H:%M:%S")})
        files.overwrite(_path(run_dir), f"{text}{started}")


def add_end(
    run_dir: str,
    memory_seen: int = 0,
    end: Mapping[str, Any] = MappingProxyType({}),
    seconds_elsewhere: float = 0.0,
) -> None:
    """Adds what the ended children of this process have used, and facts about the run's end.

    `memory_seen` was measured for all of them together; the largest one alone may have used more since.
    `seconds_elsewhere` were used by processes of the run that are not below this one.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Linux counts in units of 1024 bytes, macOS in bytes.
    memory = max(memory_seen, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
    add(run_dir, {CPU: round(used.ru_utime + used.ru_stime + seconds_elsewhere, 2), MEMORY: memory, **end})


def add(run_dir: str, facts: Mapping[str, Any]) -> None:
    """Adds facts about a run that has started. Errors are ignored, as all of this is for information."""
    with contextlib.suppress(OSError):
        files.overwrite(_path(run_dir), text_for(facts), os.O_APPEND)


def facts(run_dir: str) -> dict[str, Any]:
    """Returns what is recorded about a run; empty if it cannot be read."""
    found = run_directory.known_attribute(run_dir, NAME)
    return found if isinstance(found, dict) else {}


def last_scheduler(run_dir: str) -> str:
    """Returns the scheduler that started a run last; empty if that was another program, or cannot be read.

    The record of an earlier start is older than Guild's own time of the last one: the run's starter adds to it until
    the run's end.
    """
    try:
        ours, start = (os.stat(layout.attribute(run_dir, name)).st_mtime_ns for name in (NAME, "started"))
    except OSError:
        return ""
    return str(facts(run_dir).get("scheduler") or "") if ours >= start else ""


def facts_for_cause(fact: str, cause: Cause, excess: Excess) -> dict[str, Any]:
    """Returns a cause as facts for the attribute: `ended: time-limit`, with the limit's numbers beside it."""
    numbers = {_LIMIT: excess.limit, _REACHED: excess.reached}
    return {fact: cause.value, **{f"{fact}{name}": number for name, number in numbers.items() if number}}


def cause_in(facts: Mapping[str, Any], fact: str = ENDED) -> tuple[str, Excess]:
    """Returns the name of the cause that facts_for_cause() wrote, empty where there is none, and its numbers."""
    numbers = (facts.get(f"{fact}{name}") for name in (_LIMIT, _REACHED))
    name = facts.get(fact)
    return str(name) if name else "", Excess(*(float(n) if isinstance(n, (int, float)) else 0.0 for n in numbers))


def recorded(run_dir: str) -> tuple[dict[str, float], ProcessStart]:
    """Returns what a run used, and how the process of its last attempt was started, as far as that is recorded."""
    lines = _lines(run_dir)
    numbers = _numbers(lines)
    kind = lines.get(process_start.KIND, "").strip('"')
    return {name: numbers[name] for name in (CPU, MEMORY) if name in numbers}, process_start.start_for(kind, numbers)


def _lines(run_dir: str) -> dict[str, str]:
    """Returns the facts of a run as they are written; none if they cannot be read."""
    try:
        text = files.read_text(_path(run_dir), levels=0, most=_LONGEST)
    except (OSError, ValueError):
        return {}
    return {name: value for name, _, value in (line.partition(": ") for line in text.splitlines())}


def _numbers(lines: Mapping[str, str]) -> dict[str, float]:
    found = {}
    for name, value in lines.items():
        with contextlib.suppress(ValueError):
            found[name] = float(value)
    return found


def make_terminated(run_dir: str) -> None:
    """Makes Guild show a run that we ended as terminated, whatever exit code it had.

    A run that exits with 0 on a request to end has saved its work; it has not completed.
    """
    status = layout.attribute(run_dir, "exit_status")
    with contextlib.suppress(OSError, ValueError):
        if int(files.read_text(status, levels=0, most=_LONGEST)) >= 0:
            files.overwrite(status, f"{-signal.SIGTERM}\n")


def set_node(run_dir: str, node: str) -> None:
    """Makes Guild on any host show the run as running on this one.

    Guild on other hosts cannot see the run's process. It shows a run with this file as one on a remote.
    """
    with contextlib.suppress(OSError):
        files.overwrite(_remote_lock(run_dir), node)


def clear_node(run_dir: str) -> None:
    """Makes Guild show the run's own status again."""
    with contextlib.suppress(OSError):
        _remote_lock(run_dir).unlink(missing_ok=True)


def _remote_lock(run_dir: str) -> pathlib.Path:
    return pathlib.Path(layout.marker(run_dir, layout.REMOTE_LOCK))


def _path(run_dir: str) -> pathlib.Path:
    return pathlib.Path(layout.attribute(run_dir, NAME))
