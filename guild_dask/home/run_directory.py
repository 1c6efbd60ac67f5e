"""One run directory, read and marked as guildai 0.9 does it. Nothing here takes a lock or looks at other runs.

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

# No attribute that we read comes near this, and what is nested deeper than memory allows would end the process.
_LONGEST = 20_000
_PIECE = 8_192

_PLAIN_NUMBER = re.compile(r"[1-9][0-9]{0,17}")

_QUEUES = ("queue", "dask:scheduler")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# PyYAML lets out what Python says to values such as 2023-13-45, 0b_ or `!!bool maybe`.
_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


class BrokenRun(Exception):
    """A run directory cannot be read as one; the text says what is wrong with it."""


@dataclass(frozen=True)
class Staged:
    """A run that waits to be started."""

    id: str
    dir: str
    since: int  # when it was staged, in microseconds: runs start in this order
    tags: tuple[str, ...]  # those that are meant for us
    needs: tuple[str, ...] = ()  # the runs whose files its operation takes, as Guild noted them when it was staged
    gpus: tuple[str, ...] | None = None  # the devices that the user gave it with --gpus; none for --no-gpus
    is_queue: bool = False  # a Guild queue or a scheduler, or a batch of them: it would start others itself

    @functools.cached_property
    def demands(self) -> Demands:
        """Returns what the tags ask for. They are parsed here and nowhere else."""
        return demands_for_tags(self.tags)


def refresh(run_dir: str) -> None:
    """Invalidates NFS's cache of a run directory, before it is read and something is decided by it."""
    files.refresh(run_dir, layout.guild_dir(run_dir), layout.attributes(run_dir))


def has(run_dir: str, name: str) -> bool:
    """Tells whether the run has that marker."""
    return os.path.exists(layout.marker(run_dir, name))


def is_staged(run_dir: str) -> bool:
    """Tells whether the run waits; raises OSError if that cannot be seen. While Guild stages it, it is pending, too."""
    try:
        os.stat(layout.marker(run_dir, layout.STAGED))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not has(run_dir, layout.PENDING)


def set_marker(run_dir: str, name: str) -> None:
    """Gives the run an empty marker, as Guild does."""
    open(layout.marker(run_dir, name), "w").close()


def clear_marker(run_dir: str, name: str) -> None:
    """Takes a marker away, if it is there."""
    pathlib.Path(layout.marker(run_dir, name)).unlink(missing_ok=True)


def attribute(run_dir: str, name: str) -> Any:
    """Returns a run attribute, or None if the run has none of that name; raises BrokenRun if it cannot be read."""
    try:
        text = _content(layout.attribute(run_dir, name)).decode()
        if len(text) > _LONGEST:
            raise BrokenRun(f"attribute {name!r} is far too long")
        # Times and exit codes, which most attributes that we read are, need no parser; 0 begins an octal number.
        plain = text.strip()
        return int(plain) if _PLAIN_NUMBER.fullmatch(plain) else yaml.load(text, _Loader)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as e:
        raise BrokenRun(f"cannot read attribute {name!r}: {e}") from e
    except _YAML_ERRORS as e:
        raise BrokenRun(f"attribute {name!r} is not YAML") from e


def exit_status(run_dir: str) -> int | None:
    """Returns the exit status that Guild recorded, or None if there is none, or none that can be read."""
    try:
        status = attribute(run_dir, "exit_status")
    except BrokenRun:
        return None
    return status if isinstance(status, int) else None


def _content(path: str) -> bytes:
    """Returns what is in a file, up to somewhat more than any of them should have."""
    # Not with open(): tens of thousands are read, and it takes three times as long.
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
    """Gives the run these tags and no others, as `guild tag` does; a reader sees the old ones or the new ones."""
    files.write(layout.attribute(run_dir, "tags"), yaml.safe_dump(tags, default_flow_style=False))


def our_tags(run_dir: str) -> tuple[str, ...]:
    """Returns the tags of a run that are meant for us; raises BrokenRun if they cannot be read."""
    tags = attribute(run_dir, "tags") or []
    if not isinstance(tags, list):
        raise BrokenRun("attribute 'tags' is not a list")
    return tuple(tag for tag in tags if isinstance(tag, str) and may_be_ours(tag))


def read_staged(run_dir: str) -> Staged:
    """Returns what matters of a staged run; raises BrokenRun if its directory is not a whole one."""
    is_queue = _is_queue(run_dir, opref(run_dir))
    since = _since(run_dir)
    op = _operation_data(run_dir)
    name, tags = os.path.basename(run_dir), our_tags(run_dir)
    return Staged(name, run_dir, since, tags, operation_data.needs(op), operation_data.gpus(op), is_queue)


def _since(run_dir: str) -> int:
    """Returns when the run was staged, in microseconds.

    Guild sets the STAGED marker, and the attribute that says when a moment later. Until then there is an earlier time
    in it, or none, and the marker's own has to do.
    """
    attribute_time = _modified(layout.attribute(run_dir, "started"))
    marker_time = _modified(layout.marker(run_dir, layout.STAGED))
    since = attribute(run_dir, "started") or attribute(run_dir, "initialized")
    if not isinstance(since, int):
        raise BrokenRun("it does not say when it was staged")
    return since if attribute_time >= marker_time else max(since, marker_time // 1000)


def keep_place(run_dir: str) -> None:
    """Makes a run that was staged again keep its place: the marker is not to be newer than the attribute."""
    with contextlib.suppress(OSError):
        staged = _modified(layout.attribute(run_dir, "started"))
        os.utime(layout.marker(run_dir, layout.STAGED), ns=(staged, staged))


def _operation_data(run_dir: str) -> Any:
    """Returns what Guild noted about the run's operation, if there is something in it that matters here."""
    try:
        with open(layout.attribute(run_dir, "op"), "rb") as f:
            text = f.read(_LONGEST)
        # As with most runs, there is not, and reading that much YAML takes its time.
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
    """Takes back that the run has ended, since it is to be started again: Guild does not do that itself."""
    for name in ("exit_status", "stopped"):
        pathlib.Path(layout.attribute(run_dir, name)).unlink(missing_ok=True)


def staged_signature(run_dir: str) -> tuple[int, ...] | None:
    """Returns a value that changes when the run is staged anew or tagged; None if it is not staged.

    Raises OSError if that cannot be seen.
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
    """Returns the reference of the run's operation; raises BrokenRun if there is none that can be read."""
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
    """Returns what Guild makes of an operation's reference; runs of one operation have the same, and it takes long."""
    return guild_opref.OpRef.parse(text)


def operation(run_dir: str) -> str:
    """Returns what the run is a run of, as Guild shows it; nothing where it does not say so."""
    try:
        return str(opref(run_dir).to_opspec())
    except BrokenRun:
        return ""


def is_queue(run_dir: str) -> bool:
    """Tells whether the run is a Guild queue or a scheduler, or a batch of them."""
    try:
        return _is_queue(run_dir, opref(run_dir))
    except BrokenRun:
        return False


def _is_queue(run_dir: str, reference: Any) -> bool:
    # Queues, schedulers and Guild's batches are builtin, and hardly anything else that is staged. So no more is read.
    if reference.pkg_type != "builtin":
        return False
    return str(reference.to_opspec()) in _QUEUES or operation(layout.prototype(run_dir)) in _QUEUES


def locked_by(run_dir: str) -> int | None:
    """Returns the process that Guild has on record for a run that started and has not ended."""
    try:
        with open(layout.marker(run_dir, layout.LOCK)) as f:
            pid = int(f.read(10))
    except (OSError, ValueError):
        return None
    return pid if pid > 0 else None


def last_started(run_dir: str) -> int:
    """Returns when the run's process was last seen to have started or ended, in nanoseconds; 0 for never."""
    return max(_modified(layout.marker(run_dir, layout.LOCK)), last_ended(run_dir))


def last_ended(run_dir: str) -> int:
    """Returns when Guild last recorded the end of the run, in nanoseconds; 0 for never."""
    return _modified(layout.attribute(run_dir, "exit_status"))


def attribute_times(run_dir: str, names: Iterable[str]) -> tuple[int, ...]:
    """Returns when each of the attributes was last written, in nanoseconds; 0 for one that the run does not have."""
    return tuple(_modified(layout.attribute(run_dir, name)) for name in names)


def _modified(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
