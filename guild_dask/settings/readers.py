"""The text of each flag to its value. Pure: a reader raises ValueError, which says what is accepted, for other text."""

import ipaddress
import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from guild_dask.plan.devices import names_for_text
from guild_dask.plan.resources import AUTO, Request, definition_for_spec
from guild_dask.plan.units import ACCEPTED_DURATIONS, duration_for_text
from guild_dask.settings.cluster_spec import cluster_for_text, workers_for_text

_YES = ("yes", "true", "on", "1", "y")
# Guild passes `no` as an empty text if a flag has no type.
_NO = ("no", "none", "false", "off", "n", "0", "")
_LOG_LEVELS = ("debug", "info", "warn", "error")
_LONGEST_WAIT = 1e9  # seconds; Python's queues cannot wait for much longer


@dataclass(frozen=True)
class DashboardAddress:
    """The address on which the dashboard listens; port 0 is any free port."""

    host: str
    port: int

    @property
    def is_local(self) -> bool:
        """Returns whether only this host can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"


DEFAULT_DASHBOARD = DashboardAddress("127.0.0.1", 8787)


def is_no(text: str, is_zero_a_value: bool = False) -> bool:
    """Returns whether a text means no, or none; for some flags 0 is a value, such as the first GPU, or any port."""
    return text.lower() in _NO and not (is_zero_a_value and text == "0")


def _retries(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise ValueError("use a whole number of at least 0")
    return int(text)


def _resources(text: str) -> Request:
    return definition_for_spec(text) if text else Request({})


def _gpus(text: str) -> tuple[str, ...] | None:
    if is_no(text, is_zero_a_value=True):
        return None
    if text.lower() == AUTO:
        return (AUTO,)
    return names_for_text(text)


def _filter(text: str) -> str | None:
    return text or None  # Guild reads the expression


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
    if is_no(text):
        return None
    seconds = duration_for_text(text)
    if seconds is None:
        raise ValueError(f"use {ACCEPTED_DURATIONS}; or no for none")
    return seconds


def _yes_or_no(text: str) -> bool:
    if text.lower() in _YES:
        return True
    if is_no(text):
        return False
    raise ValueError("use yes or no")


def _modules(text: str) -> tuple[str, ...]:
    if is_no(text):
        return ()
    names = [name for name in re.split(r"[,\s]+", text) if name]
    if not all(part.isidentifier() for name in names for part in name.split(".")):
        raise ValueError("use names of modules such as numpy,sklearn.ensemble; or no for none")
    return tuple(dict.fromkeys(names))


def _address(text: str) -> DashboardAddress | None:
    if is_no(text, is_zero_a_value=True):
        return None
    host, _, port = text.rpartition(":")
    if not re.fullmatch(r"\d{1,5}", port, re.ASCII) or int(port) > 65535 or not _is_host(host, ":" in text):
        raise ValueError("use a port (8787), an address (0.0.0.0:8787), 0 for any free port, or no for none")
    # As in Dask, ':8787' is that port on all interfaces. A port alone is on this machine only.
    return DashboardAddress(host or ("0.0.0.0" if ":" in text else DEFAULT_DASHBOARD.host), int(port))


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


# The reader of each flag, by the flag's name.
READERS: Mapping[str, Callable[[str], Any]] = {
    "cluster": cluster_for_text,
    "workers": workers_for_text,
    "resources": _resources,
    "gpus": _gpus,
    "filter": _filter,
    "poll-interval": _seconds,
    "run-once": _yes_or_no,
    "fail": _yes_or_no,
    "wait-for-running": _yes_or_no,
    "time-limit": _time_limit,
    "retries": _retries,
    "warm": _yes_or_no,
    "preload": _modules,
    "dashboard-address": _address,
    "dashboard-token": _yes_or_no,
    "loglevel": _loglevel,
    "lease": _lease,
    "dry-run": _yes_or_no,
    "progress": _progress,
    "notify": _command,
}
