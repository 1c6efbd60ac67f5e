"""Processes: identities, whether they are alive, and descendants. All of them are real processes."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from guild_dask.host import processes
from guild_dask.host.processes import ProcessIdentity
from tests.support.processes import living
from tests.support.sandbox import DEADLINE

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel has no such thing")


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    with living("cat") as process:
        yield process


PARENT = """
import subprocess, sys
inner = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
print(inner.pid, flush=True)
sys.stdin.read()
inner.communicate()
"""


@dataclasses.dataclass(frozen=True)
class Tree:
    """A child of this process, and a child of that one in a session of its own."""

    child: int
    grandchild: int


@pytest.fixture
def tree() -> Iterator[Tree]:
    with living(sys.executable, "-c", PARENT) as process:
        assert process.stdout
        yield Tree(process.pid, int(process.stdout.readline()))


def die(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process, and leaves it as a zombie: its exit status is not read."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def known(pid: int) -> ProcessIdentity:
    found = processes.identity(pid)
    assert found
    return found


def test_identity_is_that_of_a_living_process(child: "subprocess.Popen[bytes]") -> None:
    assert processes.is_alive(known(child.pid)) is True
    assert known(child.pid) == known(child.pid)
    assert known(child.pid) != known(os.getpid())


def test_zombie_is_dead(child: "subprocess.Popen[bytes]") -> None:
    # A killed scheduler may stay a zombie until its parent reads its exit status.
    before = known(child.pid)
    die(child)
    assert psutil.pid_exists(child.pid)
    assert processes.is_alive(before) is False
    assert processes.identity(child.pid) is None


def test_ended_process_is_dead(child: "subprocess.Popen[bytes]") -> None:
    before = known(child.pid)
    child.kill()
    child.wait(DEADLINE)
    assert processes.is_alive(before) is False
    assert processes.identity(child.pid) is None


def test_reused_pid_is_another_process(child: "subprocess.Popen[bytes]") -> None:
    now = known(child.pid)
    assert processes.is_alive(dataclasses.replace(now, started=now.started - 1)) is False


def test_process_from_before_a_boot_is_dead(child: "subprocess.Popen[bytes]") -> None:
    # Start times count from the boot, and repeat.
    assert processes.is_alive(dataclasses.replace(known(child.pid), boot="before")) is False


def test_process_of_another_host_is_neither_alive_nor_dead(child: "subprocess.Popen[bytes]") -> None:
    assert processes.is_alive(dataclasses.replace(known(child.pid), host="another.example.org")) is None


@pytest.mark.parametrize("pid", [0, -1, 2**31, 2**70])
def test_invalid_pid_is_no_process(pid: int) -> None:
    assert processes.identity(pid) is None
    assert processes.is_alive(dataclasses.replace(known(os.getpid()), pid=pid)) is False
    assert processes.descendants(pid if pid else 2**31) == []
    assert not processes.is_below(pid, os.getpid())
    assert processes.variable_of(pid, "PATH") is None


@ON_LINUX
@pytest.mark.parametrize("name", ["a b", "a) R 1 (b", "(", ")"])
def test_name_of_a_process_does_not_change_its_identity(tmp_path: pathlib.Path, name: str) -> None:
    # The kernel writes the name between the numbers, without quotes.
    script = tmp_path / name
    script.write_text("#!/bin/sh\necho ready\nread line\n")
    script.chmod(0o700)
    with living(str(script)) as process:
        assert process.stdout
        process.stdout.readline()
        assert pathlib.Path(f"/proc/{process.pid}/comm").read_text() == f"{name}\n"
        parent = known(os.getpid())
        assert parent.started <= known(process.pid).started < parent.started + 100 * 3600 * 24 * 365


def test_boot_is_the_same_for_all_processes() -> None:
    code = "from guild_dask.host import processes; print(processes.boot_id())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=DEADLINE)
    assert other.stdout.strip() == processes.boot_id() != ""


def test_descendants_include_all_levels_and_parents_come_first(tree: Tree) -> None:
    found = [process.pid for process in processes.descendants(os.getpid())]
    assert [pid for pid in found if pid in (tree.child, tree.grandchild)] == [tree.child, tree.grandchild]
    assert [process.pid for process in processes.descendants(tree.child)] == [tree.grandchild]
    assert processes.descendants(tree.grandchild) == []


def test_zombie_is_no_descendant(child: "subprocess.Popen[bytes]") -> None:
    # Otherwise a wait for the end of all descendants would never end.
    assert child.pid in [process.pid for process in processes.descendants(os.getpid())]
    die(child)
    assert child.pid not in [process.pid for process in processes.descendants(os.getpid())]


def test_is_below_includes_all_levels(tree: Tree) -> None:
    assert processes.is_below(tree.child, os.getpid())
    assert processes.is_below(tree.grandchild, os.getpid())
    assert not processes.is_below(os.getpid(), tree.child)
    assert not processes.is_below(os.getpid(), os.getpid())


def test_leaves_and_children_are_distinguished(tree: Tree) -> None:
    both = [psutil.Process(tree.child), psutil.Process(tree.grandchild)]
    assert processes.leaves(both) == [both[1]]
    assert processes.leaves(both[:1]) == both[:1]
    assert processes.children(both, os.getpid()) == [both[0]]
    assert processes.children(both, tree.child) == [both[1]]


def test_functions_accept_a_process_that_has_ended(child: "subprocess.Popen[bytes]") -> None:
    ended = psutil.Process(child.pid)
    child.kill()
    child.wait(DEADLINE)
    assert processes.leaves([ended]) == [ended]
    assert processes.children([ended], os.getpid()) == []
    assert processes.session(child.pid) is None
    assert processes.variable_of(child.pid, "PATH") is None
    processes.send(ended, signal.SIGKILL)


def test_processes_of_a_session_are_found_even_if_they_are_orphans(tree: Tree) -> None:
    number = processes.session(os.getpid())
    assert number is not None
    assert os.getpid() in {process.pid for process in processes.in_session(number)}
    assert processes.exists_in_session(number)
    assert not processes.in_session(2**22 + 1)


def test_session_of_a_process_is_found(tree: Tree) -> None:
    assert processes.session(tree.child) == os.getsid(0)
    assert processes.session(tree.grandchild) == tree.grandchild


def test_variables_are_those_that_a_process_was_started_with() -> None:
    with living("sh", "-c", "echo ready; cat", env={**os.environ, "RUN_ID": "aaa"}) as process:
        assert process.stdout
        process.stdout.readline()  # a process that is just starting has no readable environment
        assert processes.variable_of(process.pid, "RUN_ID") == "aaa"
        assert processes.variable_of(process.pid, "RUN_IDENTITY") is None


def test_signal_is_sent(child: "subprocess.Popen[bytes]") -> None:
    processes.send(psutil.Process(child.pid), signal.SIGTERM)
    assert child.wait(DEADLINE) == -signal.SIGTERM


ADOPTS = """
import os, subprocess, sys
from guild_dask.host import processes

processes.adopt_orphans()
read, write = os.pipe()
start = f"import subprocess as s; print(s.Popen(['cat'], stdin={read}, stdout=s.DEVNULL, start_new_session=True).pid)"
orphan = int(subprocess.check_output([sys.executable, "-c", start], pass_fds=[read]))
assert [process.pid for process in processes.descendants(os.getpid())] == [orphan]
os.close(read)
os.close(write)
assert os.waitpid(orphan, 0) == (orphan, 0)
"""


@ON_LINUX
def test_orphan_in_a_session_of_its_own_is_adopted() -> None:
    # A run may start daemons; when it is stopped, they must be found.
    subprocess.run([sys.executable, "-c", ADOPTS], check=True, timeout=DEADLINE)


@ON_LINUX
def test_exit_code_of_a_child_that_has_just_died_is_left_to_whoever_started_it() -> None:
    # A job queue's commands are children, too: without its exit code, a job would count as not submitted.
    with living("sh", "-c", "exit 7") as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        reaper = processes.Reaper()
        reaper.reap(())
        reaper.reap(())
        assert process.wait(DEADLINE) == 7


@ON_LINUX
def test_child_that_stays_dead_is_reaped_unless_it_is_known() -> None:
    with living("true") as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        reaper = processes.Reaper(patience=0.0)
        reaper.reap({process.pid})
        assert psutil.pid_exists(process.pid)
        reaper.reap(())
        assert not psutil.pid_exists(process.pid)
