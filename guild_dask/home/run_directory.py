"""One run directory, read and marked as guildai 0.9 does it. Nothing here takes a lock or reads other runs.

Only what is needed is read: Guild's own classes parse several YAML files for each run, which costs most of a second
for a few thousand of them.
"""

import contextlib
import functools
import os
import pathlib
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml
from guild import opref as guild_opref

from guild_dask.home import layout, operation_data
from guild_dask.host import files
from guild_dask.plan.tags import Demands, demands_for_tags, may_be_ours

# Attributes that we read are much shorter; a deeply nested one could crash the parser, and with it the process.
_LONGEST = 20_000
_PIECE = 8_192

_PLAIN_NUMBER = re.compile(r"[1-9][0-9]{0,17}")

_QUEUES = ("queue", "dask:scheduler")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# PyYAML passes on exceptions of Python for values such as 2023-13-45, 0b_ or `!!bool maybe`.
_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


class BrokenRun(Exception):
    """A run directory cannot be read as one; the text says what is wrong with it."""


@dataclass(frozen=True)
class Staged:
    """A run that waits to be started."""

    id: str
    dir: str
    since: int  # when it was staged, in microseconds: runs start in this order
    tags: tuple[str, ...]  # only tags for guild-dask
    needs: tuple[str, ...] = ()  # the runs whose files its operation uses, as Guild recorded them when it was staged
    gpus: tuple[str, ...] | None = None  # the devices that the user gave it with --gpus; none for --no-gpus
    is_queue: bool = False  # a Guild queue or a scheduler, or a batch of them: it would start others itself

    @functools.cached_property
    def demands(self) -> Demands:
        """Returns what the tags request; they are parsed once for each reading of the run."""
        return demands_for_tags(self.tags)


def refresh(run_dir: str) -> None:
    """Invalidates NFS's cache of a run directory, before it is read and something is decided by it."""
    files.refresh(run_dir, layout.guild_dir(run_dir), layout.attributes(run_dir))


def has(run_dir: str, name: str) -> bool:
    """Tells whether the run has that marker."""
    return os.path.exists(layout.marker(run_dir, name))


def is_staged(run_dir: str) -> bool:
    """Tells whether the run is staged, and not pending, as it is while Guild stages it; raises OSError."""
    try:
        os.stat(layout.marker(run_dir, layout.STAGED))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not has(run_dir, layout.PENDING)


def set_marker(run_dir: str, name: str) -> None:
    """Sets an empty marker, as Guild does."""
    open(layout.marker(run_dir, name), "w").close()


def clear_marker(run_dir: str, name: str) -> None:
    """Removes a marker, if it is set."""
    pathlib.Path(layout.marker(run_dir, name)).unlink(missing_ok=True)


def attribute(run_dir: str, name: str) -> Any:
    """Returns a run attribute, or None if the run does not have it; raises BrokenRun if it cannot be read."""
    try:
        text = _content(layout.attribute(run_dir, name)).decode()
        if len(text) > _LONGEST:
            raise BrokenRun(f"attribute {name!r} is far too long")
        # Most attributes are times and exit codes, which need no parser. A leading 0 would begin an octal number.
        plain = text.strip()
        return int(plain) if _PLAIN_NUMBER.fullmatch(plain) else yaml.load(text, _Loader)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as e:
        raise BrokenRun(f"cannot read attribute {name!r}: {e}") from e
    except _YAML_ERRORS as e:
        raise BrokenRun(f"attribute {name!r} is not YAML") from e


def exit_status(run_dir: str) -> int | None:
    """Returns the exit status that Guild recorded, or None if it is missing or unreadable."""
    try:
        status = attribute(run_dir, "exit_status")
    except BrokenRun:
        return None
    return status if isinstance(status, int) else None


def _content(path: str) -> bytes:
    """Returns the content of a file, cut off somewhat above the length that is accepted."""
    # open() takes three times as long, and tens of thousands of files are read.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = part = os.read(fd, _PIECE)
        while len(part) == _PIECE and len(content) <= 4 * _LONGEST:
            part = os.read(fd, _PIECE)
            content += part
        return content
    finally:
        os.close(fd)


def write_tags(run_dir: str, tags: list[str]) -> None:
    """Replaces the run's tags, as `guild tag` does; a reader sees the old tags or the new ones."""
    files.write(layout.attribute(run_dir, "tags"), yaml.safe_dump(tags, default_flow_style=False))


def our_tags(run_dir: str) -> tuple[str, ...]:
    """Returns a run's tags for guild-dask; raises BrokenRun if they cannot be read."""
    tags = attribute(run_dir, "tags") or []
    if not isinstance(tags, list):
        raise BrokenRun("attribute 'tags' is not a list")
    return tuple(tag for tag in tags if isinstance(tag, str) and may_be_ours(tag))


def read_staged(run_dir: str) -> Staged:
    """Returns a staged run; raises BrokenRun if its directory is incomplete."""
    is_queue = _is_queue(run_dir, opref(run_dir))
    since = _since(run_dir)
    op = _operation_data(run_dir)
    name, tags = os.path.basename(run_dir), our_tags(run_dir)
    return Staged(name, run_dir, since, tags, operation_data.needs(op), operation_data.gpus(op), is_queue)


def _since(run_dir: str) -> int:
    """Returns when the run was staged, in microseconds.

    Guild sets the STAGED marker first, and the attribute with the time a moment later. Until then, the attribute is
    older or missing, and the time of the marker counts.
    """
    attribute_time = _modified(layout.attribute(run_dir, "started"))
    marker_time = _modified(layout.marker(run_dir, layout.STAGED))
    since = attribute(run_dir, "started") or attribute(run_dir, "initialized")
    if not isinstance(since, int):
        raise BrokenRun("it does not say when it was staged")
    return since if attribute_time >= marker_time else max(since, marker_time // 1000)


def keep_place(run_dir: str) -> None:
    """Keeps the place in the queue of a run that was staged again: its marker must not be newer than the attribute."""
    with contextlib.suppress(OSError):
        staged = _modified(layout.attribute(run_dir, "started"))
        os.utime(layout.marker(run_dir, layout.STAGED), ns=(staged, staged))


def _operation_data(run_dir: str) -> Any:
    """Returns what Guild recorded about the run's operation, if it has something that is used here; else None."""
    try:
        with open(layout.attribute(run_dir, "op"), "rb") as f:
            text = f.read(_LONGEST)
        # Most runs have nothing that is used here, and parsing that much YAML is slow.
        matters = b"operation:" in text or b"CUDA_VISIBLE_DEVICES:" in text
        return attribute(run_dir, "op") if matters else None
    except (OSError, BrokenRun):
        return None


def record_end(run_dir: str, exit_status: int) -> None:
    """Records the end of a run whose Guild process died before it could."""
    for name, value in (("exit_status", exit_status), ("stopped", time.time_ns() // 1000)):
        with open(layout.attribute(run_dir, name), "w", encoding="utf-8") as f:
            f.write(f"{value}\n")
    clear_marker(run_dir, layout.LOCK)


def forget_end(run_dir: str) -> None:
    """Removes the recorded end of a run that is to be started again: Guild does not do that itself."""
    for name in ("exit_status", "stopped"):
        pathlib.Path(layout.attribute(run_dir, name)).unlink(missing_ok=True)


def staged_signature(run_dir: str) -> tuple[int, ...] | None:
    """Returns a value that changes when the run is staged again or tagged; None if it is not staged.

    Raises OSError if the run cannot be read.
    """
    try:
        staged = os.stat(layout.marker(run_dir, layout.STAGED))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if has(run_dir, layout.PENDING):
        return None
    try:
        tags = os.stat(layout.attribute(run_dir, "tags"))
    except OSError:
        return (staged.st_mtime_ns, 0, 0, 0)
    return (staged.st_mtime_ns, tags.st_mtime_ns, tags.st_size, tags.st_ino)


def opref(run_dir: str) -> Any:
    """Returns the reference of the run's operation; raises BrokenRun if it is missing or unreadable."""
    try:
        return _parsed_opref(_content(layout.opref(run_dir)).decode())
    except FileNotFoundError:
        raise BrokenRun("it does not say which operation it is for") from None
    except (OSError, UnicodeDecodeError) as e:
        raise BrokenRun(f"cannot read its operation: {e}") from e
    except ValueError as e:  # Guild's OpRefError, or a quote that is not closed
        raise BrokenRun("it does not say which operation it is for") from e


@functools.lru_cache(maxsize=1_000)
def _parsed_opref(text: str) -> Any:
    """Returns an operation's reference, parsed by Guild. That is slow, and runs of one operation have the same."""
    return guild_opref.OpRef.parse(text)


def operation(run_dir: str) -> str:
    """Returns the run's operation, as Guild shows it; empty if it is unreadable."""
    try:
        return str(opref(run_dir).to_opspec())
    except BrokenRun:
        return ""


@functools.lru_cache(maxsize=1_000)
def cached_operation(run_dir: str) -> str:
    """Returns the same without reading it again; a run's operation does not change."""
    return operation(run_dir)


def is_queue(run_dir: str) -> bool:
    """Tells whether the run is a Guild queue or a scheduler, or a batch of them."""
    try:
        return _is_queue(run_dir, opref(run_dir))
    except BrokenRun:
        return False


def _is_queue(run_dir: str, reference: Any) -> bool:
    # Only queues, schedulers, batches and few other operations are builtin, so that no more is read of most runs.
    if reference.pkg_type != "builtin":
        return False
    return str(reference.to_opspec()) in _QUEUES or operation(layout.prototype(run_dir)) in _QUEUES


def locked_by(run_dir: str) -> int | None:
    """Returns the pid that Guild recorded for a run that started and has not ended."""
    try:
        with open(layout.marker(run_dir, layout.LOCK)) as f:
            pid = int(f.read(10))
    except (OSError, ValueError):
        return None
    return pid if pid > 0 else None


def last_started(run_dir: str) -> int:
    """Returns when Guild last recorded that the run started or ended, in nanoseconds; 0 for never."""
    ended = last_ended(run_dir)  # first: it refreshes the folders
    return max(_modified(layout.marker(run_dir, layout.LOCK)), ended)


def last_ended(run_dir: str) -> int:
    """Returns when Guild last recorded the end of the run, in nanoseconds; 0 for never."""
    refresh(run_dir)
    return _modified(layout.attribute(run_dir, "exit_status"))


def attribute_times(run_dir: str, names: Iterable[str]) -> tuple[int, ...]:
    """Returns when each of the attributes was last written, in nanoseconds; 0 for one that the run does not have."""
    return tuple(_modified(layout.attribute(run_dir, name)) for name in names)


def _modified(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
