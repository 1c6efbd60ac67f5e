"""The kind of cluster, and the number of workers, that a text stands for.

Pure: text to values, or a ValueError that says what is accepted.
"""

import difflib
import enum
import re
from dataclasses import dataclass

JOB_QUEUES = ("slurm", "pbs", "sge", "lsf", "oar", "moab", "htcondor")

ACCEPTED_CLUSTERS = (
    "local, the address of a Dask scheduler (tcp://head:8786 or tls://head:8786), scheduler-file:PATH, a job queue "
    f"({', '.join(JOB_QUEUES)}), ssh:HOST,HOST,..., a Dask cluster class (package.module:Class), or pools as configured"
)

_ADDRESS = re.compile(r"(tcp|tls|ucx|ws|wss)://\S+", re.ASCII)
_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
_HOST = re.compile(r"[\w.@:\[\]-]+", re.ASCII)
_FILE = "scheduler-file:"
_SSH = "ssh:"


class Kind(enum.Enum):
    """The kinds of clusters."""

    LOCAL = "local"
    ADDRESS = "address"
    SCHEDULER_FILE = "scheduler file"
    JOB_QUEUE = "job queue"
    SSH = "ssh"
    CLASS = "class"
    POOLS = "pools"


@dataclass(frozen=True)
class ClusterChoice:
    """A kind of cluster, and its address, path, queue, hosts or class."""

    kind: Kind = Kind.LOCAL
    name: str = ""
    hosts: tuple[str, ...] = ()

    @property
    def is_ours(self) -> bool:
        """Returns whether we start and stop the cluster's workers."""
        return self.kind not in (Kind.ADDRESS, Kind.SCHEDULER_FILE)


_BY_NAME = {
    "": ClusterChoice(),
    "local": ClusterChoice(),
    "pools": ClusterChoice(Kind.POOLS, "pools"),
    **{name: ClusterChoice(Kind.JOB_QUEUE, name) for name in JOB_QUEUES},
}


@dataclass(frozen=True)
class WorkerCount:
    """A range of workers: as many as the waiting runs need, between least and most."""

    least: int
    most: int

    @property
    def is_elastic(self) -> bool:
        return self.least != self.most


def cluster_for_text(text: str) -> ClusterChoice:
    """Returns the cluster that a text such as `slurm` or `tcp://head:8786` stands for."""
    if text.lower() in _BY_NAME:
        return _BY_NAME[text.lower()]
    if text.startswith(_FILE) and len(text) > len(_FILE):
        return ClusterChoice(Kind.SCHEDULER_FILE, text[len(_FILE) :])
    if text.startswith(_SSH):
        hosts = tuple(part.strip() for part in text[len(_SSH) :].split(",") if part.strip())
        if hosts and all(_HOST.fullmatch(host) and not host.startswith("-") for host in hosts):
            return ClusterChoice(Kind.SSH, text, hosts)
    if _ADDRESS.fullmatch(text):
        return ClusterChoice(Kind.ADDRESS, text)
    if _CLASS.fullmatch(text) and not text.startswith(_SSH):
        return ClusterChoice(Kind.CLASS, text)
    raise ValueError(f"use {ACCEPTED_CLUSTERS}{_hint(text)}")


def _hint(text: str) -> str:
    near = difflib.get_close_matches(text.lower(), [name for name in _BY_NAME if name], n=1)
    return f"; did you mean {near[0]}?" if near else ""


def workers_for_text(text: str) -> WorkerCount:
    """Returns the range that a text such as `8` or `0..20` stands for."""
    least, dots, most = text.partition("..")
    if not dots:
        most = least
    if not all(re.fullmatch(r"\d{1,9}", part, re.ASCII) for part in (least, most)):
        raise ValueError("use a whole number of at least 1, or with a job queue a range such as 0..20")
    count = WorkerCount(int(least), int(most))
    if count.most < 1 or count.least > count.most:
        raise ValueError("use a whole number of at least 1, or with a job queue a range such as 0..20")
    return count
