"""Which operations may be forked from which warm server."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

# How Guild starts an operation that is a Python module or script.
_COMMAND = ("-um", "guild.op_main")

# Variables that Python, the linker, the C library, or the modules that a warm server loads, read at their start.
_READ_EARLY = ("PYTHON", "LD_", "LC_", "MALLOC_", "GUILD_", "LOG_", "NO_")
_READ_EARLY_BY_NAME = frozenset(("GLIBC_TUNABLES", "HOME", "LANG", "LANGUAGE", "PATH", "SHELL", "VIRTUAL_ENV"))

# Variables that differ between runs of one operation.
_OF_RUNS = frozenset((
    "CMD_DIR", "FLAGS_DEST", "GUILD_DASK_ATTEMPT", "GUILD_OP", "GUILD_SOURCECODE", "PROJECT_DIR", "PWD", "RUN_DIR",
    "RUN_ID", "SCRIPT_DIR",
))  # fmt: skip
_FLAG = "FLAG_"

# The devices of a run. Modules read them when they first use a device; one that uses a device when it is imported is
# not preloaded.
_DEVICES = frozenset(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"))

# Variables that ask for a profiler, a debugger, or another measurement from the first instruction on.
_OBSERVED_BY = (
    "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG", "COV_CORE_SOURCE", "PDB_BREAKS", "PROFILE", "PYTHONDEVMODE",
    "PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME", "PYTHONTRACEMALLOC", "PYTHONVERBOSE",
)  # fmt: skip

# Modules that Python imports at its start, if they are there.
_CUSTOM = frozenset(("sitecustomize", "usercustomize"))


@dataclass(frozen=True)
class Kind:
    """All that the process of an operation depends on before the user's code begins, beside its run."""

    python: str
    environ: tuple[tuple[str, str], ...]
    preload: tuple[str, ...] = ()  # modules of the user's choice that its server has loaded, too


def kind_for(
    arguments: Sequence[str], environ: Mapping[str, str], python: str, preload: Sequence[str] = ()
) -> Kind | None:
    """Returns the kind of an operation's process, or None if it must be started as a fresh one."""
    if tuple(arguments[1:3]) != _COMMAND or arguments[0] != python or any(environ.get(name) for name in _OBSERVED_BY):
        return None
    if any(os.path.normpath(each).startswith(os.pardir) for each in _entries(environ)):
        return None  # a folder beside the run's directory, which a server has in another place
    if environ.get("PYTHONHASHSEED") == "random":
        return None  # the user wants another seed for each process
    # A preloaded module may have read any variable when it was imported.
    given = {name: value for name, value in variables_for_server(environ).items() if preload or _is_read_early(name)}
    return Kind(python, tuple(sorted(given.items())), tuple(preload))


def _is_read_early(name: str) -> bool:
    return name.startswith(_READ_EARLY) or name in _READ_EARLY_BY_NAME


def variables_for_server(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a warm server, given that of an operation: without what belongs to one run."""
    left_out = _OF_RUNS | _DEVICES
    return {name: value for name, value in environ.items() if name not in left_out and not name.startswith(_FLAG)}


def folders_of_run(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Returns the folders from which a run imports modules, and its server does not; they may be relative to the run's.

    Guild puts the folder of a main module such as `src/train`, and SCRIPT_DIR, before those of installed packages.
    """
    entries = ["", *_entries(environ)]
    package = arguments[3].rpartition("/")[0] if len(arguments) > 3 else ""
    of_main = [os.path.join(each, package) for each in entries] if package else []
    of_script = [environ["SCRIPT_DIR"]] if environ.get("SCRIPT_DIR") else []
    return [*(each for each in entries if not os.path.isabs(each)), *of_main, *of_script]


def _entries(environ: Mapping[str, str]) -> list[str]:
    return [each for each in environ.get("PYTHONPATH", "").split(os.pathsep) if each]


def shadows(names: Collection[str], loaded: Collection[str]) -> list[str]:
    """Returns the files and folders that would be imported instead of a module that the server has loaded.

    A folder counts only if it is a package; the caller checks that.
    """
    taken = {*loaded, *_CUSTOM}
    return [name for name in names if _is_module(name) and _module(name) in taken]


def _is_module(name: str) -> bool:
    return "." not in name or name.endswith((".py", ".pyc", ".so"))


def _module(name: str) -> str:
    return name.partition(".")[0]
