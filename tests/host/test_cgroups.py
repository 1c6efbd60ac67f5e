"""A cgroup for each run: where one is created, and where not.

A folder with plain files is used in place of the kernel's if only names and contents matter. The kernel itself is
tested where this process may create cgroups of version 2 with the memory controller.
"""

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from guild_dask.host import cgroups
from guild_dask.host.cgroups import Cgroup
from guild_dask.host.memory import Meter
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, stage, statuses
from tests.worker.test_limits import MB, TAKE, end, mapper, taker

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
HYBRID = "41 40 0:35 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
V1 = "42 40 0:36 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"

# Leaves its session and process group, ignores TERM, and forks itself all the time.
FLEE = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid()
print("fleeing", flush=True)
while True:
    if os.fork():
        os._exit(0)
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("cgroup", "mountinfo", "own"),
    [
        ("0::/", V2, "/sys/fs/cgroup"),
        ("0::/user.slice/a.scope", V2, "/sys/fs/cgroup/user.slice/a.scope"),
        ("4:memory:/x\n1:cpu:/\n0::/a", f"{V1}\n{HYBRID}", "/sys/fs/cgroup/unified/a"),
        ("0::/box/a", V2.replace(" / ", " /box "), "/sys/fs/cgroup/a"),
        ("0::/a", V2.replace("/sys/fs/cgroup", "/my\\040groups"), "/my groups/a"),
        ("0::/other/a", V2.replace(" / ", " /box "), None),  # outside of the mounted part
        ("0::/../other", V2, None),  # outside of this container
        ("4:memory:/a", V1, None),
        ("0::/a", V1, None),
        ("0::/a", "", None),
        ("", V2, None),
        ("0::", V2, None),
        ("0::a", V2, None),
        ("0::/a", "- cgroup2", None),
        ("0::/a", " - cgroup2 a b", None),
        ("\x00\ufffd", "\x00\ufffd", None),
    ],
)
def test_own_cgroup_is_found(cgroup: str, mountinfo: str, own: str | None) -> None:
    found = cgroups.folders_for_texts(cgroup, mountinfo)
    assert (found and str(found[1])) == own


@pytest.mark.parametrize(
    ("stat", "memory"),
    [
        ("anon 4096\nfile 1000000\nkernel 5\nshmem 8192\nanon_thp 77", 12288),
        ("anon 4096", None),
        ("anon \nshmem 1", None),
        ("anon 1 2\nshmem 1", None),
        ("anon x\nshmem 1", None),
        ("", None),
        ("\x00", None),
    ],
)
def test_memory_is_counted_without_file_pages(stat: str, memory: int | None) -> None:
    assert cgroups.memory_in(stat) == memory


@pytest.fixture
def mount(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder in place of the kernel's, with the memory controller enabled for `top/own`."""
    for folder in (tmp_path, tmp_path / "top", tmp_path / "top" / "own"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.procs").touch()
        (folder / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (tmp_path / "top" / "own" / "cgroup.subtree_control").write_text("\n")
    return tmp_path


def test_cgroup_is_created_beside_our_own(mount: pathlib.Path) -> None:
    assert cgroups.parent_for(mount, mount / "top" / "own") == mount / "top"


def test_cgroup_is_created_in_our_own_if_that_has_the_memory_controller_enabled(mount: pathlib.Path) -> None:
    # Only the root can have both; on a machine without systemd, all processes are in the root.
    assert cgroups.parent_for(mount, mount) == mount


def test_no_cgroup_is_created_above_the_mount(mount: pathlib.Path) -> None:
    (mount / "top" / "cgroup.subtree_control").write_text("")
    assert cgroups.parent_for(mount / "top", mount / "top") is None


@pytest.mark.parametrize("text", ["", "cpu pids", "memoryless", "\x00"])
def test_no_cgroup_is_created_without_the_memory_controller(mount: pathlib.Path, text: str) -> None:
    (mount / "top" / "cgroup.subtree_control").write_text(text)
    assert cgroups.parent_for(mount, mount / "top" / "own") is None


@pytest.mark.parametrize(
    ("name", "limit"),
    [("memory.max", "1000000"), ("memory.high", "0"), ("cpu.max", "50000 100000"), ("cpuset.cpus", "0-3")],
)
def test_run_does_not_escape_from_a_limit(mount: pathlib.Path, name: str, limit: str) -> None:
    # A user who limits a scheduler to 16 GB means its runs, too.
    own = mount / "top" / "own"
    (own / name).write_text(f"{limit}\n")
    assert cgroups.parent_for(mount, own) is None


def test_default_settings_are_no_limit(mount: pathlib.Path) -> None:
    own = mount / "top" / "own"
    for name, text in {"memory.max": "max", "cpu.max": "max 100000", "cpu.weight": "100", "cpuset.cpus": ""}.items():
        (own / name).write_text(f"{text}\n")
    assert cgroups.parent_for(mount, own) == mount / "top"


@pytest.mark.parametrize("name", ["jobs.service", "guild-dask-7/run-1-2"])
def test_run_does_not_escape_from_a_service_or_another_run(mount: pathlib.Path, name: str) -> None:
    # systemd ends all processes of a service. All that a run starts belongs to the run, even another scheduler.
    own = mount / "top" / name
    own.mkdir(parents=True)
    (own.parent / "cgroup.procs").touch()
    (own.parent / "cgroup.subtree_control").write_text("memory")
    assert cgroups.parent_for(mount, own) is None


def test_failed_creation_leaves_nothing_behind(mount: pathlib.Path) -> None:
    # On an ordinary file system, the kernel does not create files in the new folders.
    before = sorted(mount.rglob("*"))
    assert cgroups.cgroup_below(mount, mount / "top" / "own") is None
    assert cgroups.cgroup_below(mount, mount / "top" / "gone") is None
    assert sorted(mount.rglob("*")) == before


def test_cgroups_of_killed_starters_are_removed(mount: pathlib.Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    gone, kept = mount / "guild-dask-1", mount / "guild-dask-2"
    (gone / f"run-{dead.pid}-1" / "of-the-run").mkdir(parents=True)
    living = kept / f"run-{os.getpid()}-1"
    living.mkdir(parents=True)
    (kept / f"run-{dead.pid}-1").mkdir()
    used = kept / f"run-{dead.pid}-2"
    used.mkdir()
    (used / "process").touch()  # a cgroup with a process cannot be removed, like a folder with a file
    (kept / "run-0999999999999999999999999-1").mkdir()
    (mount / "others").mkdir()
    cgroups.remove_stale(mount)
    assert not gone.exists()
    assert {path.name for path in kept.iterdir()} >= {living.name, used.name}
    assert not (kept / f"run-{dead.pid}-1").exists()
    assert (mount / "others").exists()
    cgroups.remove_stale(mount / "nothing")


def test_memory_of_an_operation_that_could_not_be_moved_into_its_cgroup_is_not_that_of_the_cgroup(
    tmp_path: pathlib.Path,
) -> None:
    # A warm operation is not a child of the starter, which moves it.
    folder, own = tmp_path / "run", tmp_path / "own"
    for each in (folder, own):
        each.mkdir()
        (each / "cgroup.procs").touch()
    (folder / "memory.stat").write_text("anon 1000\nshmem 0\n")
    cgroup = Cgroup(folder, own)
    with cgroup.entered():
        assert cgroup.memory() == 1000
        (folder / "cgroup.procs").unlink()
        cgroup.take(1)
    assert cgroup.memory() is None


def test_process_starts_even_if_the_cgroup_is_gone(tmp_path: pathlib.Path) -> None:
    cgroup = Cgroup(tmp_path / "gone" / "run-1-1", tmp_path / "gone")
    with cgroup.entered():
        process = taker(200)
    assert cgroup.memory() is None
    meter = Meter(os.getpid(), cgroup)
    assert meter.sample() > 190 * MB
    assert meter.exact() > 190 * MB
    cgroup.kill()
    assert process.poll() is None
    end(process)
    cgroup.remove()


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    made = cgroups.cgroup_for_run()
    if made is None:
        pytest.skip("no memory cgroup (version 2) can be made beside our own on this machine, by this user")
    yield made
    made.remove()
    assert not made.folder.exists()


def members(cgroup: Cgroup) -> list[int]:
    return [int(pid) for pid in (cgroup.folder / "cgroup.procs").read_text().split()]


def test_memory_of_all_processes_is_counted_once(cgroup: Cgroup) -> None:
    with cgroup.entered():
        process = taker(200, children=4)
    assert len(members(cgroup)) == 5
    assert process.pid in members(cgroup)
    assert os.getpid() not in members(cgroup)
    # The kernel updates its sums every two seconds.
    wait_until(lambda: (cgroup.memory() or 0) > 190 * MB)
    meter = Meter(os.getpid(), cgroup)
    assert 190 * MB < meter.sample() < 300 * MB
    assert 190 * MB < meter.exact() < 300 * MB
    end(process)
    assert meter.peak > 190 * MB


def test_mapped_files_do_not_count(cgroup: Cgroup, tmp_path: pathlib.Path) -> None:
    with cgroup.entered():
        process = mapper(tmp_path / "data", 200)
        second = taker(150)
    wait_until(lambda: (cgroup.memory() or 0) > 140 * MB)
    assert (cgroup.memory() or 0) < 250 * MB
    end(process)
    end(second)


def test_memory_of_the_starter_does_not_count(cgroup: Cgroup) -> None:
    with cgroup.entered():
        process = taker(1)
    taken = bytearray(os.urandom(1)) * (200 * MB)
    outside = taker(200)
    assert (cgroup.memory() or 0) < 100 * MB
    assert len(taken) == 200 * MB
    end(outside)
    end(process)


def test_all_processes_are_killed_at_once(cgroup: Cgroup) -> None:
    if not (cgroup.folder / "cgroup.kill").exists():
        pytest.skip("this kernel cannot kill a cgroup (Linux 5.14)")
    with cgroup.entered():
        process = subprocess.Popen([sys.executable, "-c", FLEE], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    with process.stdout:
        assert process.stdout.readline() == "fleeing\n"
    process.wait()
    assert "populated 1" in (cgroup.folder / "cgroup.events").read_text()
    cgroup.kill()
    wait_until(lambda: "populated 0" in (cgroup.folder / "cgroup.events").read_text())


def test_starter_that_cannot_leave_the_cgroup_continues(cgroup: Cgroup, tmp_path: pathlib.Path) -> None:
    folders = cgroups.folders_for_texts(*(pathlib.Path(f"/proc/self/{n}").read_text() for n in ("cgroup", "mountinfo")))
    assert folders
    caught = Cgroup(cgroup.folder, tmp_path)
    try:
        with caught.entered():
            process = taker(200)
        assert os.getpid() in members(caught)
        wait_until(lambda: (caught.memory() or 0) > 190 * MB)
        caught.kill()  # would kill this process, too
        assert process.poll() is None
        end(process)
        caught.remove()
        assert caught.folder.exists()
    finally:
        (folders[1] / "cgroup.procs").write_text("0")


def test_run_has_a_cgroup_while_it_runs(cgroup: Cgroup, user: Sandbox, guild: Guild) -> None:
    a_project(user, "take:\n  exec: sh -c 'cat /proc/self/cgroup; exec python take.py 150 1'\n", {"take.py": TAKE})
    stage(guild, "take", "aaa", options="--tag dask:mem=300MB")
    stage(guild, "take", "bbb", options="--tag dask:mem=300MB")
    stage(guild, "take", "ccc")  # it has no memory limit, and entering a cgroup takes some milliseconds
    output = guild(f"run dask:scheduler run-once=yes resources=mem=1GB {NO_DASHBOARD} -y").output
    groups = {line.rpartition("/")[2] for line in output.splitlines() if "0::" in line}
    assert len(groups) == 3
    assert len([name for name in groups if name.startswith("run-")]) == 2
    for run in ("aaa", "bbb"):
        facts = pathlib.Path(user.guild_home, "runs", run, ".guild", "attrs", "dask").read_text()
        used = [float(line.split(": ")[1]) for line in facts.splitlines() if line.startswith("max_memory")]
        assert 140 * MB < used[0] < 300 * MB
    assert [path for path in cgroup.folder.parent.iterdir() if path.is_dir()] == [cgroup.folder]


def test_cgroup_of_a_killed_starter_is_removed_when_the_next_one_is_created(
    cgroup: Cgroup, user: Sandbox, guild: Guild
) -> None:
    a_project(user, "forever:\n  exec: sh -c 'echo working; while true; do sleep 0.1; done'\n")
    stage(guild, "forever", "aaa", options="--tag dask:mem=300MB")
    group = cgroup.folder.parent
    with guild.started(f"run dask:scheduler resources=mem=1GB {NO_DASHBOARD} -y") as scheduler:
        scheduler.wait_for_output("working")
        (left,) = (path for path in group.iterdir() if path.is_dir() and path != cgroup.folder)
        os.kill(int(left.name.split("-")[1]), signal.SIGKILL)
        wait_until(lambda: statuses(user) == {"aaa": "terminated"})
        wait_until(lambda: "populated 0" in (left / "cgroup.events").read_text())
        guild("stop -y")
        scheduler.wait()
    assert left.exists()
    another = cgroups.cgroup_for_run()
    assert another
    another.remove()
    assert not left.exists()
