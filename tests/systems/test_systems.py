"""The systems themselves: properties that other tests rely on, and what happens if one is missing."""

import pathlib
import socket

import psutil
import pytest

from tests.support.sandbox import wait_until
from tests.systems.gridengine import GridEngine
from tests.systems.hosts import Host
from tests.systems.needs import Missing, give_up, program
from tests.systems.openssh import OpenSSH
from tests.systems.slurm import Slurm


def test_nodes_of_slurm_are_hosts_of_their_own(slurm: Slurm) -> None:
    names = slurm.command("srun", "-N3", "hostname").split()
    boots = slurm.command("srun", "-N3", "cat", "/proc/sys/kernel/random/boot_id").split()
    assert sorted(names) == ["n1", "n2", "n3"]
    assert len({*boots, pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()}) == 4


def test_job_of_slurm_is_told_its_gpus(slurm: Slurm) -> None:
    assert slurm.command("srun", "--gres=gpu:2", "printenv", "CUDA_VISIBLE_DEVICES") == "0,1\n"


def test_killed_slurmd_leaves_its_job_running(slurm: Slurm) -> None:
    slurm.command("sbatch", "-w", "n2", "-o", "/dev/null", "--wrap", "exec sleep 600")
    wait_until(lambda: slurm.hosts["n2"].processes("sleep 600"), describe=slurm.jobs)
    slurm.kill_slurmd("n2")
    assert slurm.hosts["n2"].processes("sleep 600")
    slurm.hosts["n2"].switch_off()


def test_grid_engine_ends_a_job_at_its_time_limit(gridengine: GridEngine) -> None:
    # The limit is enforced to the second, so tests of a job's end take less than a minute.
    job = gridengine.command("qsub -terse -b y -l h_rt=0:0:2 -o /dev/null -j y sleep 600").strip()
    wait_until(lambda: job not in gridengine.jobs(), describe=gridengine.jobs)
    assert not gridengine.host.processes("sleep 600")


def test_host_that_is_cut_off_goes_on_and_comes_back(openssh: OpenSSH) -> None:
    host = openssh.hosts["h1"]
    assert _is_reached(host)
    host.cut_off()
    assert not _is_reached(host)
    assert host.run("hostname") == "h1\n"
    host.connect()
    wait_until(lambda: _is_reached(host))


def _is_reached(host: Host) -> bool:
    try:
        socket.create_connection((host.address, 22), timeout=1).close()
    except OSError:
        return False
    return True


def test_host_that_is_switched_off_leaves_no_process(openssh: OpenSSH) -> None:
    host = openssh.hosts["h1"]
    host.run("setsid sleep 600 > /dev/null 2>&1 &")
    (process,) = host.processes("sleep 600")
    host.switch_off()
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_missing_system_is_a_skip_on_a_laptop_and_a_failure_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Missing, match="no no-such-daemon on this machine") as missing:
        program("no-such-daemon")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception):
        give_up(missing.value)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception):
        give_up(missing.value)
