"""The value `Settings`, and how flags and configuration are combined into it.

A value that is not accepted raises BadSetting, which names the flag, the value and what is accepted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from guild_dask.plan.resources import Request
from guild_dask.settings.cluster_spec import ClusterChoice, Kind, WorkerCount
from guild_dask.settings.readers import DEFAULT_DASHBOARD, READERS, DashboardAddress

__all__ = ["BadSetting", "DashboardAddress", "Settings", "checked", "section_of", "settings_for"]

T = TypeVar("T")

# The section of Dask's configuration that has our settings.
SECTION = "guild-dask"

# The settings that each pool may have of its own, and the key of its section in dask-jobqueue's configuration.
_OF_POOLS = ("cluster", "workers", "resources")
_CONFIG_NAME = "config-name"


class BadSetting(Exception):
    """A flag or a key of the configuration has a value that is not accepted."""


@dataclass(frozen=True)
class Settings:
    """The user's settings of a scheduler."""

    cluster: ClusterChoice = field(default_factory=ClusterChoice)
    workers: WorkerCount | None = None  # None: the default of the kind of cluster, one slot for each CPU if it is local
    workers_given: bool = False  # the workers are set by a flag, not by the configuration
    resources: Request = field(default_factory=lambda: Request({}))
    gpus: tuple[str, ...] | None = None  # names of devices, or AUTO; None: GPUs are a plain amount
    filter: str | None = None  # None: all runs
    poll_interval: float = 10.0
    run_once: bool = False
    fail: bool = False  # failures of runs decide about the scheduler's exit code
    wait_for_running: bool = False
    time_limit: float | None = None  # seconds; None: no limit
    retries: int | None = None  # None: the defaults of retries.Policy
    warm: bool = True  # runs may be forked from a warm server
    preload: tuple[str, ...] = ()  # names of modules that warm servers are to load
    dashboard_address: DashboardAddress | None = DEFAULT_DASHBOARD
    dashboard_token: bool = True  # the dashboard can be read only with the token that the log prints
    loglevel: str = "warn"
    lease: float = 60.0  # seconds
    pool: str = ""  # the pool's name, if these are the settings of a pool
    config_name: str = ""  # a section of dask-jobqueue's configuration; empty: that of the queue
    pools: tuple[tuple[str, "Settings"], ...] = ()  # several clusters at once, by name
    dry_run: bool = False
    progress: str = "auto"
    notify: tuple[str, ...] = ()  # a command and its arguments


def settings_for(flags: Mapping[str, str | None], configuration: Mapping[str, Any]) -> Settings:
    """Returns the settings from flags as typed (None: not given) and our section of the configuration; flags win.

    Raises BadSetting for the first value that is not accepted.
    """
    values: dict[str, Any] = {}
    for name, read in READERS.items():
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
    """Returns the settings of each pool in the configuration; raises BadSetting."""
    if configured is None:
        return ()
    if not isinstance(configured, Mapping) or not all(isinstance(each, Mapping) for each in configured.values()):
        raise BadSetting(f"invalid value pools in Dask's configuration ({SECTION}): use NAME: {{cluster: ..., ...}}")
    return tuple((_text(name), _pool(_text(name), pool)) for name, pool in configured.items())


def _pool(name: str, configured: Mapping[str, Any]) -> Settings:
    given = {_text(key).replace("_", "-"): value for key, value in configured.items()}
    unknown = sorted(set(given) - {*_OF_POOLS, _CONFIG_NAME})
    if unknown:
        raise BadSetting(f"unknown key {unknown[0]!r} in pool {name!r}: use {', '.join((*_OF_POOLS, _CONFIG_NAME))}")
    settings = settings_for({}, {key: value for key, value in given.items() if key in _OF_POOLS})
    if settings.cluster.kind is Kind.POOLS:
        raise BadSetting(f"pool {name!r} cannot be made of pools")
    return replace(settings, pool=name, config_name=_text(given.get(_CONFIG_NAME) or ""))


def _check_together(settings: Settings) -> None:
    """Raises BadSetting for settings that are valid alone but not together."""
    kind, workers = settings.cluster.kind, settings.workers
    if settings.workers_given and workers and not settings.cluster.is_ours:
        raise BadSetting(f"workers={_count(workers)} makes no sense with an existing cluster: its workers are its own")
    if workers and workers.is_elastic and kind is not Kind.JOB_QUEUE:
        raise BadSetting(f"invalid value workers={_count(workers)}: a range is for job queues; use a whole number")
    if kind is Kind.POOLS and not settings.pools:
        raise BadSetting(f"cluster=pools needs pools in Dask's configuration ({SECTION}: pools: NAME: ...)")
    if sum(pool.cluster.kind is Kind.LOCAL for _, pool in settings.pools) > 1:
        raise BadSetting("only one pool can have cluster: local; give it the workers of all")
    address = settings.dashboard_address
    if address and not settings.dashboard_token and not address.is_local:
        raise BadSetting(
            f"dashboard-address={address.host}:{address.port} needs dashboard-token=yes: everyone who can reach it "
            "could read the flags and outputs of your runs; without a token, use a port alone"
        )
    if settings.dry_run and kind is not Kind.JOB_QUEUE:
        raise BadSetting("dry-run=yes shows what would be submitted to a job queue; use it with cluster=slurm, say")


def _count(workers: WorkerCount) -> str:
    return f"{workers.least}..{workers.most}" if workers.is_elastic else str(workers.least)


def section_of(configuration: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns our section of Dask's whole configuration, and its unknown keys.

    Dask writes keys from the environment with underscores, and keys from YAML as they are. The environment wins.
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
            if name in READERS or name == "pools":
                known[name] = value
            else:
                unknown.append(_text(key))
    return known, unknown


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):  # preload: [numpy, torch]
        return ",".join(value)
    if isinstance(value, Mapping):  # resources: {gpu: 2}
        return " ".join(f"{_text(name)}={_text(amount)}" for name, amount in value.items())
    return _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)
    except ValueError:  # an integer with more digits than Python converts
        return f"<{type(value).__name__}>"


def _shown(text: str) -> str:
    """Returns the text as typed if it is printable, or its repr."""
    return text if text.isprintable() else repr(text)


def checked(read: Callable[[str], T], name: str, text: str, where: str = "") -> T:
    """Returns the value of a flag's text; raises BadSetting, which names flag and text, if it is not accepted."""
    try:
        return read(text.strip())
    except ValueError as e:
        raise BadSetting(f"invalid value {name}={_shown(text)}{where}: {e}") from e
