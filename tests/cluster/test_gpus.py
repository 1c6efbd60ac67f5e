"""GPUs as devices: how they are found, and that no two runs get the same one, even if a scheduler dies."""

import json
import os
import pathlib
import stat
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guild_dask.cluster import gpus, handshake
from guild_dask.cluster.tasks import known_to_dask
from guild_dask.home import claims, operation_data
from guild_dask.home.claims import Claim
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.home.run_queue import GuildHome
from guild_dask.host import environment, processes
from guild_dask.plan.devices import are_taken
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, scheduler_process, stage, statuses

PLAIN = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5f3a)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-77b1)
"""

CUT = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5f3a)
  MIG 1g.5gb      Device  0: (UUID: MIG-c6d4)
  MIG 1g.5gb      Device  1: (UUID: MIG-cba6)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-77b1)
"""


# Finding devices


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        (PLAIN, ["0", "1"]),
        (CUT, ["MIG-c6d4", "MIG-cba6", "1"]),
        ("", []),
        ("No devices found.\n", []),
        ("  MIG 1g.5gb Device 0: (UUID: MIG-c6d4)\n", []),
    ],
)
def test_output_of_the_nvidia_command_is_read(text: str, devices: list[str]) -> None:
    assert gpus.listed(text) == devices


@given(st.text())
def test_no_text_raises(text: str) -> None:
    for read in (gpus.listed, gpus.visible, gpus.in_ranges):
        assert all(isinstance(name, str) and name for name in read(text))


@pytest.mark.parametrize(
    ("environ", "devices"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, ["2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5f3a", "SLURM_JOB_GPUS": "0-7"}, ["GPU-5f3a"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, ["1"]),  # as CUDA reads it
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, []),
        ({"HIP_VISIBLE_DEVICES": "1"}, ["1"]),
        ({"ROCR_VISIBLE_DEVICES": "4,5"}, ["0", "1"]),
        ({"SLURM_JOB_GPUS": "0,2-4"}, ["0", "2", "3", "4"]),
        ({"SLURM_STEP_GPUS": "1", "SLURM_JOB_GPUS": "0,1"}, ["1"]),
    ],
)
def test_variables_of_the_user_or_the_job_decide(environ: dict[str, str], devices: list[str]) -> None:
    assert list(gpus.found(environ, nvidia=["false"]).names) == devices


def test_drivers_are_asked_if_no_variable_is_set(tmp_path: pathlib.Path) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\ncat <<'END'\n{PLAIN}END\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    found = gpus.found(os.environ.copy() | {"X": "y"}, nvidia=[str(command), "-L"])
    assert str(found) == "0, 1 (found by nvidia-smi)"


def test_amd_devices_are_those_of_the_kernel(tmp_path: pathlib.Path) -> None:
    for number, count in enumerate((0, 304, 304)):
        node = tmp_path / str(number)
        node.mkdir()
        (node / "properties").write_text(f"cpu_cores_count {0 if count else 64}\nsimd_count {count}\n")
    found = gpus.found({}, nvidia=["/no/such/command"], amd=tmp_path)
    assert str(found) == "0, 1 (found by the kernel's AMD driver)"


def test_machine_without_gpus_has_none(tmp_path: pathlib.Path) -> None:
    found = gpus.found({}, nvidia=["false"], amd=tmp_path / "nothing")
    assert found.names == ()
    assert "none was found (nvidia-smi" in str(found)
    assert str(gpus.found({"CUDA_VISIBLE_DEVICES": ""})) == "none (CUDA_VISIBLE_DEVICES names none)"


LISTED = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5f3a-1)
  MIG 1g.5gb      Device  0: (UUID: MIG-c6d4)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-77b1-2)
"""
NO_DRIVER = "none was found (nvidia-smi lists none or is not installed, and the kernel knows no AMD GPU)"


@pytest.mark.parametrize(
    ("names", "listing", "doubt"),
    [
        ("0 1", LISTED, ""),
        ("GPU-5f3a-1 GPU-77b1 MIG-c6d4", LISTED, ""),  # CUDA takes the beginning of an id
        ("0 7", LISTED, "7 not found; there is MIG-c6d4, 1 (found by nvidia-smi)"),
        ("GPU-9 1", PLAIN, "GPU-9 not found; there is 0, 1 (found by nvidia-smi)"),
        ("0 GPU-9", "", f"0, GPU-9: {NO_DRIVER}"),
        ("0", "No devices found.", f"0: {NO_DRIVER}"),
    ],
)
def test_named_devices_that_no_driver_lists_are_doubted(
    names: str, listing: str, doubt: str, tmp_path: pathlib.Path
) -> None:
    assert gpus.doubt(names.split(), os.environ, nvidia=["echo", listing], amd=tmp_path / "nothing") == doubt


def test_named_devices_are_doubted_by_the_kernels_list_of_amd(tmp_path: pathlib.Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "properties").write_text("simd_count 304\n")
    command = ["/no/such/command"]
    # The ids of AMD's libraries are not in the list.
    assert gpus.doubt(["0", "GPU-5f3a"], {}, nvidia=command, amd=tmp_path) == ""
    expected = "1 not found; there is 0 (found by the kernel's AMD driver)"
    assert gpus.doubt(["0", "1"], {}, nvidia=command, amd=tmp_path) == expected


def test_variables_say_nothing_about_named_devices(tmp_path: pathlib.Path) -> None:
    # Runs get the variable with the names of the flag.
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    assert gpus.doubt(["0"], environ, nvidia=["echo", PLAIN], amd=tmp_path / "nothing") == ""


def test_run_gets_a_named_device_that_is_not_found_and_the_log_warns(
    user: Sandbox, guild: Guild, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = user.folder / "bin" / "nvidia-smi"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\ncat <<'END'\n{PLAIN}END\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    a_project(user, "show: {exec: \"sh -c 'echo sees [$CUDA_VISIBLE_DEVICES]'\"}")
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    stage(guild, "show", "aaa", options="--tag dask:gpu=1")
    output = guild(f"run dask:scheduler gpus=7 run-once=yes {NO_DASHBOARD} -y").output
    warning = "GPUs (gpus=7): 7 not found; there is 0, 1 (found by nvidia-smi); runs get what the flag names"
    assert next(line for line in output.splitlines() if line.startswith("WARNING")).endswith(warning)
    assert "sees [7]" in output
    output = guild(f"run dask:scheduler gpus=0,1 run-once=yes {NO_DASHBOARD} -y").output
    assert "WARNING" not in output


# What a run sees


def test_run_sees_its_devices_and_no_others() -> None:
    shown = environment.device_variables({}, "0,1")
    assert shown == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "HIP_VISIBLE_DEVICES": "0,1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    assert environment.device_variables({}, "")["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_DEVICE_ORDER" not in environment.device_variables({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "0")
    assert environment.device_variables({}, None) == {}


@pytest.mark.parametrize(
    ("op", "devices"),
    [
        ({"op-cmd": {"cmd-env": {"CUDA_VISIBLE_DEVICES": "0, 2"}}}, ("0", "2")),
        ({"op-cmd": {"cmd-env": {"CUDA_VISIBLE_DEVICES": 3}}}, ("3",)),
        ({"op-cmd": {"cmd-env": {"CUDA_VISIBLE_DEVICES": ""}}}, ()),
        ({"op-cmd": {"cmd-env": {}}}, None),
        ({"op-cmd": {"cmd-env": {"CUDA_VISIBLE_DEVICES": ["0"]}}}, None),
        ({}, None),
        (None, None),
    ],
)
def test_devices_that_the_user_assigned_are_read(op: object, devices: tuple[str, ...] | None) -> None:
    assert operation_data.gpus(op) == devices


@given(
    st.recursive(
        st.none() | st.text() | st.integers(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["deps", "sources", "config", "operation", "op-cmd", "cmd-env"]), inner)
        ),
    )
)
def test_no_operation_data_raises(op: object) -> None:
    assert all(isinstance(run, str) for run in operation_data.needs(op))
    assert operation_data.gpus(op) is None


# Assigning devices


def test_claim_keeps_devices_and_old_claims_have_none(tmp_path: pathlib.Path) -> None:
    me = processes.identity(os.getpid())
    assert me
    claim = Claim("aaa", "scheduler", me, me, devices={"0": 0.5})
    path = claims.write(tmp_path, claim)
    found = claims.present(tmp_path, "aaa")
    assert found
    assert found.claim == claim
    data = json.loads(path.read_text())
    del data["devices"]
    path.write_text(json.dumps(data))
    old = claims.present(tmp_path, "aaa")
    assert old
    assert old.claim
    assert old.claim.devices == {}


def test_run_of_a_scheduler_that_was_killed_keeps_its_device(user: Sandbox, guild: Guild) -> None:
    go = user.folder / "go"
    hold = f'echo "$RUN_ID sees [$CUDA_VISIBLE_DEVICES]"; until [ -e {go} ]; do sleep 0.1; done'
    a_project(user, f"hold:\n  exec: sh -c '{hold}'\n")
    stage(guild, "hold", "aaa", "bbb", options="--tag dask:gpu=1")
    with guild.started(f"run dask:scheduler gpus=0 {NO_DASHBOARD} -y") as first:
        first.wait_for_output("aaa sees [0]")
        scheduler_process(user).kill()
        first.wait()
    with guild.started(f"run dask:scheduler gpus=0,1 workers=4 {NO_DASHBOARD} -y") as second:
        # Device 0 would be assigned first.
        second.wait_for_output("bbb sees [1]")
        assert statuses(user) == {"aaa": "running", "bbb": "running"}
        go.touch()
        wait_until(lambda: statuses(user) == {"aaa": "completed", "bbb": "completed"})


def test_two_schedulers_do_not_assign_the_same_device(user: Sandbox, guild: Guild) -> None:
    go = user.folder / "go"
    hold = f'echo "$RUN_ID sees [$CUDA_VISIBLE_DEVICES]"; until [ -e {go} ]; do sleep 0.1; done'
    a_project(user, "".join(f"{name}:\n  exec: sh -c '{hold}'\n" for name in ("one", "two")))
    stage(guild, "one", "aaa", options="--tag dask:gpu=1")
    stage(guild, "two", "bbb", "ccc", options="--tag dask:gpu=1")
    one = f"run dask:scheduler gpus=0 poll-interval=1 {NO_DASHBOARD} 'filter=op = one' -y"
    other = f"run dask:scheduler gpus=0,1 poll-interval=1 workers=4 {NO_DASHBOARD} 'filter=op = two' -y"
    with guild.started(one) as first, guild.started(other) as second:
        # Alone, the second scheduler could start both of its runs.
        wait_until(lambda: list(statuses(user).values()).count("running") == 2, describe=lambda: statuses(user))
        wait_until(lambda: (first.output + second.output).count(" sees [") == 2)
        said = first.output + second.output
        assert [said.count("sees [0]"), said.count("sees [1]")] == [1, 1], said
        go.touch()
        wait_until(lambda: set(statuses(user).values()) == {"completed"}, describe=lambda: statuses(user))


def test_device_that_another_scheduler_took_a_moment_ago_is_not_claimed(user: Sandbox, guild: Guild) -> None:
    a_project(user, "hold:\n  exec: sleep 60\n")
    stage(guild, "hold", "aaa", "bbb", "ccc", options="--tag dask:gpu=0.5")
    me = processes.identity(os.getpid())
    assert me
    other = replace(me, pid=1)
    home = GuildHome(str(user.guild_home), Heartbeat(str(user.guild_home), "me", me))
    claims.write(home.claims_folder, Claim("xxx", "other", other, other, devices={"0": 0.5}))
    staged = {run.id: run for run in home.staged().staged}
    assert are_taken({"0": 1.0}, {"0": 0.5})
    whole = home.claim([(staged["aaa"], Claim("aaa", "me", me, me, devices={"0": 1.0}))])
    assert (whole.taken, whole.refused) == ((), {})
    half = home.claim([(staged["bbb"], Claim("bbb", "me", me, me, devices={"0": 0.5}))])
    assert [run.id for run, _ in half.taken] == ["bbb"]
    another = home.claim([(staged["ccc"], Claim("ccc", "me", me, me, devices={"1": 1.0}))])
    assert [run.id for run, _ in another.taken] == ["ccc"]


# On other workers


def info(name: str = "host", *names: str, is_assigned: bool = True) -> handshake.WorkerInfo:
    return handshake.WorkerInfo("1", name, name, True, 0.0, names, not is_assigned)


ABOUT = {"nthreads": 4, "resources": {"foo": 1.0}, "name": "w"}


def test_gpus_of_a_worker_are_its_devices() -> None:
    found = handshake.capacity_for("tcp://w", ABOUT, info("host", "0", "1"), ())
    assert (found.devices, found.resources) == (("0", "1"), {"foo": 1.0, "gpu": 2.0})
    plain = handshake.capacity_for("tcp://w", ABOUT, info(), ())
    assert (plain.devices, plain.resources) == ((), {"foo": 1.0})


def test_gpus_of_a_host_are_assigned_to_one_of_its_workers() -> None:
    # Both see all GPUs, if none are assigned to a worker.
    first = handshake.capacity_for("tcp://v", ABOUT, info("host", "0", is_assigned=False), ())
    second = handshake.capacity_for("tcp://w", ABOUT, info("host", "0", is_assigned=False), [first])
    elsewhere = handshake.capacity_for("tcp://x", ABOUT, info("other", "0", is_assigned=False), [first])
    assert (first.devices, second.devices, elsewhere.devices) == (("0",), (), ("0",))
    assert second.resources["gpu"] == 0
    # GPUs that are assigned to a job belong to its worker.
    assert handshake.capacity_for("tcp://w", ABOUT, info("host", "0"), [first]).devices == ("0",)


def test_dask_gets_only_requests_that_it_can_meet() -> None:
    assert set(known_to_dask({"gpu": 1.0, "foo": 1.0, "bar": 0.0}, {"foo", "bar"})) == {"foo"}
