"""A Slurm with several nodes, each a host with a slurmd, and a head with munged and slurmctld.

CPUs, memory and GPUs are as configured, not as the machine has them. GPUs are copies of /dev/null: a job that requests
some finds their numbers in CUDA_VISIBLE_DEVICES.
"""

import os
import pathlib
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from tests.support import account
from tests.support.sandbox import run_command, wait_until
from tests.systems.hosts import Host, Network, clean_environ
from tests.systems.needs import program

_CONFIGURATION = """
ClusterName=test
SlurmctldHost=head({head})
SlurmUser=root
AuthType=auth/munge
# A job that is started again waits this long, by default two minutes.
AuthInfo=socket={state}/munge/socket,cred_expire=5
StateSaveLocation={state}/controller
SlurmctldPidFile={state}/slurmctld.pid
SlurmctldLogFile={state}/slurmctld.log
SlurmdSpoolDir={state}/spool.%n
SlurmdPidFile={state}/slurmd.%n.pid
SlurmdLogFile={state}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
ReturnToService=1
SlurmdTimeout=10
KillWait=5
SchedulerParameters=batch_sched_delay=0,bf_interval=5
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES DefMemPerCPU=1000 MaxTime=UNLIMITED State=UP
PartitionName=gpu Nodes=ALL MaxTime=60 State=UP
"""

_NODE = "NodeName={name} NodeAddr={address} CPUs={cpus} RealMemory={megabytes} Gres=gpu:{gpus} State=UNKNOWN"


@dataclass(frozen=True)
class Node:
    """The resources of one node."""

    name: str
    cpus: int = 4
    megabytes: int = 4000
    gpus: int = 2


class Slurm:
    """A Slurm that takes jobs from this machine."""

    def __init__(self, network: Network, nodes: tuple[Node, ...]) -> None:
        for name in ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol"):
            program(name)
        self.network = network
        self.nodes = nodes
        self._state = network.state
        account.open_to_user(self._state)
        self._head = network.add("head")
        self.hosts = {node.name: network.add(node.name) for node in nodes}
        self._write_files()
        self._start_head()
        for node in nodes:
            self.start_node(node.name)
        self.wait_for_nodes()

    @property
    def variables(self) -> Mapping[str, str]:
        """Returns the variables that a user needs for the commands of Slurm."""
        return {"SLURM_CONF": str(self._state / "slurm.conf")}

    def _write_files(self) -> None:
        for folder in ("munge", "controller", "devices", *(f"spool.{node.name}" for node in self.nodes)):
            (self._state / folder).mkdir()
        (self._state / "munge" / "key").write_bytes(os.urandom(1024))
        (self._state / "munge" / "key").chmod(0o400)
        nodes = (_NODE.format(address=self.hosts[node.name].address, **vars(node)) for node in self.nodes)
        text = _CONFIGURATION.format(head=self._head.address, state=self._state, nodes="\n".join(nodes))
        (self._state / "slurm.conf").write_text(text)
        # Since Slurm 23 slurmd ends where no cgroup is mounted, as in a container, unless it is told to use none.
        if _version() >= (23,):
            (self._state / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        gres = (_gres(node, self._state / "devices") for node in self.nodes)
        (self._state / "gres.conf").write_text("\n".join(gres) + "\n")

    def _start_head(self) -> None:
        munge = self._state / "munge"
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = " ".join(f"--{option}={munge / file}" for option, file in files.items())
        # Forced: the folder of the tests may have more permissions than munged accepts.
        self._head.run(f"{program('munged')} --force {options}")
        self._head.run(f"{program('slurmctld')} -f {self._state}/slurm.conf")

    def start_node(self, name: str) -> None:
        """Starts the node's slurmd, on a running host."""
        self.hosts[name].run(f"{program('slurmd')} -f {self._state}/slurm.conf -N {name}")

    def kill_slurmd(self, name: str) -> None:
        """Kills the node's slurmd, but not its jobs: Slurm considers the node dead, while the jobs continue."""
        for process in self.slurmd(name):
            process.kill()
        wait_until(lambda: not self.slurmd(name), describe=f"the end of slurmd on {name}")

    def slurmd(self, name: str) -> list[psutil.Process]:
        """Returns the node's slurmd, as a list of one or none."""
        return [process for process in self.hosts[name].processes() if process.name() == "slurmd"]

    def wait_for_nodes(self) -> None:
        """Waits until each node is ready and idle."""
        everything = {node.name: "idle" for node in self.nodes}
        wait_until(lambda: self.states() == everything, describe=lambda: f"{self.states()}\n{self._logs()}")

    def states(self) -> dict[str, str]:
        """Returns the state of each node; with a * the node does not answer."""
        done = run_command(["sinfo", "-h", "-N", "-o", "%N %T"], {**clean_environ(), **self.variables}, "/")
        return dict(line.split() for line in done.output.splitlines()) if done.exit_code == 0 else {}

    def jobs(self) -> dict[str, str]:
        """Returns the state of each job that waits or runs, by its number."""
        return dict(line.split() for line in self.command("squeue", "-h", "-o", "%A %T").splitlines())

    def command(self, *words: str) -> str:
        """Runs a command of Slurm and returns its output; it must succeed."""
        done = run_command(words, {**clean_environ(), **self.variables}, "/")
        if done.exit_code != 0:
            raise RuntimeError(str(done))
        return done.output

    def reset(self) -> None:
        """Ends all jobs, and restores the initial state of all nodes."""
        for name, host in self.hosts.items():
            host.connect() if host.is_on else host.switch_on()
            if not self.slurmd(name):
                self.start_node(name)
        self.command("scancel", f"--user={account.user_name()}")
        wait_until(lambda: not self.jobs(), describe=lambda: f"the end of {self.jobs()}")
        for name, state in self.states().items():
            if state.rstrip("*") in ("down", "drained", "draining"):
                # Fails if the node has come back meanwhile, since Slurm 26.05.
                words = ["scontrol", "update", f"NodeName={name}", "State=RESUME"]
                run_command(words, {**clean_environ(), **self.variables}, "/")
        self.wait_for_nodes()

    def _logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-500:]}" for path in sorted(self._state.glob("*.log")))


def _version() -> tuple[int, ...]:
    """Returns the version of Slurm, such as (22, 5, 8)."""
    text = subprocess.run([program("slurmd"), "-V"], check=True, capture_output=True, text=True).stdout
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _gres(node: Node, devices: pathlib.Path) -> str:
    """Returns the node's line in gres.conf. Slurm tells a job its GPUs only if they have files."""
    if not node.gpus:
        return ""
    for number in range(node.gpus):
        device = devices / f"gpu{number}"
        if not device.exists():
            subprocess.run(["mknod", "-m", "666", device, "c", "1", "3"], check=True)
    return f"NodeName={node.name} Name=gpu File={devices}/gpu[0-{node.gpus - 1}]"


def host_of_job(slurm: Slurm, job: str) -> Host:
    """Returns the host on which a job runs."""
    return slurm.hosts[slurm.command("squeue", "-h", "-j", job, "-o", "%N").strip()]
