"""Imports modules of the user's choice in a warm server, and finds those that operations must not share.

As warm_server.py, this file is executed under a name that is not in sys.modules. It imports nothing that Guild has not
imported itself before the user's code begins.
"""

import importlib
import os
import select
import signal
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

# A process that opens one of these uses a GPU, and cannot hand it on to a forked process.
_GPUS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")

# Folders of installed packages. What is imported from another folder belongs to a project.
_INSTALLED = frozenset(("site-packages", "dist-packages"))

# Threads that a library ends, and starts again if needed, in a forked process by itself: jemalloc's, in pyarrow.
_OUTLIVED = frozenset(("jemalloc_bg_thd",))

# What a process reports that has imported a module, if operations may share it; else it reports why not.
_GOOD = "+"
_LONGEST = 500

# Seconds for the import of one module. On a busy network file system a large one takes minutes.
_PATIENCE = 240.0

# Seconds for a thread that has ended to vanish from the kernel's list.
_TIME_TO_VANISH = 1.0
_INTERVAL = 0.01


def load(names: Iterable[str], lifeline: int | None = None, patience: float = _PATIENCE) -> dict[str, str]:
    """Imports modules one after the other; returns those that operations must not share, each with the reason.

    What came with such a module must not stay. So each is imported in a forked process, and if operations may share it,
    that process goes on from here, and this one exits. When the other end of the lifeline is closed, no starter waits
    for the modules any more, and both end.
    """
    problems = {name: _problem_in_fork(name, lifeline, patience) for name in names}
    return {name: problem for name, problem in problems.items() if problem}


def _problem_in_fork(name: str, lifeline: int | None, patience: float) -> str:
    """Returns the problem in this process; in the fork that imported the module, an empty text."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        problem = _problem_with(name)
        os.write(writing, (problem or _GOOD).encode(errors="replace")[:_LONGEST])
        if problem:
            os._exit(1)
        os.close(writing)
        return ""
    os.close(writing)
    ready = select.select([reading] if lifeline is None else [reading, lifeline], [], [], patience)[0]
    if reading not in ready:
        os.kill(pid, signal.SIGKILL)
    if lifeline in ready:
        os._exit(1)
    with open(reading, "rb") as f:
        problem = f.read().decode(errors="replace") if ready else f"its import takes longer than {patience:g} s"
    if problem == _GOOD:
        os._exit(0)
    os.waitpid(pid, 0)
    return problem or "the process that imports it dies"


def _problem_with(name: str) -> str:
    """Imports a module, and returns why operations must not share it; empty if they may."""
    before = _State(set(sys.modules), set(_descriptors()), dict(os.environ))
    try:
        importlib.import_module(name)
    except BaseException as e:  # noqa: BLE001  # a module may even exit
        return " ".join(f"it cannot be imported: {type(e).__name__}: {e}".split())
    return next(_problems_since(before), "")


class _State(NamedTuple):
    """What a process has that the import of a module may change."""

    modules: Collection[str]
    descriptors: Collection[str]
    variables: Mapping[str, str]


def _problems_since(before: _State) -> Iterator[str]:
    """Yields what keeps operations from sharing the modules that this process has imported since then."""
    mapped = _mapped()
    # libffi may keep its own file open, which is mapped, too (see warm_server.py).
    files = {n: path for n, path in _descriptors().items() if n not in before.descriptors and path not in mapped}
    if has_gpu([*files.values(), *mapped]):
        yield "it opens a GPU when it is imported"
    foreign = _foreign({each: sys.modules.get(each) for each in set(sys.modules).difference(before.modules)})
    if foreign:
        yield f"it is not installed, but part of a project, which belongs to each run: {foreign}"
    if threads_left():
        yield "it starts threads when it is imported"
    if files:
        yield f"it leaves a file open when it is imported: {min(files.values())}"
    # Runs may have other values, and what the module would have made of these.
    for name in sorted(name for name, value in before.variables.items() if os.environ.get(name) != value):
        yield f"it changes the variable {name} when it is imported"
    if _has_children():
        yield "it starts processes when it is imported"


def has_gpu(paths: Iterable[str]) -> bool:
    """Returns whether a GPU is among the files that a process has open, or mapped."""
    return any(path.startswith(_GPUS) for path in paths)


def threads_left() -> list[str]:
    """Returns the names of the threads that this process has, beside its own, after a fork.

    OpenBLAS, in NumPy and SciPy, starts threads when it is imported. It ends them at a fork, and starts them again
    where they are needed.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    names = _threads()
    waited = 0.0
    while names and waited < _TIME_TO_VANISH:
        threading.Event().wait(_INTERVAL)
        waited += _INTERVAL
        names = _threads()
    return names


def _threads() -> list[str]:
    found = []
    for each in os.listdir("/proc/self/task"):
        if each != str(os.getpid()):
            try:
                with open(f"/proc/self/task/{each}/comm", encoding="utf-8", errors="replace") as f:
                    found.append(f.read().strip())
            except OSError:
                continue  # it has just ended
    return [name for name in found if name not in _OUTLIVED]


def _descriptors() -> dict[str, str]:
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # that of the listing itself
    return found


def _mapped() -> Collection[str]:
    """Returns the files that this process has mapped into its memory."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as f:
        return {line[line.index("/") :].strip() for line in f if "/" in line}


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _foreign(modules: dict[str, Any]) -> str:
    """Returns the file of a module that is neither installed nor Python's own; empty if there is none."""
    library = os.path.dirname(os.__file__) + os.sep
    for _, module in sorted(modules.items()):
        path = _file_of(module)
        if os.path.isabs(path) and not path.startswith(library) and not _is_installed(path.split(os.sep)):
            return path
    return ""


def _file_of(module: Any) -> str:
    """Returns the path of a module's file; empty or relative if what is called a module has none, as `torch.ops`."""
    try:
        path = module.__file__
    except Exception:  # noqa: BLE001  # it computes its attributes
        return ""
    return path if isinstance(path, str) else ""


def _is_installed(parts: Collection[str]) -> bool:
    return not _INSTALLED.isdisjoint(parts)
