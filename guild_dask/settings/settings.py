"""Flags and configuration to one frozen Settings, or to an error that names flag, value and what is accepted."""

import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from guild_dask.plan.devices import names_for_text
from guild_dask.plan.resources import AUTO, Request, definition_for_spec
from guild_dask.plan.units import ACCEPTED_DURATIONS, duration_for_text
from guild_dask.settings.cluster_spec import ClusterChoice, Kind, WorkerCount, cluster_for_text, workers_for_text

T = TypeVar("T")

SECTION = "guild-dask"

DEFAULT_DASHBOARD_PORT = 8787

_YES = ("yes", "true", "on", "1", "y")
# Guild passes `no` as an empty text where a flag has no type.
_NO = ("no", "false", "off", "0", "n", "")
_LOG_LEVELS = ("debug", "info", "warn", "error")
_LOCAL = "127.0.0.1"
_LONGEST_WAIT = 1e9  # a queue cannot wait for much longer


class BadSetting(Exception):
    """A flag or a key of the configuration has a value that is not accepted."""


@dataclass(frozen=True)
class DashboardAddress:
    """Where the dashboard listens; port 0 is any free port."""

    host: str
    port: int


@dataclass(frozen=True)
class Settings:
    """All that the user decides about a scheduler."""

    cluster: ClusterChoice = field(default_factory=ClusterChoice)
    workers: WorkerCount | None = None  # None: one for each CPU, or what suits the kind of cluster
    workers_given: bool = False  # by a flag, not by the configuration
    resources: Request = field(default_factory=lambda: Request({}))
    gpus: tuple[str, ...] | None = None  # names of devices, or AUTO; None: GPUs are an amount, if anything
    filter: str | None = None  # None: all runs
    poll_interval: float = 10.0
    run_once: bool = False
    wait_for_running: bool = False
    time_limit: float | None = None  # seconds; None: none
    retries: int | None = None  # None: as retries.Policy has it
    dashboard_address: DashboardAddress | None = DashboardAddress(_LOCAL, DEFAULT_DASHBOARD_PORT)
    loglevel: str = "warn"
    lease: float = 60.0  # seconds
    pool: str = ""  # its name, for the settings of a pool
    config_name: str = ""  # of dask-jobqueue's configuration; empty: the name of the queue
    pools: tuple[tuple[str, "Settings"], ...] = ()  # several clusters at once, by name
    dry_run: bool = False
    progress: str = "auto"
    notify: tuple[str, ...] = ()  # the words of a command


def settings_for(flags: Mapping[str, str | None], configuration: Mapping[str, Any]) -> Settings:
    """Returns the settings for flags as typed (None: not given) over the configuration's section.

    Raises BadSetting for the first value that is not accepted.
    """
    values: dict[str, Any] = {}
    for name, read in _READERS.items():
        given = flags.get(name)
        if given is not None:
            values[name.replace("-", "_")] = checked(read, name, given)
        elif configuration.get(name) is not None:
            value = _as_text(configuration[name])
            values[name.replace("-", "_")] = checked(read, name, value, f" in Dask's configuration ({SECTION})")
    pools = _pools(configuration.get("pools"))
    if pools and flags.get("cluster") is None:
        values["cluster"] = ClusterChoice(Kind.POOLS, "pools")
    settings = Settings(**values, pools=pools, workers_given=flags.get("workers") is not None)
    _check_together(settings)
    return settings


def _pools(configured: Any) -> tuple[tuple[str, Settings], ...]:
    """Returns the settings of each pool that the configuration has; raises BadSetting."""
    if configured is None:
        return ()
    if not isinstance(configured, Mapping) or not all(isinstance(each, Mapping) for each in configured.values()):
        raise BadSetting(f"invalid value pools in Dask's configuration ({SECTION}): use NAME: {{cluster: ..., ...}}")
    return tuple((_text(name), _pool(_text(name), pool)) for name, pool in configured.items())


def _pool(name: str, configured: Mapping[str, Any]) -> Settings:
    given = {_text(key).replace("_", "-"): value for key, value in configured.items()}
    unknown = sorted(set(given) - {*_OF_POOLS, "config-name"})
    if unknown:
        raise BadSetting(f"unknown key {unknown[0]!r} in pool {name!r}: use {', '.join((*_OF_POOLS, 'config-name'))}")
    settings = settings_for({}, {key: value for key, value in given.items() if key in _OF_POOLS})
    if settings.cluster.kind is Kind.POOLS:
        raise BadSetting(f"pool {name!r} cannot be made of pools")
    return replace(settings, pool=name, config_name=_text(given.get("config-name") or ""))


def _check_together(settings: Settings) -> None:
    """Raises BadSetting for settings that are fine alone and make no sense together."""
    kind, workers = settings.cluster.kind, settings.workers
    if settings.workers_given and workers and not settings.cluster.is_ours:
        raise BadSetting(f"workers={_count(workers)} makes no sense with an existing cluster: its workers are its own")
    if workers and workers.is_elastic and kind is not Kind.JOB_QUEUE:
        raise BadSetting(f"invalid value workers={_count(workers)}: a range is for job queues; use a whole number")
    if kind is Kind.POOLS and not settings.pools:
        raise BadSetting(f"cluster=pools needs pools in Dask's configuration ({SECTION}: pools: NAME: ...)")
    if sum(pool.cluster.kind is Kind.LOCAL for _, pool in settings.pools) > 1:
        raise BadSetting("only one of the pools can have cluster: local; give it all that this machine is to run")
    if settings.dry_run and kind is not Kind.JOB_QUEUE:
        raise BadSetting("dry-run=yes shows what would be submitted to a job queue; use it with cluster=slurm, say")


def _count(workers: WorkerCount) -> str:
    return f"{workers.least}..{workers.most}" if workers.is_elastic else str(workers.least)


def section_of(configuration: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns our section of Dask's whole configuration, and the keys in it that we do not know.

    Dask writes keys from the environment with underscores, and keys from YAML as they are; the environment wins.
    """
    known: dict[str, Any] = {}
    unknown = []
    for section in (SECTION, SECTION.replace("-", "_")):
        found = configuration.get(section)
        if found is not None and not isinstance(found, Mapping):
            unknown.append(_text(found))
            continue
        for key, value in (found or {}).items():
            name = _text(key).replace("_", "-")
            if name in _READERS or name == "pools":
                known[name] = value
            else:
                unknown.append(_text(key))
    return known, unknown


def flag_names() -> tuple[str, ...]:
    """Returns the names of all flags."""
    return tuple(_READERS)


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):  # resources: {gpu: 2}
        return " ".join(f"{_text(name)}={_text(amount)}" for name, amount in value.items())
    return _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)
    except ValueError:  # a number of more digits than Python writes
        return f"<{type(value).__name__}>"


def _shown(text: str) -> str:
    """Returns the text as typed, if that is one line."""
    return text if text.isprintable() else repr(text)


def checked(read: Callable[[str], T], name: str, text: str, where: str = "") -> T:
    """Returns what is read from the text of a flag; raises BadSetting, which names both, if it is not accepted."""
    try:
        return read(text.strip())
    except ValueError as e:
        raise BadSetting(f"invalid value {name}={_shown(text)}{where}: {e}") from e


def _retries(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise ValueError("use a whole number of at least 0")
    return int(text)


def _resources(text: str) -> Request:
    return definition_for_spec(text) if text else Request({})


def _gpus(text: str) -> tuple[str, ...] | None:
    if text.lower() in ("no", "false", "off", "none", ""):
        return None
    if text.lower() == AUTO:
        return (AUTO,)
    return names_for_text(text)


def _filter(text: str) -> str | None:
    return text or None  # what it means is Guild's to say


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _LONGEST_WAIT:
        raise ValueError("use a number of seconds above 0, 1e9 at most")
    return seconds


def _lease(text: str) -> float:
    seconds = _seconds(text)
    if seconds < 1:
        raise ValueError("use a number of seconds of at least 1, 1e9 at most")
    return seconds


def _time_limit(text: str) -> float | None:
    if text.lower() in _NO:
        return None
    seconds = duration_for_text(text)
    if seconds is None:
        raise ValueError(f"use {ACCEPTED_DURATIONS}; or no for none")
    return seconds


def _yes_or_no(text: str) -> bool:
    if text.lower() in _YES:
        return True
    if text.lower() in _NO:
        return False
    raise ValueError("use yes or no")


def _address(text: str) -> DashboardAddress | None:
    if text.lower() in ("no", "false", "off", ""):
        return None
    host, _, port = text.rpartition(":")
    if not re.fullmatch(r"\d{1,5}", port, re.ASCII) or int(port) > 65535 or not _is_host(host, ":" in text):
        raise ValueError("use a port (8787), an address (0.0.0.0:8787), 0 for any free port, or no for none")
    # As in Dask, ':8787' is that port on all interfaces; a port alone is on this machine only.
    return DashboardAddress(host or ("0.0.0.0" if ":" in text else _LOCAL), int(port))


def _is_host(host: str, is_address: bool) -> bool:
    return not host if not is_address else bool(re.fullmatch(r"[\w.-]*", host, re.ASCII))


def _loglevel(text: str) -> str:
    level = {"warning": "warn"}.get(text.lower(), text.lower())
    if level not in _LOG_LEVELS:
        raise ValueError(f"use one of {', '.join(_LOG_LEVELS)}")
    return level


def _command(text: str) -> tuple[str, ...]:
    try:
        if "\0" in text:
            raise ValueError("it has a zero byte")
        return tuple(shlex.split(text))
    except ValueError as e:
        raise ValueError(
            f"use a command such as 'notify-send Guild', or a script of yours ({str(e).lower()})"
        ) from None


def _progress(text: str) -> str:
    if text.lower() == "auto":
        return "auto"
    try:
        return "yes" if _yes_or_no(text) else "no"
    except ValueError:
        raise ValueError("use auto, yes or no") from None


# What a pool has of its own.
_OF_POOLS = ("cluster", "workers", "resources")

_READERS = {
    "cluster": cluster_for_text,
    "workers": workers_for_text,
    "resources": _resources,
    "gpus": _gpus,
    "filter": _filter,
    "poll-interval": _seconds,
    "run-once": _yes_or_no,
    "wait-for-running": _yes_or_no,
    "time-limit": _time_limit,
    "retries": _retries,
    "dashboard-address": _address,
    "loglevel": _loglevel,
    "lease": _lease,
    "dry-run": _yes_or_no,
    "progress": _progress,
    "notify": _command,
}
