"""The environment of a run: the user's own, without what Guild added for the scheduler's run.

Guild starts the scheduler with variables of its own (RUN_ID, FLAG_*, GUILD_OP, ...), which override the user's. The
plugin runs in the process that still has the user's values, and passes them on, so that they can be restored.
"""

import contextlib
import json
import os
import pathlib
import sys
from collections.abc import Mapping

# Variables that the plugin sets for the scheduler only: the user's values of variables that Guild overrides, and the
# terminal that Guild prints to.
OVERRIDDEN = "GUILD_DASK_OVERRIDDEN"
TERMINAL = "GUILD_DASK_TERMINAL"
# The pid of the Guild process that leaves Ctrl-C to the scheduler.
LEAVES_INTERRUPTS = "GUILD_DASK_LEAVES_INTERRUPTS"
_OURS = (OVERRIDDEN, TERMINAL, LEAVES_INTERRUPTS)

# With these options, Guild does not print the output of an operation.
_QUIET = ("-q", "--quiet")

# Variables that Guild sets for each operation process. GUILD_HOME is not among them: the scheduler's runs are there.
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

# Variables that set the number of threads of numeric libraries; by default they start one for each CPU of the machine.
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

# Variables that Dask's nanny sets for workers.
_SET_BY_NANNY = frozenset(
    ("MALLOC_TRIM_THRESHOLD_", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED")
)
_DASK_INTERNAL = "DASK_INTERNAL_"


def overridden_variables(user: Mapping[str, str]) -> dict[str, str]:
    """Returns the variable that passes on the user's values of variables that Guild overrides, if there are any."""
    values = {name: value for name, value in user.items() if _is_set_by_guild(name)}
    # Guild resolves `${...}` in the variables of an operation, and must not change this text.
    return {OVERRIDDEN: json.dumps(values).replace("$", "\\u0024")} if values else {}


def open_missing_streams() -> None:
    """Gives this process the null device in place of standard input and output that were closed when it was started."""
    for name, mode in (("stdin", "r"), ("stdout", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # it stays open


def terminal_variable() -> dict[str, str]:
    """Returns the variable that names the terminal to which this process prints; none if it does not print to one."""
    if any(argument in sys.argv for argument in _QUIET):
        return {}
    with contextlib.suppress(OSError, ValueError):
        return {TERMINAL: os.ttyname(sys.stdout.fileno())}
    return {}


def interrupts_variable() -> dict[str, str]:
    """Returns the variable by which a scheduler knows that this process leaves Ctrl-C to it."""
    return {LEAVES_INTERRUPTS: str(os.getpid())}


def are_interrupts_ours(environ: Mapping[str, str]) -> bool:
    """Returns whether the process that started this one leaves Ctrl-C to it."""
    return environ.get(LEAVES_INTERRUPTS) == str(os.getppid())


def user_environment(scheduler: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of the shell in which the user started the scheduler."""
    own = {name: value for name, value in scheduler.items() if name not in _OURS and not _is_set_by_guild(name)}
    return {**own, **_read_overridden(scheduler.get(OVERRIDDEN))}


def job_environment(worker: Mapping[str, str], has_nanny: bool) -> dict[str, str]:
    """Returns the environment of the job to which the Dask worker in this process belongs.

    A nanny, the worker's parent process, adds variables to the worker's environment. Its own environment is that of the
    job; the kernel keeps it as it was when the process was started.
    """
    job = (_environment_of(os.getppid()) if has_nanny else None) or worker
    added = _SET_BY_NANNY if has_nanny and job is worker else ()
    return {name: value for name, value in job.items() if name not in added and not name.startswith(_DASK_INTERNAL)}


def thread_variables(environ: Mapping[str, str], threads: int) -> dict[str, str]:
    """Returns variables that limit the threads of numeric libraries, without those that the user has set.

    Most libraries follow OMP_NUM_THREADS if their own variable is not set. If the user has set it, nothing is added.
    """
    if threads < 1 or _THREADS[0] in environ:
        return {}
    return {name: str(threads) for name in _THREADS if name not in environ}


def device_variables(environ: Mapping[str, str], devices: str | None) -> dict[str, str]:
    """Returns variables that let a run see these devices only; no variables if `devices` is None.

    AMD's ROCR_VISIBLE_DEVICES is not set: HIP_VISIBLE_DEVICES numbers the devices that the former leaves, so that both
    together would select twice.
    """
    if devices is None:
        return {}
    # By default CUDA numbers the fastest device first, unlike nvidia-smi, whose numbers we use.
    order = {} if "CUDA_DEVICE_ORDER" in environ else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {"CUDA_VISIBLE_DEVICES": devices, "HIP_VISIBLE_DEVICES": devices or "-1", **order}


def _environment_of(pid: int) -> dict[str, str] | None:
    try:
        data = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    pairs = (part.partition("=") for part in os.fsdecode(data).split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def _read_overridden(text: str | None) -> dict[str, str]:
    try:
        values = json.loads(text or "{}")
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in values.items()} if isinstance(values, dict) else {}


def _is_set_by_guild(name: str) -> bool:
    return name in _SET_BY_GUILD or name.startswith(_FLAG_PREFIX)
