"""Operations that are forked from a warm server: equal to fresh processes, and ended as these are."""

import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import pytest
import yaml

from guild_dask.worker import warm_client, warm_preload
from guild_dask.worker.warm_client import WarmProcess, WarmServers
from tests.support.sandbox import Guild, Sandbox, Started, run_command, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, stage, statuses

OPERATIONS = """
facts: {main: facts, flags: {n: 1, text: plain}, flags-import: no, flags-dest: args}
fail: {main: fail}
crash: {main: crash}
interrupt: {main: interrupt}
ends: {main: ends}
nap: {main: nap}
grow: {main: grow}
loaded: {main: loaded, flags-import: no}
"""

# All that a program can see of how its process was started.
FACTS = r"""
import argparse, json, os, resource, signal, sys

modules = list(sys.modules)
caches = sorted(sys.path_importer_cache)
ticks = sum(os.times()[:4])

import atexit, ctypes, decimal, fcntl, faulthandler, gc, locale, logging, multiprocessing, random, secrets, site
import socket, tempfile, threading, time, uuid, warnings

import psutil
from children import child

arguments = argparse.ArgumentParser()
arguments.add_argument("--n", type=int)
arguments.add_argument("--text")
values = vars(arguments.parse_args())


def seen_by(method):
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    found = queue.get()
    process.join()
    return [found, process.exitcode]


def text(path):
    with open(path, "rb") as f:
        return f.read().decode(errors="surrogateescape")


def stream(each):
    buffers = [each.buffer, getattr(each.buffer, "raw", None)]
    return [each.encoding, each.errors, each.line_buffering, each.write_through, each.isatty(), each.name, each.mode,
            each.seekable(), *(type(buffer).__name__ for buffer in buffers), each.buffer.seekable(), each.buffer.name]


def status():
    lines = dict(line.split(":\t", 1) for line in text("/proc/self/status").splitlines() if ":\t" in line)
    names = ("SigBlk", "SigIgn", "SigCgt", "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "CapEff", "CapInh",
             "CapBnd", "Cpus_allowed", "Threads", "Umask", "Name", "THP_enabled")
    return {name: lines.get(name) for name in names}


def process_controls():
    # What prctl(2) tells: signal at the parent's end, dumpable, capabilities, timer slack, subreaper and others.
    libc = ctypes.CDLL(None, use_errno=True)
    value = ctypes.c_int()
    pointers = [libc.prctl(option, ctypes.byref(value), 0, 0, 0) or value.value for option in (2, 37)]
    return pointers + [libc.prctl(option, 0, 0, 0, 0) for option in (3, 7, 21, 23, 27, 30, 39)]


def seen_by_psutil():
    this = psutil.Process()
    with this.oneshot():
        return [
            this.name(), this.exe(), this.cmdline(), this.username(), this.terminal(), this.num_threads(),
            this.num_fds(), this.cwd(), this.nice(), str(this.ionice()), this.cpu_affinity(), sorted(this.environ()),
            [each.path for each in this.open_files()], len(this.net_connections()), len(this.children()), this.status(),
        ]


def has_terminal():
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
        return True
    except OSError as e:
        return [e.errno, text("/proc/self/stat").rpartition(")")[2].split()[4]]


def is_open(number):
    # libffi, which ctypes loads, may keep its own file open, with another number in a warm run.
    path = f"/proc/self/fd/{number}"
    return os.path.exists(path) and "libffi" not in os.readlink(path)


def namespaces():
    return {name: os.readlink(f"/proc/self/ns/{name}") for name in sorted(os.listdir("/proc/self/ns"))}


def main():
    here = vars(sys.modules["__main__"])
    return {
        "environ": dict(os.environ),
        "environ order": list(os.environ),
        "environ shown": sorted(text("/proc/self/environ").split("\0")),
        "command shown": text("/proc/self/cmdline"),
        "name shown": text("/proc/self/comm"),
        "status": status(),
        "path": sys.path,
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "values": values,
        "flags": str(sys.flags),
        "modules": modules,
        "warnoptions": sys.warnoptions,
        "filters": [str(each) for each in warnings.filters],
        "main": {name: str(type(each)) for name, each in here.items()},
        "main spec": [here["__name__"], str(here["__file__"]), str(here.get("__package__"))],
        "meta path": [str(type(each)) for each in sys.meta_path],
        "path hooks": [each.__name__ for each in sys.path_hooks],
        "handlers": {int(each): str(signal.getsignal(each)).split(" at 0x")[0] for each in signal.valid_signals()},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "descriptors": [each for each in range(3, 64) if is_open(each)],
        "standard input": os.readlink("/proc/self/fd/0"),
        "streams": [stream(each) for each in (sys.stdin, sys.stdout, sys.stderr)],
        "cwd": os.getcwd(),
        "limits": [resource.getrlimit(getattr(resource, each)) for each in dir(resource) if each[:7] == "RLIMIT_"],
        "nice": os.nice(0),
        "scheduling": [os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))],
        "leader": [os.getsid(0) == os.getppid(), os.getpgrp() == os.getppid()],
        "terminal": has_terminal(),
        "psutil": seen_by_psutil(),
        "controls": process_controls(),
        "namespaces": namespaces(),
        "of the kernel": {
            name: text(f"/proc/self/{name}")
            for name in ("timerslack_ns", "personality", "loginuid", "sessionid", "limits")
            if os.access(f"/proc/self/{name}", os.R_OK)
        },
        "open files": [fcntl.fcntl(each, flag) for each in (0, 1, 2) for flag in (fcntl.F_GETFL, fcntl.F_GETFD)],
        "timers": [signal.getitimer(each) for each in (signal.ITIMER_REAL, signal.ITIMER_PROF)],
        "wakeup": signal.set_wakeup_fd(-1),
        "CPU so far is small": ticks < 60,
        "importer caches": caches,
        "interpreter": [sys.executable, sys.prefix, sys.base_prefix, sys._xoptions, sys.dont_write_bytecode,
                        sys.platlibdir, sys.pycache_prefix, site.ENABLE_USER_SITE, str(sys.displayhook)],
        "main thread's ids": [threading.main_thread().native_id == os.getpid(), threading.main_thread().name,
                              threading.get_native_id() == os.getpid(), threading.stack_size()],
        "defaults": [str(decimal.getcontext()), socket.getdefaulttimeout(), logging.root.level,
                     logging.getLogger("guild").level, str(sys.get_asyncgen_hooks())],
        "out of memory": text("/proc/self/oom_score_adj"),
        "core dumps": text("/proc/self/coredump_filter"),
        "cgroup": text("/proc/self/cgroup"),
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)],
        "at exit": atexit._ncallbacks() - int(os.environ["RUN_ID"].endswith("warm")),  # one is the server's
        "fault handler": faulthandler.is_enabled(),
        "threads": [each.name for each in threading.enumerate()],
        "main thread": threading.current_thread() is threading.main_thread(),
        "locale": [locale.setlocale(locale.LC_ALL), time.tzname],
        "loggers": [str(logging.getLogger().handlers), sorted(logging.root.manager.loggerDict)],
        "recursion": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "hooks": [sys.excepthook is sys.__excepthook__, sys.gettrace(), sys.getprofile()],
        "spawn": seen_by("spawn"),
        "forkserver": seen_by("forkserver"),
    }


def at_random():
    return [
        random.random(), os.urandom(4).hex(), str(uuid.uuid4()), str(uuid.uuid1()), secrets.token_hex(8),
        next(tempfile._get_candidate_names()), multiprocessing.current_process().authkey.hex(),
    ]


if __name__ == "__main__":
    started = float(text("/proc/self/stat").rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    since = time.clock_gettime(time.CLOCK_BOOTTIME) - started
    log_age = logging.LogRecord("x", 10, "x", 1, "x", (), None).relativeCreated / 1000
    begun = {"process": time.time() - since, "log": time.time() - log_age}
    own = psutil.Process().memory_full_info().uss
    with open("facts.json", "w") as f:
        found = {"facts": main(), "random": at_random(), "begun": begun, "own": own, "hash": hash("text")}
        json.dump(found, f)
"""

# Guild runs a script as __main__ without making it that module, so what other processes are to find is beside it.
CHILDREN = """
import os, sys

def child(queue):
    main = sys.modules["__main__"]
    queue.put([sys.argv, sys.path, getattr(main, "__file__", None), os.environ.get("RUN_ID"), str(sys.flags)])
"""

FAIL = """
import traceback, sys

def inner():
    raise ValueError("as expected")

print("to stderr", file=sys.stderr)
traceback.print_stack()
inner()
"""

# Ends by a signal that the program sends itself, with a core dump where the system makes one.
CRASH = """
import os, resource
most = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (most, most))
print("before", flush=True)
os.abort()
"""

# Ends by Ctrl-C.
INTERRUPT = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)
"""

# What happens at the end of a program: callbacks, deleted objects of the program's modules, buffered files.
ENDS = """
import atexit, os, weakref
import kept

class Told:
    def __init__(self, name):
        self.name, self.write = name, os.write
    def __del__(self):
        self.write(1, f"{self.name} deleted".encode() + bytes([10]))

atexit.register(os.write, 1, b"at exit" + bytes([10]))
told = Told("object of the script")
kept.told = Told("object of a module")
kept.cycle = [Told("object in a cycle")]
kept.cycle.append(kept.cycle)
final = Told("finalized")
weakref.finalize(final, os.write, 1, b"finalizer" + bytes([10]))
kept.file = open("buffered", "w")
kept.file.write("to the end")
print("last line")
"""

# Takes more and more memory.
GROW = """
import time
taken = []
while True:
    taken.append(bytearray(b"x") * 20_000_000)
    time.sleep(0.05)
"""

# What preloaded modules look like to a run.
LOADED = """
import json, os, sys
names = ["good", "numpy", "library", "threads", "open_file", "mine"]
found = {name: name in sys.modules for name in names}
import good
import library
import numpy as np
found["variable"] = os.environ.get("GOOD")
found["spawns here"] = good.multiprocessing.process.ORIGINAL_DIR == os.getcwd()
found |= {"own": good.pid == os.getpid(), "random": np.random.rand(), "threads": len(os.listdir("/proc/self/task"))}
found["open library"] = os.readlink(f"/proc/self/fd/{library.kept}") == library.path
found["product"] = float((np.ones((64, 64)) @ np.ones((64, 64))).sum())
with open("loaded.json", "w") as f:
    json.dump(found, f)
"""

# Leaves a process of its own session behind, beside a child.
NAP = """
import os, subprocess, time
subprocess.Popen(["sleep", "3600"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "3601"])
    os._exit(0)
print("napping", flush=True)
while True:
    time.sleep(0.05)
"""


FILES = {
    "facts.py": FACTS,
    "children.py": CHILDREN,
    "fail.py": FAIL,
    "crash.py": CRASH,
    "interrupt.py": INTERRUPT,
    "ends.py": ENDS,
    "kept.py": "",
    "grow.py": GROW,
    "nap.py": NAP,
    "loaded.py": LOADED,
}


def info_of(user: Sandbox, run_id: str) -> dict[str, Any]:
    """Returns the run's attribute `dask`."""
    attribute = user.guild_home / "runs" / run_id / ".guild" / "attrs" / "dask"
    found: dict[str, Any] = (yaml.safe_load(attribute.read_text()) or {}) if attribute.exists() else {}
    return found


def start_of(user: Sandbox, run_id: str) -> str | None:
    """Returns how a run was started, as its record says."""
    return info_of(user, run_id).get("start")


def scheduler_of(guild: Guild, *flags: str) -> contextlib.AbstractContextManager[Started]:
    return guild.started(f"run dask:scheduler workers=1 {' '.join(flags)} {NO_DASHBOARD} -y")


@pytest.fixture
def scheduler(user: Sandbox, guild: Guild) -> Iterator[Started]:
    """A scheduler with one slot, and a project."""
    a_project(user, OPERATIONS, FILES)
    with scheduler_of(guild, "resources=mem=1GB") as process:
        process.wait_for_output("Waiting for staged runs")
        yield process


def cold_and_warm(user: Sandbox, guild: Guild, *operations: str) -> None:
    """Runs operations by schedulers with `warm=no` and `warm=yes`: the runs are named `facts-cold`, `facts-warm`."""
    for warm, name in (("no", "cold"), ("yes", "warm")):
        for operation in operations:
            stage(guild, operation, f"{operation}-{name}")
        guild(f"run dask:scheduler workers=1 run-once=yes warm={warm} {NO_DASHBOARD} -y")
        for operation in operations:
            assert start_of(user, f"{operation}-{name}") == name


def facts_of(user: Sandbox, run_id: str) -> dict[str, Any]:
    text = (user.guild_home / "runs" / run_id / "facts.json").read_text()
    found: dict[str, Any] = json.loads(text.replace(run_id, "RUN"))
    return found


# What a sitecustomize may do in the processes of operations.
CUSTOM = """
import os, sys

class Old:  # a finder as before Python 3.4
    find_module = lambda *_: None

if "guild.op_main" in sys.orig_argv: """
SETS_VARIABLE = f"{CUSTOM}os.environ.setdefault('MPLBACKEND', 'Agg'); sys.meta_path.insert(0, Old())\n"


@pytest.mark.every_python
@pytest.mark.parametrize("environment", ["plain", "activated", "sitecustomize"])
def test_warm_operation_cannot_tell_that_it_is_one(
    user: Sandbox, guild: Guild, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, environment: str
) -> None:
    if environment == "activated":
        # Guild then starts operations with `python`, whatever the scheduler was started with.
        monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    if environment == "sitecustomize":
        monkeypatch.setenv("PYTHONPATH", installed(tmp_path, {"sitecustomize": SETS_VARIABLE}))
    a_project(user, OPERATIONS, FILES)
    cold_and_warm(user, guild, "fail", "facts", "crash", "interrupt", "ends")
    cold, warm = (facts_of(user, f"facts-{name}") for name in ("cold", "warm"))
    different = {
        name: (cold["facts"][name], warm["facts"][name])
        for name in cold["facts"]
        if cold["facts"][name] != warm["facts"][name]
    }
    assert different == {}
    assert warm["facts"]["environ"].get("MPLBACKEND") == ("Agg" if environment == "sitecustomize" else None)
    # The process began with the run, and so did the clock of its log; the warm server began with an earlier run.
    for name, found in (("cold", cold), ("warm", warm)):
        run_dir = user.guild_home / "runs" / f"facts-{name}"
        started = int((run_dir / ".guild" / "attrs" / "started").read_text()) / 1e6
        assert started - 0.1 < min(found["begun"].values()), name
    # What is shared with the server is not the run's.
    assert warm["own"] < cold["own"]
    # Failures, crashes and the end of a program read the same.
    for operation, text, code in (
        ("fail", "ValueError: as expected", 1),
        ("crash", "before", -signal.SIGABRT),
        ("interrupt", "", 0),  # Guild's way to end it
        ("ends", "object of a module deleted", 0),
    ):
        runs = [f"{operation}-{name}" for name in ("cold", "warm")]
        outputs = {guild(f"cat --output {run_id}").output.replace(run_id, "RUN") for run_id in runs}
        assert len(outputs) == 1
        assert text in outputs.pop()
        attributes = [user.guild_home / "runs" / each / ".guild" / "attrs" for each in runs]
        assert [int((each / "exit_status").read_text()) for each in attributes] == [code, code]
    # There is a core dump for both, where the system leaves one in the directory.
    cores = [len(list((user.guild_home / "runs" / f"crash-{name}").glob("core*"))) for name in ("cold", "warm")]
    assert cores[0] == cores[1]
    assert {(user.guild_home / "runs" / f"ends-{name}" / "buffered").read_text() for name in ("cold", "warm")} == {
        "to the end"
    }


def test_warm_operations_share_no_random_numbers(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS, FILES)
    stage(guild, "facts", "aaa", "bbb")
    guild(f"run dask:scheduler workers=1 run-once=yes {NO_DASHBOARD} -y")
    one, other = facts_of(user, "aaa"), facts_of(user, "bbb")
    assert [start_of(user, each) for each in ("aaa", "bbb")] == ["warm", "warm"]
    assert not set(one["random"]) & set(other["random"])
    # Python cannot change the seed of hashes after its start (docs/reference.md).
    assert one["hash"] == other["hash"]


def napping(user: Sandbox, guild: Guild, run_id: str) -> list[psutil.Process]:
    """Starts a warm run that naps, and returns its processes: the operation first."""
    stage(guild, "nap", run_id)
    lock = user.guild_home / "runs" / run_id / ".guild" / "LOCK"
    wait_until(lambda: lock.exists() and lock.read_text() and start_of(user, run_id) == "warm")
    operation = psutil.Process(int(lock.read_text()))
    wait_until(lambda: len(_sleeping(user)) == 2, describe=lambda: _sleeping(user))
    return [operation, *_sleeping(user)]


def _sleeping(user: Sandbox) -> list[psutil.Process]:
    return [each for each in user.processes() if _is_alive(each) and each.cmdline()[0] == "sleep"]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.cmdline())
    except psutil.Error:
        return False


def _is_warm_server(process: psutil.Process) -> bool:
    try:
        command = process.cmdline()
    except psutil.Error:
        return False  # it has just ended
    return "guild.op_main" in command and len(command) == 3


def assert_ended(user: Sandbox, run_id: str, processes: list[psutil.Process]) -> None:
    wait_until(lambda: statuses(user)[run_id] == "terminated", describe=lambda: statuses(user))
    wait_until(lambda: not any(map(_is_alive, processes)), describe=lambda: processes)


def _starter(user: Sandbox, run_id: str) -> psutil.Process:
    claim = json.loads((user.guild_home / "dask" / "claims" / f"{run_id}.started").read_text())
    return psutil.Process(claim["owner"]["pid"])


def test_warm_run_ends_with_all_its_processes_whatever_is_killed(
    user: Sandbox, guild: Guild, scheduler: Started
) -> None:
    stopped = napping(user, guild, "stopped")
    guild("stop stopped -y")
    assert_ended(user, "stopped", stopped)

    killed = napping(user, guild, "killed")
    killed[0].kill()
    assert_ended(user, "killed", killed)
    scheduler.wait_for_output("killed by signal 9")

    orphaned = napping(user, guild, "orphaned")
    _starter(user, "orphaned").kill()
    assert_ended(user, "orphaned", orphaned)

    lost = napping(user, guild, "lost")
    supervisor = lost[0].parent()
    assert supervisor
    assert "supervisor" in supervisor.cmdline()[0]
    supervisor.kill()
    assert_ended(user, "lost", lost)

    stage(guild, "nap", "limited", options="--tag dask-time:1s")
    wait_until(lambda: statuses(user)["limited"] == "terminated", describe=lambda: statuses(user))
    assert start_of(user, "limited") == "warm"

    stage(guild, "grow", "large", options="--tag dask:mem=200MB")
    wait_until(lambda: statuses(user)["large"] == "terminated", describe=lambda: statuses(user))
    assert start_of(user, "large") == "warm"
    ended = wait_until(lambda: info_of(user, "large").get("ended"), describe=lambda: info_of(user, "large"))
    assert ended in ("memory-limit", "out-of-memory")  # by us, or by the kernel

    last = napping(user, guild, "last")
    scheduler.signal(signal.SIGTERM)
    scheduler.wait()
    assert_ended(user, "last", last)


def test_run_that_outlives_its_scheduler_is_not_started_again(user: Sandbox, guild: Guild, scheduler: Started) -> None:
    processes = napping(user, guild, "nap")
    scheduler.kill()
    with guild.started(f"run dask:scheduler workers=1 {NO_DASHBOARD} -y") as other:
        other.wait_for_output("Waiting for staged runs")
        assert statuses(user)["nap"] == "running"
        assert all(map(_is_alive, processes))
        guild("stop nap -y")
        assert_ended(user, "nap", processes)


def test_project_that_shadows_a_loaded_module_starts_fresh(user: Sandbox, guild: Guild, scheduler: Started) -> None:
    project = pathlib.Path(os.getcwd())
    (project / "click").mkdir()
    stage(guild, "fail", "folder")  # which is no package
    (project / "click" / "__init__.py").write_text("")
    stage(guild, "fail", "package")
    (project / "click" / "__init__.py").unlink()
    (project / "yaml.py").write_text("def safe_load(_): pass\n")
    stage(guild, "fail", "module")
    runs = ("folder", "package", "module")
    wait_until(lambda: all(statuses(user)[each] == "error" for each in runs), describe=lambda: statuses(user))
    assert [start_of(user, each) for each in runs] == ["warm", "cold", "cold"]


@pytest.mark.parametrize(
    "custom",
    [
        "kept = open(__file__)\n",  # a handler of the module logging, say; a forked operation would find it closed
        f"{CUSTOM}os.environ['HOME'] = os.getcwd()\n",  # each run's own
        f"{CUSTOM}del os.environ['USER_DATA']\n",
        f"{CUSTOM}print('Hello')\n",
        f"{CUSTOM}os.environ['USER_CACHE'] = os.path.join(os.getcwd(), 'cache')\n",  # in each run's own directory
    ],
)
def test_environment_that_a_forked_operation_would_find_changed_starts_fresh(
    user: Sandbox, guild: Guild, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, custom: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", installed(tmp_path, {"sitecustomize": custom}))
    monkeypatch.setenv("USER_DATA", "here")
    a_project(user, OPERATIONS, FILES)
    stage(guild, "fail", "aaa")
    guild(f"run dask:scheduler workers=1 run-once=yes {NO_DASHBOARD} -y")
    assert (statuses(user)["aaa"], start_of(user, "aaa")) == ("error", "cold")
    assert guild("cat --output aaa").output.startswith("Hello\n" if "Hello" in custom else "to stderr\n")


def test_warm_starts_can_be_switched_off(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS, FILES)
    stage(guild, "fail", "aaa", "bbb")
    guild(f"run dask:scheduler workers=1 run-once=yes warm=no {NO_DASHBOARD} -y")
    assert [start_of(user, each) for each in ("aaa", "bbb")] == ["cold"] * 2


# Modules that are to be preloaded; all but the last are installed.
GOOD = "import multiprocessing.process, os\npid = os.getpid()\nos.environ.setdefault('GOOD', 'yes')\n"
THREADS = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
OPEN_FILE = "kept = open(__file__)\n"
CHILD = "import subprocess\nprocess = subprocess.Popen(['sleep', '1'])\n"
EXITS = "import os\nos._exit(3)\n"
CHANGES = "import os\nos.environ['HOME'] += '/below'\n"
FAILS = "raise ValueError('as\\nexpected')\n"
# As libffi does where it is built so.
LIBRARY = "import os, _ctypes\npath = os.path.realpath(_ctypes.__file__)\nkept = os.open(path, os.O_RDONLY)\n"
# As torch does: its class has a file's name. Another module answers no question.
NAMESPACES = """
import sys, types

class Operators(types.ModuleType):
    __file__ = "_ops.py"

class Closed(types.ModuleType):
    def __getattribute__(self, name):
        raise RuntimeError(name)

sys.modules[__name__ + ".ops"], sys.modules[__name__ + ".closed"] = Operators("ops"), Closed("closed")
"""
PRELOADED = {
    "good": GOOD,
    "namespaces": NAMESPACES,
    "library": LIBRARY,
    "threads": THREADS,
    "open_file": OPEN_FILE,
    "child": CHILD,
    "exits": EXITS,
    "changes": CHANGES,
    "fails": FAILS,
}


def installed(folder: pathlib.Path, modules: Mapping[str, str]) -> str:
    """Returns the folder of installed packages with these modules."""
    packages = folder / "site-packages"
    packages.mkdir()
    for name, text in modules.items():
        (packages / f"{name}.py").write_text(text)
    return str(packages)


def test_module_that_operations_must_not_share_is_not_preloaded(tmp_path: pathlib.Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "mine.py").write_text("")
    path = [installed(tmp_path, PRELOADED), str(project)]
    names = [*PRELOADED, "mine", "missing", "numpy"]
    code = (
        f"import json, sys; sys.path += {path}; from guild_dask.worker import warm_preload as w; "
        f"print(json.dumps([w.load({names}), sorted(set({names}) & set(sys.modules)), w.threads_left()]))"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
    refused, loaded, threads = json.loads(printed)
    assert refused == {
        "threads": "it starts threads when it is imported",
        "open_file": f"it leaves a file open when it is imported: {path[0]}/open_file.py",
        "child": "it starts processes when it is imported",
        "exits": "the process that imports it dies",
        "changes": "it changes the variable HOME when it is imported",
        "fails": "it cannot be imported: ValueError: as expected",
        "mine": f"it is not installed, but part of a project, which belongs to each run: {project}/mine.py",
        "missing": "it cannot be imported: ModuleNotFoundError: No module named 'missing'",
    }
    assert (loaded, threads) == (["good", "library", "namespaces", "numpy"], [])


NEVER = "import threading\nthreading.Event().wait()\n"


def test_module_whose_import_does_not_end_is_left_out(tmp_path: pathlib.Path) -> None:
    path = installed(tmp_path, {"never": NEVER, "good": GOOD})
    code = (
        f"import json, sys; sys.path.append({path!r}); from guild_dask.worker import warm_preload as w; "
        "print(json.dumps([w.load(['never', 'good'], patience=3), 'never' in sys.modules, 'good' in sys.modules]))"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert json.loads(printed) == [{"never": "its import takes longer than 3 s"}, False, True]


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a forkserver reaps its children, and exits at its end
def test_runs_do_not_wait_again_for_a_warm_server_that_does_not_get_ready(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", installed(tmp_path, {"never": NEVER}))
    warm = WarmServers(preload_patience=1.0)
    arguments = [sys.executable, "-um", "guild.op_main"]
    others = set(psutil.Process().children())

    def reported() -> list[str]:
        return warm.await_server(arguments, dict(os.environ), ["never"])

    with contextlib.closing(warm), _served(warm):
        assert reported() == ["never: not loaded within 1 s"]
        (server,) = set(psutil.Process().children()) - others
        wait_until(lambda: reported() == [])  # the forkserver began to count later
        assert warm.forked(arguments, dict(os.environ), str(tmp_path), (), ["never"]) is None
    wait_until(lambda: not _is_alive(server))
    server.wait()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a forkserver reaps its children, and exits at its end
def test_warm_server_that_gets_ready_late_is_used_from_then_on(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a network file system that is busy for a while: runs do not wait for its end.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    os.mkfifo(tmp_path / "go")
    monkeypatch.setenv("PYTHONPATH", installed(tmp_path, {"sitecustomize": f"open({str(tmp_path / 'go')!r}).close()"}))
    warm = WarmServers(patience=1.0)
    arguments = [sys.executable, "-um", "guild.op_main", "done"]
    with contextlib.closing(warm), open(os.devnull, "r+b") as null:

        def forked() -> WarmProcess | None:
            return warm.forked(arguments, dict(os.environ), str(tmp_path), [null.fileno()] * 3)

        with _served(warm):
            assert warm.await_server(arguments, dict(os.environ), []) == ["guild: not loaded within 1 s"]
            assert forked() is None
            # Python would import modules from this folder.
            (folder,) = tmp_path.glob("warm-*")
            assert (folder.stat().st_mode & 0o777, list(folder.iterdir())) == (0o700, [])
            (tmp_path / "go").open("w").close()
            wait_until(lambda: warm.await_server(arguments, dict(os.environ), []) == [] and forked())
            assert not folder.exists()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the server's two owners are one process here
def test_warm_operation_is_reaped_when_its_starter_has_taken_in_its_end(tmp_path: pathlib.Path) -> None:
    # `guild stop` waits until it is reaped, and only until then can be seen that the user stopped it.
    (tmp_path / "done.py").write_text("")
    warm = WarmServers()
    arguments = [sys.executable, "-um", "guild.op_main", "done"]
    with contextlib.closing(warm), open(os.devnull, "r+b") as null, _served(warm):
        warm.await_server(arguments, dict(os.environ), [])
        process = warm.forked(arguments, dict(os.environ), str(tmp_path), [null.fileno()] * 3)
        assert process
        process.begin()
        assert process.wait() is not None
        assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
        process.release()
        wait_until(lambda: not psutil.pid_exists(process.pid))
        process.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a forkserver reaps its children, and exits at its end
def test_run_with_an_archive_of_modules_starts_fresh(tmp_path: pathlib.Path) -> None:
    # What it has is not listed.
    (tmp_path / "folder").mkdir()
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("yaml.py", "")
    warm = WarmServers()
    arguments = [sys.executable, "-um", "guild.op_main", "done"]
    with contextlib.closing(warm), open(os.devnull, "r+b") as null, _served(warm):
        for path, is_warm in (("folder", True), ("archive.zip", False)):
            environ = os.environ | {"PYTHONPATH": path}
            warm.await_server(arguments, environ, [])
            found = warm.forked(arguments, environ, str(tmp_path), [null.fileno()] * 3)
            assert bool(found) == is_warm


@contextlib.contextmanager
def _served(warm: WarmServers) -> Iterator[None]:
    """Does what a forkserver does, in a thread."""
    is_over = threading.Event()
    serving = threading.Thread(target=_handle, args=[warm, is_over])
    serving.start()
    try:
        yield
    finally:
        is_over.set()
        serving.join()


def _handle(warm: WarmServers, is_over: threading.Event) -> None:
    while not is_over.is_set():
        for each in select.select(warm.watched, [], [], 0.1)[0]:
            warm.handle(each)


@pytest.mark.parametrize("path", ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/kfd", "/dev/dri/card0"])
def test_open_device_is_a_gpu(path: str) -> None:
    assert warm_preload.has_gpu(["/dev/null", path])
    assert not warm_preload.has_gpu(["/dev/null", "/usr/lib/libnvidia-ml.so.1"])


def test_runs_find_preloaded_modules(
    user: Sandbox, guild: Guild, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", installed(tmp_path, PRELOADED))
    a_project(user, OPERATIONS, FILES)
    stage(guild, "loaded", "aaa", "bbb")
    flags = f"workers=1 run-once=yes preload=good,threads,library,numpy {NO_DASHBOARD}"
    log = guild(f"run dask:scheduler {flags} -y").output
    assert log.count("threads: it starts threads when it is imported") == 1
    one, other = (json.loads((user.guild_home / "runs" / each / "loaded.json").read_text()) for each in ("aaa", "bbb"))
    assert one.pop("random") != other.pop("random")
    expected = {
        "good": True,
        "numpy": True,
        "library": True,
        "open library": True,
        "threads": 1,
        "open_file": False,
        "mine": False,
        "own": False,
        "variable": "yes",
        "spawns here": True,
    }
    assert one == other == {**expected, "product": 64.0**3}
    info = info_of(user, "bbb")
    assert (info["start"], info["not_preloaded"]) == ("warm", "threads")
    assert 0 < info["start_seconds"] < info["preload_seconds"]
    # The report says what that saved.
    assert "loaded: 2 of 2 started warm, in " in run_command("guild-dask report", user.environ, user.folder).output


def test_run_is_stopped_while_it_waits_for_modules_to_load(
    user: Sandbox, guild: Guild, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = f"open({str(tmp_path / 'loading')!r}, 'w').close()\n{NEVER}"
    monkeypatch.setenv("PYTHONPATH", installed(tmp_path, {"never": never}))
    a_project(user, OPERATIONS, FILES)
    stage(guild, "fail", "aaa")
    with scheduler_of(guild, "preload=never") as process:
        wait_until((tmp_path / "loading").exists, describe=process.so_far)
        process.signal(signal.SIGTERM)
        process.wait()  # for Guild; the scheduler's own process may take a moment longer
        wait_until(lambda: statuses(user)["aaa"] == "staged", describe=lambda: statuses(user))


def test_killed_warm_server_is_started_again(user: Sandbox, guild: Guild, scheduler: Started) -> None:
    stage(guild, "fail", "aaa")
    wait_until(lambda: start_of(user, "aaa") == "warm", describe=scheduler.so_far)
    (server,) = filter(_is_warm_server, user.processes())
    server.kill()
    wait_until(lambda: not _is_alive(server))
    stage(guild, "fail", "bbb")
    wait_until(lambda: start_of(user, "bbb") == "warm", describe=scheduler.so_far)


PYTHON = "/venv/bin/python"
COMMAND = [PYTHON, "-um", "guild.op_main", "train", "--lr", "1"]
ENVIRON = {"RUN_ID": "aaa", "FLAG_LR": "1", "PYTHONPATH": ".:/site", "GUILD_PLUGINS": "cpu", "FOO": "1"}


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        (["/other/python", *COMMAND[1:]], {}),
        ([PYTHON, "-u", "train.py"], {}),
        (["sh", "-c", "true"], {}),
        (COMMAND, {"PROFILE": "1"}),
        (COMMAND, {"PDB_BREAKS": "10"}),
        (COMMAND, {"PYTHONHASHSEED": "random"}),
        (COMMAND, {"COVERAGE_PROCESS_START": "coveragerc"}),
        (COMMAND, {"PYTHONPATH": "../shared:/site"}),  # beside the run's directory
        (COMMAND, {"PYTHONPATH": "lib/../.."}),
    ],
)
def test_other_commands_start_fresh(command: list[str], environ: dict[str, str]) -> None:
    assert warm_client.kind_for(command, ENVIRON | environ, PYTHON) is None


def test_interpreter_of_the_environment_may_have_another_name(tmp_path: pathlib.Path) -> None:
    for folder in ("venv", "other"):
        (tmp_path / folder).mkdir()
        for name in ("python", "python3"):
            (tmp_path / folder / name).symlink_to(sys.executable)
    (tmp_path / "link").symlink_to(tmp_path / "venv")
    (tmp_path / "venv" / "pypy").touch()
    scheduler = str(tmp_path / "venv" / "python3")

    def python_of(path: str) -> str | None:
        kind = warm_client.kind_for([str(tmp_path / path), *COMMAND[1:]], ENVIRON, scheduler)
        return kind.python if kind else None

    for path in ("venv/python3", "venv/python", "link/python"):
        assert python_of(path) == str(tmp_path / path)  # the server is started with it: `sys.executable` is the same
    for path in ("other/python3", "venv/pypy", "venv/missing"):
        assert python_of(path) is None


@pytest.mark.parametrize(
    ("main", "environ", "folders"),
    [
        ("train", {}, ["", "."]),
        ("src/train", {}, ["", ".", "src", "./src", "/site/src"]),  # which Guild puts before installed packages
        ("train", {"SCRIPT_DIR": "/project"}, ["", ".", "/project"]),
    ],
)
def test_modules_of_a_run_are_looked_for_where_it_imports_them(
    main: str, environ: dict[str, str], folders: list[str]
) -> None:
    command = [*COMMAND[:3], main, *COMMAND[4:]]
    assert warm_client.folders_of_run(command, ENVIRON | environ) == folders


@pytest.mark.parametrize(
    "changed", [{"PYTHONHASHSEED": "0"}, {"LD_PRELOAD": "x"}, {"GUILD_PLUGINS": "cpu,gpu"}, {"LANG": "C"}]
)
def test_what_python_reads_at_its_start_makes_another_kind(changed: dict[str, str]) -> None:
    assert warm_client.kind_for(COMMAND, ENVIRON | changed, PYTHON) != warm_client.kind_for(COMMAND, ENVIRON, PYTHON)


@pytest.mark.parametrize("changed", [{"RUN_ID": "bbb"}, {"FLAG_LR": "2"}, {"FOO": "2"}, {"CUDA_VISIBLE_DEVICES": "1"}])
def test_what_differs_between_runs_does_not(changed: dict[str, str]) -> None:
    assert warm_client.kind_for(COMMAND, ENVIRON | changed, PYTHON) == warm_client.kind_for(COMMAND, ENVIRON, PYTHON)
