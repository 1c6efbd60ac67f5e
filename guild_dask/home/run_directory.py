"""One run directory, read and marked as guildai 0.9 does it. Nothing here takes a lock or reads other runs.

Other hosts write to it, and NFS answers from its cache for up to a minute. What decides about a run is read with
functions that refresh that cache first. Those that do not, say so: they are for polls, which read again and take a run
by a rename, for views, and for what does not change. Each folder that is refreshed is a message to the file server.

Only what is needed is read: Guild's own classes parse several YAML files for each run, which costs most of a second
for a few thousand of them.
"""

import contextlib
import functools
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from guild import opref as guild_opref

from guild_dask.home import layout, operation_data, record_yaml
from guild_dask.home.errors import raise_if_of_home
from guild_dask.home.record_yaml import BadRecord
from guild_dask.host import files
from guild_dask.plan.tags import Requirements, may_be_ours, requirements_for_tags

# Bytes of a record that we read, which is much shorter; of the record of the operation, which names all runs that it
# needs; and of all attributes of a run together, which Guild reads.
_LONGEST = 80_000
_LONGEST_OPERATION = 1_000_000
_MOST_OF_ALL = 4_000_000

# Runs that one run may come after, by its tags and its operation: they are looked up again until they have completed.
_MOST_REFERENCES = 10_000

# Files in one folder of Guild's records; Guild has some twenty.
_MOST_FILES = 1_000

# Microseconds, in the year 6536: a later time is none, and cannot be shown as a date.
_LATEST = 2**57

# Characters of a time, a pid or an exit code.
_LONGEST_FACT = 40

_PLAIN_NUMBER = re.compile(r"[1-9][0-9]{0,17}")

_QUEUES = ("queue", "dask:scheduler")
_BATCH = "+"

# The operations that search.
OPTIMIZERS = ("dask:tpe", "dask:random", "dask:gp")


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
    is_batch: bool = False  # it runs its trials itself, one after the other
    is_search: bool = False  # it stages its trials, and needs no slot

    @functools.cached_property
    def requirements(self) -> Requirements:
        """Returns what the tags request; they are parsed once for each reading of the run."""
        return requirements_for_tags(self.tags)


def _refresh(run_dir: str) -> None:
    files.refresh(run_dir, layout.guild_dir(run_dir), layout.attributes(run_dir))


def _refresh_markers(run_dir: str) -> None:
    files.refresh(run_dir, layout.guild_dir(run_dir))


def _refresh_attributes(run_dir: str) -> None:
    files.refresh(layout.guild_dir(run_dir), layout.attributes(run_dir))


def is_there(run_dir: str) -> bool:
    """Returns whether there is such a folder; raises OSError if the home cannot be read."""
    _refresh(run_dir)
    return is_folder(run_dir)


def is_run(run_dir: str) -> bool:
    """Returns whether there is a run with records; raises OSError if the home cannot be read."""
    files.refresh(run_dir)
    return _exists(layout.guild_dir(run_dir))


def is_missing(run_dir: str) -> bool:
    """Returns whether there are no records of a run; raises OSError if that cannot be seen, whatever the reason."""
    files.refresh(run_dir)
    try:
        os.stat(layout.guild_dir(run_dir))
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def has(run_dir: str, name: str) -> bool:
    """Returns whether the run has that marker; raises OSError if the home cannot be read."""
    _refresh_markers(run_dir)
    return seems_to_have(run_dir, name)


def seems_to_have(run_dir: str, name: str) -> bool:
    """Returns the same without a refresh, for polls."""
    return _exists(layout.marker(run_dir, name))


def _exists(path: str) -> bool:
    return _mode(path) is not None


def is_folder(path: str) -> bool:
    """Returns whether there is a folder at a path, without a refresh; raises OSError if it cannot be seen."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def _mode(path: str) -> int | None:
    try:
        return os.stat(path).st_mode
    except OSError as e:
        raise_if_of_home(e)
    except ValueError:
        pass  # no path has a null character
    return None


def marker_or_end(run_dir: str, names: Iterable[str]) -> tuple[str | None, int | None]:
    """Returns the first of the markers that the run has or, if it has none of them, the exit status on record.

    Refreshes once for all of it; raises OSError if the home cannot be read.
    """
    _refresh(run_dir)
    for name in names:
        if seems_to_have(run_dir, name):
            return name, None
    return None, _recorded_status(run_dir)


def is_staged(run_dir: str) -> bool:
    """Returns whether the run is staged, and not pending, as it is while Guild stages it; raises OSError."""
    _refresh_markers(run_dir)
    return seems_staged(run_dir)


def seems_staged(run_dir: str) -> bool:
    """Returns the same without a refresh, for polls and views."""
    return _staged_marker(run_dir) is not None


def _staged_marker(run_dir: str) -> os.stat_result | None:
    try:
        marker = os.stat(layout.marker(run_dir, layout.STAGED))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return None if seems_to_have(run_dir, layout.PENDING) else marker


def set_marker(run_dir: str, name: str) -> None:
    """Sets an empty marker, as Guild does."""
    files.overwrite(layout.marker(run_dir, name))


def set_staged(run_dir: str) -> None:
    """Stages a run at the end of the queue, as Guild does: the time that decides its position is written first."""
    files.write(layout.attribute(run_dir, "started"), f"{time.time_ns() // 1000}\n")
    set_marker(run_dir, layout.STAGED)


def clear_markers(run_dir: str, *names: str) -> None:
    """Removes markers, those of them that are set."""
    _refresh_markers(run_dir)
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(layout.marker(run_dir, name))


@contextlib.contextmanager
def opened(run_dir: str) -> Iterator[int]:
    """Holds Guild's folder of a run open; raises OSError if there is none."""
    _refresh(run_dir)
    with files.open_folder(layout.guild_dir(run_dir)) as folder:
        yield folder


def attribute(run_dir: str, name: str) -> Any:
    """Returns a run attribute, or None if the run does not have it; raises BrokenRun if it cannot be read."""
    _refresh_attributes(run_dir)
    return _attribute(run_dir, name)


def _attribute(run_dir: str, name: str) -> Any:
    with _of_attribute(name):
        text = files.content(layout.attribute(run_dir, name), _LONGEST).decode()
        # Most attributes are times and exit codes, which need no parser. A leading 0 would begin an octal number.
        plain = text.strip()
        return int(plain) if _PLAIN_NUMBER.fullmatch(plain) else record_yaml.load(text)
    return None


@contextlib.contextmanager
def _of_attribute(name: str) -> Iterator[None]:
    """Raises BrokenRun for an attribute that cannot be read; a missing one ends the block."""
    try:
        yield
    except FileNotFoundError:
        return
    except BadRecord as e:
        raise BrokenRun(f"attribute {name!r} {e}") from e
    except (OSError, UnicodeDecodeError) as e:
        raise BrokenRun(f"cannot read attribute {name!r}: {_reason(e)}") from e


def known_attribute(run_dir: str, name: str) -> Any:
    """Returns a run attribute, or None if it is missing or unreadable; without a refresh, for views."""
    try:
        return _attribute(run_dir, name)
    except BrokenRun:
        return None


def recorded_attribute(run_dir: str, name: str) -> Any:
    """Returns a run attribute, as known_attribute() does; raises OSError if the home cannot be read."""
    _refresh_attributes(run_dir)
    return _recorded_attribute(run_dir, name)


def _recorded_attribute(run_dir: str, name: str) -> Any:
    try:
        return _attribute(run_dir, name)
    except BrokenRun as e:
        raise_if_of_home(e)
        return None


def exit_status(run_dir: str) -> int | None:
    """Returns the exit status that Guild recorded, or None if it is missing or unreadable; without a refresh."""
    status = known_attribute(run_dir, "exit_status")
    return status if isinstance(status, int) else None


def recorded_status(run_dir: str) -> int | None:
    """Returns the exit status that Guild recorded, as exit_status() does; raises OSError if the home cannot be read."""
    _refresh_attributes(run_dir)
    return _recorded_status(run_dir)


def _recorded_status(run_dir: str) -> int | None:
    status = _recorded_attribute(run_dir, "exit_status")
    return status if isinstance(status, int) else None


def has_end(run_dir: str) -> bool:
    """Returns whether the end of an attempt is on record, as the run's own; raises OSError as has() does."""
    _refresh_attributes(run_dir)
    return _exists(layout.attribute(run_dir, "exit_status"))


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def check_files(run_dir: str) -> None:
    """Raises BrokenRun if one of Guild's files in a run directory is something else.

    Guild would wait for ever to read or write a named pipe.
    """
    for folder, is_attribute in ((layout.guild_dir(run_dir), False), (layout.attributes(run_dir), True)):
        try:
            with os.scandir(folder) as entries:
                for count, entry in enumerate(entries):
                    if not entry.is_file(follow_symlinks=False):
                        _check_kind(entry, is_attribute)
                    if count > _MOST_FILES:
                        raise BrokenRun(f"it has more than {_MOST_FILES} files in {os.path.basename(folder)!r}")
        except OSError as e:
            raise BrokenRun(f"cannot list {os.path.basename(folder)!r}: {_reason(e)}") from e


def _check_kind(entry: "os.DirEntry[str]", is_attribute: bool) -> None:
    """Raises BrokenRun for what is not a file in a run directory, nor a folder beside its attributes."""
    what = f"attribute {entry.name!r}" if is_attribute else f"its file {entry.name!r}"
    try:
        kind = files.kind(entry.stat().st_mode)
    except FileNotFoundError:
        return  # it was removed meanwhile, or is a link to nothing
    except OSError as e:
        raise BrokenRun(f"cannot read {what}: {_reason(e)}") from e
    if kind and (is_attribute or not entry.is_dir()):
        raise BrokenRun(f"cannot read {what}: it is {kind}, not a file")


def check_attributes(run_dir: str) -> None:
    """Raises BrokenRun if Guild would run out of memory, or crash, when it starts the run with these attributes."""
    check_files(run_dir)
    size, events = 0, record_yaml.MOST_EVENTS
    for name in _attribute_names(run_dir):
        with _of_attribute(name):
            text = files.content(layout.attribute(run_dir, name), _MOST_OF_ALL)
            size += len(text)
            if size > _MOST_OF_ALL:
                raise BrokenRun(f"its attributes together are larger than {_MOST_OF_ALL // 1000} kB")
            events -= record_yaml.measure(text, events)


def _attribute_names(run_dir: str) -> list[str]:
    try:
        return files.names(layout.attributes(run_dir))
    except OSError as e:
        raise BrokenRun(f"cannot list 'attrs': {_reason(e)}") from e


def write_tags(run_dir: str, tags: list[str]) -> None:
    """Replaces the run's tags, as `guild tag` does; a reader sees the old tags or the new ones."""
    files.write(layout.attribute(run_dir, "tags"), yaml.safe_dump(tags, default_flow_style=False))


def write_label(run_dir: str, label: str) -> None:
    """Replaces the run's label, as `guild label` does."""
    files.write(layout.attribute(run_dir, "label"), yaml.safe_dump(label))


def tags(run_dir: str) -> list[Any]:
    """Returns a run's tags, as whoever changes them must read them; raises BrokenRun if they cannot be read."""
    _refresh_attributes(run_dir)
    return _tags(run_dir)


def _tags(run_dir: str) -> list[Any]:
    found = _attribute(run_dir, "tags") or []
    if not isinstance(found, list):
        raise BrokenRun("attribute 'tags' is not a list")
    return found


def our_tags(run_dir: str) -> tuple[str, ...]:
    """Returns a run's tags for guild-dask; raises BrokenRun if they cannot be read."""
    return _ours_among(tags(run_dir))


def _ours_among(found: list[Any]) -> tuple[str, ...]:
    return tuple(tag for tag in found if isinstance(tag, str) and may_be_ours(tag))


def read_staged(run_dir: str) -> Staged:
    """Returns a staged run, without a refresh; raises BrokenRun if its directory is incomplete."""
    reference = opref(run_dir)
    is_queue, is_batch, is_search = (each(run_dir, reference) for each in (_is_queue, _is_batch, _is_search))
    since = _since(run_dir)
    op = _operation_data(run_dir)
    name, our = layout.run_id(run_dir), _ours_among(_tags(run_dir))
    check_files(run_dir)  # what is in them is checked when the run is claimed
    needs, gpus = operation_data.needs(op), operation_data.gpus(op)
    staged = Staged(name, run_dir, since, our, needs, gpus, is_queue, is_batch, is_search)
    if len(needs) + len(staged.requirements.after) > _MOST_REFERENCES:
        raise BrokenRun(f"it comes after more than {_MOST_REFERENCES} runs")
    return staged


def _since(run_dir: str) -> int:
    """Returns when the run was staged, in microseconds.

    Guild sets the STAGED marker first, and the attribute with the time a moment later. Until then, the attribute is
    older or missing, and the time of the marker counts.
    """
    attribute_time = _modified(layout.attribute(run_dir, "started"))
    marker_time = _modified(layout.marker(run_dir, layout.STAGED))
    since = _attribute(run_dir, "started") or _attribute(run_dir, "initialized")
    if not isinstance(since, int) or seconds_for(since) is None:
        raise BrokenRun("it has no time of staging")
    return since if attribute_time >= marker_time else max(since, marker_time // 1000)


def seconds_for(recorded: Any) -> float | None:
    """Returns a time that Guild recorded, in seconds; None for a value that is no time."""
    return recorded / 1e6 if isinstance(recorded, int) and 0 <= recorded < _LATEST else None


def recorded_seconds(run_dir: str, name: str) -> float | None:
    """Returns a time of a run, in seconds, or None if it is missing or unreadable; without a refresh, for views."""
    return seconds_for(known_attribute(run_dir, name))


def keep_position(run_dir: str) -> None:
    """Keeps the queue position of a run that was staged again: its marker must not be newer than the attribute."""
    with contextlib.suppress(OSError):
        staged = _modified(layout.attribute(run_dir, "started"))
        os.utime(layout.marker(run_dir, layout.STAGED), ns=(staged, staged))


def _operation_data(run_dir: str) -> Any:
    """Returns what Guild recorded about the run's operation, if it has something that is used here; else None.

    Raises BrokenRun if it cannot be read: the run would start without what it needs.
    """
    with _of_attribute("op"):
        text = files.content(layout.attribute(run_dir, "op"), _LONGEST_OPERATION)
        # Most runs have nothing that is used here, and parsing that much YAML is slow.
        matters = b"operation:" in text or b"CUDA_VISIBLE_DEVICES:" in text
        return record_yaml.load(text.decode()) if matters else None
    return None


def record_end(run_dir: str, exit_status: int) -> None:
    """Records the end of a run whose Guild process died before it could."""
    for name, value in (("exit_status", exit_status), ("stopped", time.time_ns() // 1000)):
        files.overwrite(layout.attribute(run_dir, name), f"{value}\n")
    clear_markers(run_dir, layout.LOCK)


def forget_end(run_dir: str) -> None:
    """Removes the recorded end of a run that is to be started again: Guild does not do that itself."""
    _refresh_attributes(run_dir)
    for name in ("exit_status", "stopped"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(layout.attribute(run_dir, name))


def staged_signature(run_dir: str) -> tuple[int, ...] | None:
    """Returns a value that changes when the run is staged again or tagged; None if it is not staged.

    Without a refresh, for polls. Raises OSError if the run cannot be read.
    """
    staged = _staged_marker(run_dir)
    if staged is None:
        return None
    try:
        tags = os.stat(layout.attribute(run_dir, "tags"))
    except OSError:
        return (staged.st_mtime_ns, 0, 0, 0)
    return (staged.st_mtime_ns, tags.st_mtime_ns, tags.st_size, tags.st_ino)


def current_signature(run_dir: str) -> tuple[int, ...] | None:
    """Returns the same as it is now."""
    _refresh(run_dir)
    return staged_signature(run_dir)


def opref(run_dir: str) -> Any:
    """Returns the reference of the run's operation; raises BrokenRun if it is missing or unreadable."""
    try:
        return _parsed_opref(files.content(layout.opref(run_dir), _LONGEST).decode())
    except FileNotFoundError:
        raise BrokenRun("it names no operation") from None
    except (OSError, UnicodeDecodeError) as e:
        raise BrokenRun(f"cannot read its operation: {_reason(e)}") from e
    except ValueError as e:  # Guild's OpRefError, or a quote that is not closed
        raise BrokenRun("it names no operation") from e


@functools.lru_cache(maxsize=1_000)
def _parsed_opref(text: str) -> Any:
    """Returns an operation's reference, parsed by Guild. That is slow, and runs of one operation have the same."""
    return guild_opref.OpRef.parse(text)


def operation(run_dir: str) -> str:
    """Returns the run's operation, as Guild shows it, a script without its folder; empty if it is unreadable.

    That of a batch or a search has the name of its trials: `train+`, `train+dask:tpe`.
    """
    name = own_operation(run_dir)
    if not has_trials(run_dir):
        return name
    return f"{operation(layout.prototype(run_dir))}{'' if name.startswith(_BATCH) else _BATCH}{name}"


def own_operation(run_dir: str) -> str:
    """Returns the same without the name of the trials: that of a search is `dask:tpe`."""
    try:
        return _own_operation(run_dir)
    except BrokenRun:
        return ""


def _own_operation(run_dir: str) -> str:
    reference = opref(run_dir)
    return str(reference.op_name if reference.pkg_type == "script" else reference.to_opspec())


def has_trials(run_dir: str) -> bool:
    """Returns whether the run is a batch or a search, whose scalars, if it has any, are no results of its operation."""
    try:
        return opref(run_dir).pkg_type == "builtin" and os.path.isdir(layout.prototype(run_dir))
    except BrokenRun:
        return False


@functools.lru_cache(maxsize=1_000)
def cached_operation(run_dir: str) -> str:
    """Returns the same without reading it again; a run's operation does not change."""
    return operation(run_dir)


def is_queue(run_dir: str) -> bool:
    """Returns whether the run is a Guild queue or a scheduler, or a batch of them."""
    try:
        return _is_queue(run_dir, opref(run_dir))
    except (BrokenRun, OSError):
        return False


def _is_queue(run_dir: str, reference: Any) -> bool:
    # Only queues, schedulers, batches and few other operations are builtin, so that no more is read of most runs.
    if reference.pkg_type != "builtin":
        return False
    return str(reference.to_opspec()) in _QUEUES or _is_prototype_a_queue(run_dir)


def _is_prototype_a_queue(run_dir: str) -> bool:
    try:
        return _own_operation(layout.prototype(run_dir)) in _QUEUES
    except BrokenRun as e:
        raise_if_of_home(e)
        return False


def is_batch(run_dir: str) -> bool:
    """Returns whether the run is a batch, which runs its trials itself."""
    try:
        return _is_batch(run_dir, opref(run_dir))
    except (BrokenRun, OSError):
        return False


def _is_batch(run_dir: str, reference: Any) -> bool:
    has_prototype = reference.pkg_type == "builtin" and is_folder(layout.prototype(run_dir))
    return has_prototype and not _is_search(run_dir, reference)


def is_search(run_dir: str) -> bool:
    """Returns whether the run is a search, which stages its trials for a scheduler."""
    try:
        return _is_search(run_dir, opref(run_dir))
    except BrokenRun:
        return False


def _is_search(_run_dir: str, reference: Any) -> bool:
    return reference.pkg_type == "builtin" and str(reference.to_opspec()) in OPTIMIZERS


def locked_by(run_dir: str) -> int | None:
    """Returns the pid that Guild recorded for a run that started and has not ended; raises OSError as has() does.

    Without a refresh: a pid is of this host, which has then written it itself.
    """
    try:
        pid = int(_text(layout.marker(run_dir, layout.LOCK))[:10])
    except ValueError:
        return None
    return pid if pid > 0 else None


def recorded_end(run_dir: str) -> str:
    """Returns what Guild has recorded of the run's end, as one text: another for each end. Empty if there is none.

    Times of files are no evidence of that: the clock may have been set back.
    """
    _refresh(run_dir)
    status, stopped = (_text(layout.attribute(run_dir, name)) for name in ("exit_status", "stopped"))
    return f"{status} {stopped}".strip() if status else ""


@dataclass(frozen=True)
class RecordedStart:
    """What Guild has recorded of processes of a run: another value for each process and end.

    Its text is no JSON, unlike that of records: claims have it as one field, which other versions read.
    """

    process: str
    end: str  # as recorded_end() returns it

    def as_text(self) -> str:
        return f"{self.process}/{self.end}"


def recorded_start_for_text(text: str) -> RecordedStart:
    """Returns what as_text() wrote."""
    process, _, end = text.partition("/")
    return RecordedStart(process, end)


def recorded_start(run_dir: str) -> RecordedStart:
    """Returns what Guild has recorded of the last start of the run; raises OSError as recorded_end() does."""
    end = recorded_end(run_dir)  # first: it refreshes the folders
    return RecordedStart(_text(layout.marker(run_dir, layout.LOCK)), end)


def _text(path: str) -> str:
    """Returns the beginning of a small file; empty if there is none. Raises OSError if the home cannot be read."""
    try:
        return files.content(path, _LONGEST).decode(errors="replace")[:_LONGEST_FACT].strip()
    except OSError as e:
        raise_if_of_home(e)
        return ""


def attribute_times(run_dir: str, names: Iterable[str]) -> tuple[int, ...]:
    """Returns when each of the attributes was last written, in nanoseconds; 0 for one that the run does not have."""
    return tuple(_modified(layout.attribute(run_dir, name)) for name in names)


def _modified(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
