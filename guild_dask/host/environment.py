"""The environment of a run: the user's own, without what Guild added for the scheduler's run.

Guild starts the scheduler with variables of its own (RUN_ID, FLAG_*, GUILD_OP, ...) on top of the user's. The plugin
passes on the user's values of these variables, from the process that still has them, so that they can be restored.
"""

import contextlib
import json
import os
import pathlib
import sys
from collections.abc import Mapping

# What the plugin sets for the scheduler alone: the user's values of variables that Guild sets too, and the terminal
# that Guild prints to.
COVERED = "GUILD_DASK_COVERED"
TERMINAL = "GUILD_DASK_TERMINAL"
_OURS = (COVERED, TERMINAL)

# With these, Guild prints nothing of what an operation prints.
_QUIET = ("-q", "--quiet")

# What Guild sets for each operation process. GUILD_HOME stays: it is where the scheduler's runs are.
_SET_BY_GUILD = frozenset(
    (
        "CMD_DIR",
        "FLAGS_DEST",
        "GUILD_OP",
        "GUILD_PLUGINS",
        "GUILD_SOURCECODE",
        "HANDLE_KEYBOARD_INTERRUPT",
        "LOG_LEVEL",
        "NO_RUN_OUTPUT",
        "PROJECT_DIR",
        "PYTHONPATH",
        "RUN_DIR",
        "RUN_ID",
    )
)
_FLAG_PREFIX = "FLAG_"

# What numeric libraries take for the number of threads; else they start one for each CPU of the machine.
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

# What Dask sets for workers.
_SET_BY_NANNY = frozenset(
    ("MALLOC_TRIM_THRESHOLD_", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED")
)
_DASK_INTERNAL = "DASK_INTERNAL_"


def covered(user: Mapping[str, str]) -> dict[str, str]:
    """Returns the variable that carries what the user has set under names that Guild sets too."""
    values = {name: value for name, value in user.items() if _is_set_by_guild(name)}
    # Guild resolves `${...}` in the variables of an operation; this text must come through as it is.
    return {COVERED: json.dumps(values).replace("$", "\\u0024")} if values else {}


def terminal() -> dict[str, str]:
    """Returns the variable that names the terminal to which this process prints, if it prints to one."""
    if any(argument in sys.argv for argument in _QUIET):
        return {}
    with contextlib.suppress(OSError, ValueError):
        return {TERMINAL: os.ttyname(sys.stdout.fileno())}
    return {}


def user_environment(scheduler: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of the shell in which the user started the scheduler."""
    own = {name: value for name, value in scheduler.items() if name not in _OURS and not _is_set_by_guild(name)}
    return {**own, **_read_covered(scheduler.get(COVERED))}


def job_environment(worker: Mapping[str, str], has_nanny: bool) -> dict[str, str]:
    """Returns the environment of the job that the Dask worker in this process is part of.

    A nanny, which is the worker's parent process, adds to the worker's environment. Its own is the job's, and the
    kernel keeps it as it was when the process was started.
    """
    job = (_environment_of(os.getppid()) if has_nanny else None) or worker
    added = _SET_BY_NANNY if has_nanny and job is worker else ()
    return {name: value for name, value in job.items() if name not in added and not name.startswith(_DASK_INTERNAL)}


def thread_variables(environ: Mapping[str, str], threads: int) -> dict[str, str]:
    """Returns variables that make numeric libraries start so many threads, as far as the user has not set them.

    Most of them follow OMP_NUM_THREADS where they are told nothing else, so a user who has set that has said all.
    """
    if threads < 1 or _THREADS[0] in environ:
        return {}
    return {name: str(threads) for name in _THREADS if name not in environ}


def device_variables(environ: Mapping[str, str], devices: str | None) -> dict[str, str]:
    """Returns variables that let a run see these devices and no others; None: it sees what it would see anyway.

    AMD's ROCR_VISIBLE_DEVICES is left alone: HIP's counts among what that one leaves, so one of them has to do.
    """
    if devices is None:
        return {}
    # By default CUDA counts the fastest device first, and nvidia-smi, where the numbers come from, does not.
    order = {} if "CUDA_DEVICE_ORDER" in environ else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {"CUDA_VISIBLE_DEVICES": devices, "HIP_VISIBLE_DEVICES": devices or "-1", **order}


def _environment_of(pid: int) -> dict[str, str] | None:
    try:
        data = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    pairs = (part.partition("=") for part in os.fsdecode(data).split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def _read_covered(text: str | None) -> dict[str, str]:
    try:
        values = json.loads(text or "{}")
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in values.items()} if isinstance(values, dict) else {}


def _is_set_by_guild(name: str) -> bool:
    return name in _SET_BY_GUILD or name.startswith(_FLAG_PREFIX)
