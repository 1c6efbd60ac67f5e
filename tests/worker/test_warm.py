"""Operations that are forked from a warm server: equal to fresh processes, and ended as these are."""

import json
import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import yaml

from guild_dask.worker import warm_kind
from tests.support.sandbox import Guild, Sandbox, Started, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, stage, statuses

OPERATIONS = """
facts: {main: facts, flags: {n: 1, text: plain}, flags-import: no, flags-dest: args}
fail: {main: fail}
nap: {main: nap}
"""

# All that a program can see of how its process was started.
FACTS = r"""
import argparse, json, os, resource, signal, sys

modules = list(sys.modules)

import atexit, faulthandler, gc, locale, logging, random, tempfile, threading, time, uuid, warnings
import multiprocessing
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
    return [each.encoding, each.errors, each.line_buffering, each.write_through, each.isatty(), each.name, each.mode]


def status():
    lines = dict(line.split(":\t", 1) for line in text("/proc/self/status").splitlines() if ":\t" in line)
    names = ("SigBlk", "SigIgn", "SigCgt", "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "CapEff", "CapInh",
             "CapBnd", "Cpus_allowed", "Threads", "Umask", "Name", "THP_enabled")
    return {name: lines.get(name) for name in names}


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
        "descriptors": {each: os.path.exists(f"/proc/self/fd/{each}") for each in range(3, 64)},
        "standard input": os.readlink("/proc/self/fd/0"),
        "streams": [stream(each) for each in (sys.stdin, sys.stdout, sys.stderr)],
        "cwd": os.getcwd(),
        "limits": [resource.getrlimit(getattr(resource, each)) for each in dir(resource) if each[:7] == "RLIMIT_"],
        "nice": os.nice(0),
        "scheduling": [os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))],
        "leader": [os.getsid(0) == os.getppid(), os.getpgrp() == os.getppid()],
        "terminal": os.ctermid() if os.isatty(0) else None,
        "out of memory": text("/proc/self/oom_score_adj"),
        "core dumps": text("/proc/self/coredump_filter"),
        "cgroup": text("/proc/self/cgroup"),
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)],
        "at exit": atexit._ncallbacks(),
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
    return [random.random(), os.urandom(4).hex(), str(uuid.uuid4()), next(tempfile._get_candidate_names())]


if __name__ == "__main__":
    started = float(text("/proc/self/stat").rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    since = time.clock_gettime(time.CLOCK_BOOTTIME) - started
    log_age = logging.LogRecord("x", 10, "x", 1, "x", (), None).relativeCreated / 1000
    with open("facts.json", "w") as f:
        json.dump({"facts": main(), "random": at_random(), "since": since, "log age": log_age}, f)
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


def start_of(user: Sandbox, run_id: str) -> str | None:
    """Returns how a run was started, as its record says; None: not recorded as warm."""
    attribute = user.guild_home / "runs" / run_id / ".guild" / "attrs" / "dask"
    found: dict[str, Any] = yaml.safe_load(attribute.read_text()) if attribute.exists() else {}
    return found.get("start")


FILES = {"facts.py": FACTS, "children.py": CHILDREN, "fail.py": FAIL, "nap.py": NAP}


@pytest.fixture
def scheduler(user: Sandbox, guild: Guild) -> Iterator[Started]:
    """A scheduler with one slot, and a project."""
    a_project(user, OPERATIONS, FILES)
    with guild.started(f"run dask:scheduler workers=1 {NO_DASHBOARD} -y") as process:
        process.wait_for_output("Waiting for staged runs")
        yield process


def cold_and_warm(user: Sandbox, guild: Guild, operation: str) -> tuple[str, str]:
    """Runs an operation until it starts warm; returns the first run, which is a fresh process, and the last."""
    for number in range(40):
        run_id = f"run{number:02}"
        stage(guild, operation, run_id)
        wait_until(lambda: statuses(user)[run_id] in ("completed", "error"), describe=lambda: statuses(user))  # noqa: B023
        if start_of(user, run_id) == "warm":
            assert start_of(user, "run00") is None
            return "run00", run_id
    raise AssertionError("no run started warm")


def facts_of(user: Sandbox, run_id: str) -> dict[str, Any]:
    text = (user.guild_home / "runs" / run_id / "facts.json").read_text()
    found: dict[str, Any] = json.loads(text.replace(run_id, "RUN"))
    return found


@pytest.mark.every_python
def test_warm_operation_cannot_tell_that_it_is_one(user: Sandbox, guild: Guild, scheduler: Started) -> None:
    runs = cold_and_warm(user, guild, "facts")
    stage(guild, "facts", "zzz")
    wait_until(lambda: statuses(user)["zzz"] == "completed", describe=lambda: statuses(user))
    assert start_of(user, "zzz") == "warm"
    cold, warm, other = (facts_of(user, run_id) for run_id in (*runs, "zzz"))
    different = {
        name: (cold["facts"][name], warm["facts"][name])
        for name in cold["facts"]
        if cold["facts"][name] != warm["facts"][name]
    }
    assert different == {}
    # Forks of one process do not share random numbers or names.
    assert not set(cold["random"]) & set(warm["random"])
    assert not set(other["random"]) & set(warm["random"])
    # The process began with the run, and so did the clock of its log.
    assert warm["since"] < cold["since"] + 60
    assert abs(warm["since"] - warm["log age"]) < 30


def test_failure_of_a_warm_operation_reads_the_same(user: Sandbox, guild: Guild, scheduler: Started) -> None:
    runs = cold_and_warm(user, guild, "fail")
    cold, warm = (guild(f"cat --output {run_id}").output.replace(run_id, "RUN") for run_id in runs)
    assert "ValueError: as expected" in cold
    assert cold == warm
    codes = {(user.guild_home / "runs" / each / ".guild" / "attrs" / "exit_status").read_text() for each in runs}
    assert codes == {"1\n"}


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


def assert_ended(user: Sandbox, run_id: str, processes: list[psutil.Process]) -> None:
    wait_until(lambda: statuses(user)[run_id] == "terminated", describe=lambda: statuses(user))
    wait_until(lambda: not any(map(_is_alive, processes)), describe=lambda: processes)


def _starter(user: Sandbox, run_id: str) -> psutil.Process:
    claim = json.loads((user.guild_home / "dask" / "claims" / f"{run_id}.started").read_text())
    return psutil.Process(claim["owner"]["pid"])


def test_warm_run_ends_with_all_its_processes_whatever_is_killed(
    user: Sandbox, guild: Guild, scheduler: Started
) -> None:
    cold_and_warm(user, guild, "fail")
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

    last = napping(user, guild, "last")
    scheduler.signal(signal.SIGTERM)
    scheduler.wait()
    assert_ended(user, "last", last)


def test_run_that_outlives_its_scheduler_is_not_started_again(user: Sandbox, guild: Guild, scheduler: Started) -> None:
    cold_and_warm(user, guild, "fail")
    processes = napping(user, guild, "nap")
    scheduler.kill()
    with guild.started(f"run dask:scheduler workers=1 {NO_DASHBOARD} -y") as other:
        other.wait_for_output("Waiting for staged runs")
        assert statuses(user)["nap"] == "running"
        assert all(map(_is_alive, processes))
        guild("stop nap -y")
        assert_ended(user, "nap", processes)


def test_project_that_shadows_a_loaded_module_starts_fresh(user: Sandbox, guild: Guild, scheduler: Started) -> None:
    cold_and_warm(user, guild, "fail")
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
    assert [start_of(user, each) for each in runs] == ["warm", None, None]


def test_warm_starts_can_be_switched_off(user: Sandbox, guild: Guild) -> None:
    a_project(user, OPERATIONS, FILES)
    stage(guild, "fail", "aaa", "bbb", "ccc", "ddd")
    guild(f"run dask:scheduler workers=1 run-once=yes warm=no {NO_DASHBOARD} -y")
    assert [start_of(user, each) for each in ("aaa", "bbb", "ccc", "ddd")] == [None] * 4


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
        (COMMAND, {"COVERAGE_PROCESS_START": "coveragerc"}),
    ],
)
def test_other_commands_start_fresh(command: list[str], environ: dict[str, str]) -> None:
    assert warm_kind.kind_for(command, ENVIRON | environ, PYTHON) is None


@pytest.mark.parametrize(
    "changed", [{"PYTHONHASHSEED": "0"}, {"LD_PRELOAD": "x"}, {"GUILD_PLUGINS": "cpu,gpu"}, {"LANG": "C"}]
)
def test_what_python_reads_at_its_start_makes_another_kind(changed: dict[str, str]) -> None:
    assert warm_kind.kind_for(COMMAND, ENVIRON | changed, PYTHON) != warm_kind.kind_for(COMMAND, ENVIRON, PYTHON)


@pytest.mark.parametrize("changed", [{"RUN_ID": "bbb"}, {"FLAG_LR": "2"}, {"FOO": "2"}, {"CUDA_VISIBLE_DEVICES": "1"}])
def test_what_differs_between_runs_does_not(changed: dict[str, str]) -> None:
    assert warm_kind.kind_for(COMMAND, ENVIRON | changed, PYTHON) == warm_kind.kind_for(COMMAND, ENVIRON, PYTHON)
