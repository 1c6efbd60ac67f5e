"""What Guild recorded about the operation of a staged run, in its attribute `op`. Pure.

The format is guildai's own. Data in another format is ignored, and never raises.
"""

from typing import Any


def needs(op: Any) -> tuple[str, ...]:
    """Returns the runs that the operation's dependencies on other operations name."""
    runs: list[str] = []
    for dependency in _list(_get(op, "deps")):
        if any("operation" in source for source in _list(_get(dependency, "sources")) if isinstance(source, dict)):
            config = _get(dependency, "config")
            for value in config.values() if isinstance(config, dict) else ():
                runs += [part for part in (value if isinstance(value, list) else [value]) if isinstance(part, str)]
    return tuple(runs)


def gpus(op: Any) -> tuple[str, ...] | None:
    """Returns the devices that the user gave the run with --gpus, or none for --no-gpus; None if neither was given."""
    visible = _get(_get(_get(op, "op-cmd"), "cmd-env"), "CUDA_VISIBLE_DEVICES")
    if not isinstance(visible, (str, int)) or isinstance(visible, bool):
        return None
    return tuple(dict.fromkeys(part.strip() for part in str(visible).split(",") if part.strip()))


def _get(data: Any, name: str) -> Any:
    return data.get(name) if isinstance(data, dict) else None


def _list(data: Any) -> list[Any]:
    return data if isinstance(data, list) else []
