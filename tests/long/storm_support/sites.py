"""The sites of a storm, a Slurm and a Grid Engine, and what administrators and failures do to jobs and nodes there."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from tests.support.sandbox import Sandbox, run_command
from tests.systems.gridengine import GridEngine
from tests.systems.hosts import Host, clean_environ
from tests.systems.site import configure
from tests.systems.slurm import Slurm


class Job(NamedTuple):
    """A job that waits or runs."""

    number: str
    node: str  # empty: it waits


class Refused(Exception):
    """The job queue has refused a command: the job has just ended, or is not in a state for it."""


@dataclass(frozen=True)
class Act:
    """Something that happens to a job, or to its node."""

    name: str
    do: Callable[[Job], object]
    undo: Callable[[Job], object] | None = None
    undone_after: tuple[float, float] | None = None  # seconds; None: at the end of the round
    weight: float = 1.0
    needs_node: bool = True  # it is done to running jobs only
    is_hard: bool = False  # processes are killed without a signal to end before
    suspends: bool = False  # its processes do nothing until it is undone
    cuts_off: bool = False  # the node is gone, and nothing on it can leave a record


class Site(ABC):
    """A job queue whose jobs are workers."""

    kind: str  # of the queue, as the flag `cluster` has it
    acts: Sequence[Act]

    @property
    @abstractmethod
    def variables(self) -> Mapping[str, str]:
        """Returns the variables that its users need."""

    @property
    @abstractmethod
    def guild(self) -> Sequence[str]:
        """Returns the command `guild` on its submit host."""

    @property
    @abstractmethod
    def hosts(self) -> Sequence[Host]:
        """Returns the hosts on which its jobs run."""

    @abstractmethod
    def configure(self, user: Sandbox) -> None:
        """Configures dask-jobqueue for a user."""

    @abstractmethod
    def jobs(self) -> list[Job]:
        """Returns the jobs that wait or run."""

    @abstractmethod
    def heal(self) -> None:
        """Ends all jobs and undoes all that was done to nodes."""

    def processes(self) -> list[psutil.Process]:
        """Returns the processes of jobs on all hosts."""
        return [process for host in self.hosts if host.is_on for process in host.processes("python")]


class SlurmSite(Site):
    """A Slurm whose nodes are hosts of their own."""

    kind = "slurm"

    def __init__(self, system: Slurm) -> None:
        self.system = system
        self.acts = (
            Act("scancel", self._on_job("scancel"), needs_node=False, weight=3.0),
            Act("scancel -s KILL", self._on_job("scancel", "--full", "--signal=KILL"), is_hard=True, weight=2.0),
            Act("scancel -s TERM", self._on_job("scancel", "--full", "--signal=TERM"), weight=2.0),
            Act("requeue", self._on_job("scontrol", "requeue"), weight=2.0),
            Act(
                "suspend",
                self._on_job("scontrol", "suspend"),
                self._on_job("scontrol", "resume"),
                (0.1, 4.0),
                2.0,
                suspends=True,
            ),
            Act("drain", self._set("DRAIN"), self._set("RESUME")),
            Act("node down", self._set("DOWN"), self._set("RESUME"), weight=1.5),
            Act("node fail", self._set("FAIL"), self._set("RESUME")),
            Act("slurmd killed", self._kill_slurmd, self._start_slurmd, (0.5, 20.0), is_hard=True),
            Act("power off", self._switch_off, self._switch_on, weight=0.3, is_hard=True, cuts_off=True),
        )

    @property
    def variables(self) -> Mapping[str, str]:
        return self.system.variables

    @property
    def guild(self) -> Sequence[str]:
        return ("guild",)

    @property
    def hosts(self) -> Sequence[Host]:
        return tuple(self.system.hosts.values())

    def configure(self, user: Sandbox) -> None:
        address = {"scheduler_options": {"host": self.system.network.address}, "interface": "eth0"}
        configure(user, self.kind, **address)

    def jobs(self) -> list[Job]:
        # Without those that Slurm completes: their processes are gone, or their node does not answer.
        listed = self._run("squeue", "-h", "-t", "PD,CF,R,S", "-o", "%A|%N").splitlines()
        return [Job(*line.strip().split("|")) for line in listed]

    def heal(self) -> None:
        for name, state in self.system.states().items():
            if state.rstrip("*").startswith("fail"):  # which reset() does not know
                self._run("scontrol", "update", f"NodeName={name}", "State=RESUME")
        self.system.reset()

    def _run(self, *words: str) -> str:
        done = run_command(words, {**clean_environ(), **self.variables}, "/")
        if done.exit_code != 0:
            raise Refused(str(done))
        return done.output

    def _on_job(self, *words: str) -> Callable[[Job], object]:
        return lambda job: self._run(*words, job.number)

    def _set(self, state: str) -> Callable[[Job], object]:
        reason = () if state == "RESUME" else ("Reason=storm",)
        return lambda job: self._run("scontrol", "update", f"NodeName={job.node}", f"State={state}", *reason)

    def _kill_slurmd(self, job: Job) -> None:
        self.system.kill_slurmd(job.node)

    def _start_slurmd(self, job: Job) -> None:
        if self.system.hosts[job.node].is_on and not self.system.slurmd(job.node):
            self.system.start_node(job.node)

    def _switch_off(self, job: Job) -> None:
        self.system.hosts[job.node].switch_off()

    def _switch_on(self, job: Job) -> None:
        self.system.hosts[job.node].switch_on()
        self.system.start_node(job.node)


class GridEngineSite(Site):
    """A Grid Engine on one host."""

    kind = "sge"

    def __init__(self, system: GridEngine) -> None:
        self.system = system
        self.acts = (
            Act("qdel", self._on_job("qdel {}"), needs_node=False, weight=3.0, is_hard=True),
            Act("qdel -f", self._on_job("qdel -f {}"), needs_node=False, is_hard=True),
            Act(
                "suspend",
                self._on_job("qmod -sj {}"),
                self._on_job("qmod -usj {}"),
                (0.1, 4.0),
                weight=2.0,
                suspends=True,
            ),
            Act(
                "suspend queue",
                self._on_job("qmod -sq main"),
                self._on_job("qmod -usq main"),
                (0.1, 4.0),
                suspends=True,
            ),
            Act("disable queue", self._on_job("qmod -d main"), self._on_job("qmod -e main"), (0.1, 6.0)),
            Act("reschedule", self._on_job("qmod -f -rj {}"), is_hard=True),
        )

    @property
    def variables(self) -> Mapping[str, str]:
        return self.system.variables

    @property
    def guild(self) -> Sequence[str]:
        return self.system.host.command("guild")

    @property
    def hosts(self) -> Sequence[Host]:
        return (self.system.host,)

    def configure(self, user: Sandbox) -> None:
        configure(user, self.kind, interface="lo", queue="main")

    def jobs(self) -> list[Job]:
        return [Job(job, self.system.host.name if "r" in state else "") for job, state in self.system.jobs().items()]

    def heal(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.system.command("qmod -usq main; qmod -e main; qmod -c main")
        self.system.reset()

    def _on_job(self, script: str) -> Callable[[Job], object]:
        def do(job: Job) -> None:
            try:
                self.system.command(script.format(job.number))
            except RuntimeError as e:
                raise Refused(str(e)) from e

        return do
