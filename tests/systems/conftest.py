"""Fixtures for the systems. Each is started when a test first uses it, and ends with the tests, even if they fail.

Each test finds a system in its initial state, whatever the previous test has done to it.
"""

import contextlib
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from tests.support.sandbox import Sandbox
from tests.systems.gridengine import GridEngine
from tests.systems.hosts import Network, network
from tests.systems.htcondor import HTCondor
from tests.systems.journal import Journal
from tests.systems.needs import Missing, give_up
from tests.systems.oar import OAR
from tests.systems.openssh import OpenSSH
from tests.systems.slurm import Node, Slurm

T = TypeVar("T")

# Two nodes with GPUs and one without, as on most sites.
_NODES = (Node("n1"), Node("n2"), Node("n3", gpus=0))


@contextlib.contextmanager
def _running(system: Callable[[Network], T]) -> Iterator[T]:
    # The folder has a short name, because paths of sockets are limited.
    with tempfile.TemporaryDirectory(prefix="systems-", ignore_cleanup_errors=True) as folder:
        try:
            with network(pathlib.Path(folder).resolve()) as hosts:
                yield system(hosts)
        except Missing as reason:
            give_up(reason)


@pytest.fixture(scope="session")
def running_slurm() -> Iterator[Slurm]:
    with _running(lambda hosts: Slurm(hosts, _NODES)) as system:
        yield system


@pytest.fixture(scope="session")
def running_gridengine() -> Iterator[GridEngine]:
    with _running(GridEngine) as system:
        yield system


@pytest.fixture(scope="session")
def running_openssh() -> Iterator[OpenSSH]:
    with _running(lambda hosts: OpenSSH(hosts, ("h1", "h2"))) as system:
        yield system


@pytest.fixture(scope="session")
def running_htcondor() -> Iterator[HTCondor]:
    with _running(lambda hosts: HTCondor(hosts, ("n1", "n2"))) as system:
        yield system


@pytest.fixture(scope="session")
def running_oar() -> Iterator[OAR]:
    with _running(lambda hosts: OAR(hosts, ("n1", "n2"))) as system:
        yield system


@pytest.fixture
def slurm(running_slurm: Slurm) -> Iterator[Slurm]:
    """A Slurm with three idle nodes."""
    yield running_slurm
    running_slurm.reset()


@pytest.fixture
def gridengine(running_gridengine: GridEngine) -> Iterator[GridEngine]:
    """A Grid Engine without jobs."""
    yield running_gridengine
    running_gridengine.reset()


@pytest.fixture
def openssh(running_openssh: OpenSSH) -> Iterator[OpenSSH]:
    """Two hosts with an sshd."""
    yield running_openssh
    running_openssh.reset()


@pytest.fixture
def htcondor(running_htcondor: HTCondor) -> Iterator[HTCondor]:
    """An HTCondor without jobs."""
    yield running_htcondor
    running_htcondor.reset()


@pytest.fixture
def oar(running_oar: OAR) -> Iterator[OAR]:
    """An OAR without jobs."""
    yield running_oar
    running_oar.reset()


@pytest.fixture
def journal(user: Sandbox) -> Journal:
    """The journal of the operation `work`."""
    return Journal(user)
