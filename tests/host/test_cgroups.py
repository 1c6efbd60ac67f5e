"""A cgroup of its own for a run: where one is made, and where it is left to the present way to measure.

A folder with plain files stands for the kernel's where only names and contents matter. What the kernel does with it is
tested where it lets us, that is where memory is handed on to cgroups (version 2) beside our own.
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

# Goes where nobody finds it who asks for groups and sessions, hears no TERM, and starts itself anew all the time.
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
        ("0::/other/a", V2.replace(" / ", " /box "), None),  # of another part than what is mounted
        ("0::/../other", V2, None),  # of another container
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
def test_memory_is_what_is_no_file(stat: str, memory: int | None) -> None:
    assert cgroups.memory_in(stat) == memory


@pytest.fixture
def mount(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder that stands for the kernel's, with memory handed on to `top/own`."""
    for folder in (tmp_path, tmp_path / "top", tmp_path / "top" / "own"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.procs").touch()
        (folder / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (tmp_path / "top" / "own" / "cgroup.subtree_control").write_text("\n")
    return tmp_path


def test_cgroup_is_made_beside_our_own(mount: pathlib.Path) -> None:
    assert cgroups.parent_for(mount, mount / "top" / "own") == mount / "top"


def test_cgroup_is_made_in_our_own_where_that_hands_memory_on(mount: pathlib.Path) -> None:
    # Only the root can do that while it has processes: on a machine without systemd all are there.
    assert cgroups.parent_for(mount, mount) == mount


def test_nothing_is_made_above_the_mount(mount: pathlib.Path) -> None:
    (mount / "top" / "cgroup.subtree_control").write_text("")
    assert cgroups.parent_for(mount / "top", mount / "top") is None


@pytest.mark.parametrize("text", ["", "cpu pids", "memoryless", "\x00"])
def test_nothing_is_made_where_memory_is_not_handed_on(mount: pathlib.Path, text: str) -> None:
    (mount / "top" / "cgroup.subtree_control").write_text(text)
    assert cgroups.parent_for(mount, mount / "top" / "own") is None


@pytest.mark.parametrize(
    ("name", "limit"),
    [("memory.max", "1000000"), ("memory.high", "0"), ("cpu.max", "50000 100000"), ("cpuset.cpus", "0-3")],
)
def test_run_does_not_get_out_of_a_limit(mount: pathlib.Path, name: str, limit: str) -> None:
    # Whoever starts a scheduler with 16 GB for all of it means its runs.
    own = mount / "top" / "own"
    (own / name).write_text(f"{limit}\n")
    assert cgroups.parent_for(mount, own) is None


def test_what_nobody_has_set_is_no_limit(mount: pathlib.Path) -> None:
    own = mount / "top" / "own"
    for name, text in {"memory.max": "max", "cpu.max": "max 100000", "cpu.weight": "100", "cpuset.cpus": ""}.items():
        (own / name).write_text(f"{text}\n")
    assert cgroups.parent_for(mount, own) == mount / "top"


@pytest.mark.parametrize("name", ["jobs.service", "guild-dask-7/run-1-2"])
def test_run_does_not_get_out_of_a_service_or_another_run(mount: pathlib.Path, name: str) -> None:
    # systemd ends what is in a service; and what a run starts counts as the run's, also if it is a scheduler with runs.
    own = mount / "top" / name
    own.mkdir(parents=True)
    (own.parent / "cgroup.procs").touch()
    (own.parent / "cgroup.subtree_control").write_text("memory")
    assert cgroups.parent_for(mount, own) is None


def test_what_cannot_be_made_leaves_nothing(mount: pathlib.Path) -> None:
    # There is no kernel to fill the new folders, as there is none on a file system that is something else.
    before = sorted(mount.rglob("*"))
    assert cgroups.cgroup_below(mount, mount / "top" / "own") is None
    assert cgroups.cgroup_below(mount, mount / "top" / "gone") is None
    assert sorted(mount.rglob("*")) == before


def test_what_killed_starters_have_left_is_removed(mount: pathlib.Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    gone, kept = mount / "guild-dask-1", mount / "guild-dask-2"
    (gone / f"run-{dead.pid}-1" / "of-the-run").mkdir(parents=True)
    living = kept / f"run-{os.getpid()}-1"
    living.mkdir(parents=True)
    (kept / f"run-{dead.pid}-1").mkdir()
    used = kept / f"run-{dead.pid}-2"
    used.mkdir()
    (used / "process").touch()  # such a cgroup can be removed as little as a folder with a file
    (kept / "run-0999999999999999999999999-1").mkdir()
    (mount / "others").mkdir()
    cgroups.remove_stale(mount)
    assert not gone.exists()
    assert {path.name for path in kept.iterdir()} >= {living.name, used.name}
    assert not (kept / f"run-{dead.pid}-1").exists()
    assert (mount / "others").exists()
    cgroups.remove_stale(mount / "nothing")


def test_process_starts_all_the_same_where_the_cgroup_is_gone(tmp_path: pathlib.Path) -> None:
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


def test_memory_of_all_in_it_is_counted_once(cgroup: Cgroup) -> None:
    with cgroup.entered():
        process = taker(200, children=4)
    assert len(members(cgroup)) == 5
    assert process.pid in members(cgroup)
    assert os.getpid() not in members(cgroup)
    # The kernel brings its sums up to date every two seconds.
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


def test_what_the_starter_takes_does_not_count(cgroup: Cgroup) -> None:
    with cgroup.entered():
        process = taker(1)
    taken = bytearray(os.urandom(1)) * (200 * MB)
    outside = taker(200)
    assert (cgroup.memory() or 0) < 100 * MB
    assert len(taken) == 200 * MB
    end(outside)
    end(process)


def test_all_in_it_are_killed_at_once(cgroup: Cgroup) -> None:
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


def test_starter_that_cannot_get_out_goes_on(cgroup: Cgroup, tmp_path: pathlib.Path) -> None:
    folders = cgroups.folders_for_texts(*(pathlib.Path(f"/proc/self/{n}").read_text() for n in ("cgroup", "mountinfo")))
    assert folders
    caught = Cgroup(cgroup.folder, tmp_path)
    try:
        with caught.entered():
            process = taker(200)
        assert os.getpid() in members(caught)
        wait_until(lambda: (caught.memory() or 0) > 190 * MB)
        caught.kill()  # would be our own end
        assert process.poll() is None
        end(process)
        caught.remove()
        assert caught.folder.exists()
    finally:
        (folders[1] / "cgroup.procs").write_text("0")


def test_run_has_a_cgroup_as_long_as_it_runs(cgroup: Cgroup, user: Sandbox, guild: Guild) -> None:
    a_project(user, "take:\n  exec: sh -c 'cat /proc/self/cgroup; exec python take.py 150 1'\n", {"take.py": TAKE})
    stage(guild, "take", "aaa", options="--tag dask:mem=300MB")
    stage(guild, "take", "bbb", options="--tag dask:mem=300MB")
    stage(guild, "take", "ccc")  # nobody counts on the figure, and to enter a cgroup takes some milliseconds
    output = guild(f"run dask:scheduler run-once=yes resources=mem=1GB {NO_DASHBOARD} -y").output
    groups = {line.rpartition("/")[2] for line in output.splitlines() if "0::" in line}
    assert len(groups) == 3
    assert len([name for name in groups if name.startswith("run-")]) == 2
    for run in ("aaa", "bbb"):
        facts = pathlib.Path(user.guild_home, "runs", run, ".guild", "attrs", "dask").read_text()
        used = [float(line.split(": ")[1]) for line in facts.splitlines() if line.startswith("max_memory")]
        assert 140 * MB < used[0] < 300 * MB
    assert [path for path in cgroup.folder.parent.iterdir() if path.is_dir()] == [cgroup.folder]


def test_cgroup_of_a_killed_starter_goes_with_the_next_one(cgroup: Cgroup, user: Sandbox, guild: Guild) -> None:
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
