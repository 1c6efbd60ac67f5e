"""What other users of a host cannot do to workers and schedulers: connect to them, and give them modules to import."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from distributed import Client, Security

from guild_dask.cluster.base import ClusterError
from guild_dask.cluster.jobqueue import JobQueue, open_job_queue
from guild_dask.cluster.local import LocalCluster
from guild_dask.cluster.pool import WorkerPool
from guild_dask.host.private_folders import private_folder
from guild_dask.settings.cluster_spec import WorkerCount
from guild_dask.settings.settings import DashboardAddress
from tests.support.fake_queue import FakeQueue, fake_queue
from tests.support.other_user import run_as_other_user, shared_temporary_folder
from tests.support.sandbox import Sandbox, wait_until

# Sends the Dask server at an address a function to run, and prints the user id that it ran with.
INTRUDE = """
async def intrude(address):
    own = Security.temporary().get_connection_args("client") if address.startswith("tls") else None
    async with rpc(address, connection_args=own) as server:
        return await asyncio.wait_for(server.run_function(function=dumps(os.getuid)), 20)
try:
    print(asyncio.run(intrude(sys.argv[1]))["result"])
except (OSError, ValueError, asyncio.TimeoutError):
    print("refused")
"""
INTRUDE_IMPORTS = """
import asyncio, dask, distributed.comm.tcp, distributed.protocol, tornado.platform.asyncio
from distributed import Security
from distributed.core import rpc
from distributed.protocol.pickle import dumps
Security.temporary()
dask.config.set({"distributed.comm.timeouts.connect": "5s"})
"""

# Makes the folders that a worker may use, before it does.
BE_FIRST = """
for name in ("dask-scratch-space", "guild-dask-0", "guild-dask-0/dask-scratch-space"):
    path = os.path.join(sys.argv[1], name)
    os.mkdir(path)
    os.chmod(path, 0o777)
"""

# Replaces folders on the search path of a worker by others with a module `planted`.
PLANT = """
for path in sys.argv[1:]:
    try:
        if not os.access(path, os.W_OK):
            os.rename(path, path + "-before")
            os.mkdir(path)
        with open(os.path.join(path, "planted.py"), "w") as f:
            f.write("by = 'another user'")
    except OSError:
        continue
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """The folder for temporary files, in which another user has made the folders that Dask would use."""
    with shared_temporary_folder() as folder:
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr(tempfile, "tempdir", None)
        run_as_other_user(BE_FIRST, str(folder))
        yield folder


@pytest.fixture
def queue(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeQueue]:
    with fake_queue(tmp_path / "queue", monkeypatch) as queue:
        queue.write("jobs-start")
        yield queue


def wait_for_workers(pool: WorkerPool, queue: FakeQueue, workers: int) -> None:
    """Waits until a pool's jobs have brought workers."""

    def have_come() -> bool:
        queue.adjust(pool, workers)
        return len(pool.workers()) == workers

    wait_until(
        have_come, describe=lambda: (queue.events, [each.read_text() for each in queue.folder.glob("job-*/out")])
    )


@contextlib.contextmanager
def client_of(pool: WorkerPool, queue: FakeQueue) -> Iterator[Client]:
    """Yields a client of a pool, with the certificates that the scripts of its jobs name."""
    script = (queue.folder / "job-1" / "script").read_text()
    ca, certificate, key = (re.findall(rf"--tls-{name} (\S+)", script)[0] for name in ("ca-file", "cert", "key"))
    security = Security(tls_ca_file=ca, tls_client_cert=certificate, tls_client_key=key, require_encryption=True)
    with Client(pool.address, security=security, set_as_default=False) as client:
        yield client


def in_workers(client: Client, expression: str, nanny: bool = False) -> list[Any]:
    """Returns the value of an expression in each worker, or in each nanny."""
    return list(client.run(eval, expression, nanny=nanny).values())


@pytest.mark.parametrize("chosen", [None, "tcp://"])
def test_another_user_cannot_run_code_in_a_scheduler_on_loopback(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    options = {"host": "127.0.0.1", **({"protocol": chosen} if chosen else {})}
    with (
        fake_queue(tmp_path / "queue", monkeypatch, **{"scheduler-options": options}) as queue,
        queue.pool(most=1) as pool,
    ):
        where = f"127.0.0.1:{pool.address.rpartition(':')[2]}"
        got = [run_as_other_user(INTRUDE, f"{each}://{where}", imports=INTRUDE_IMPORTS) for each in ("tcp", "tls")]
    # Without encryption, which the user has to choose, anyone can: that shows that this test would notice.
    assert got == (["0", "refused"] if chosen else ["refused", "refused"])


def test_missing_package_for_encryption_is_an_error_that_names_it(queue: FakeQueue, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(
        ClusterError, match=r"^encrypted connections need the package cryptography: pip install [^\n]*$"
    ):
        open_job_queue(JobQueue("slurm", {}, str(queue.folder), {}), WorkerCount(0, 1), None, queue.common())


@pytest.mark.parametrize("processes", [1, 2])
def test_another_user_cannot_give_a_worker_of_a_job_a_module(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, temporary: pathlib.Path, processes: int
) -> None:
    settings = {"processes": processes, "cores": processes, "nanny": processes > 1}
    with fake_queue(tmp_path / "queue", monkeypatch, **settings) as queue:
        queue.write("jobs-start")
        with queue.pool(most=1) as pool:
            wait_for_workers(pool, queue, processes)
            with client_of(pool, queue) as client:
                for nanny in {False, processes > 1}:
                    for path in in_workers(client, "__import__('sys').path", nanny):
                        run_as_other_user(PLANT, *filter(None, path))
                    found = in_workers(client, "__import__('importlib.util').util.find_spec('planted')", nanny)
                    assert found == [None] * len(found)


def test_another_user_cannot_give_the_scheduler_a_module(temporary: pathlib.Path, user: Sandbox) -> None:
    code = (
        "import importlib.util, json, sys\n"
        "from guild_dask.cluster.local import LocalCluster\n"
        "cluster = LocalCluster(1, {}, None, print)\n"
        "print(json.dumps(sys.path), flush=True)\n"
        "sys.stdin.readline()\n"
        "print(importlib.util.find_spec('planted'))\n"
        "cluster.close()"
    )
    environ = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ, cwd="/"
    )
    with process:
        assert process.stdout
        path = json.loads(process.stdout.readline())
        assert path[0].startswith(str(temporary))
        run_as_other_user(PLANT, *filter(None, path))
        assert process.communicate("\n")[0].strip() == "None"


def test_folder_that_another_user_made_or_linked_is_not_used(temporary: pathlib.Path, tmp_path: pathlib.Path) -> None:
    found = private_folder(str(temporary))
    assert os.path.dirname(found) == str(temporary)
    assert (os.stat(found).st_uid, os.stat(found).st_mode & 0o777) == (0, 0o700)
    os.symlink(tmp_path, temporary / "linked")
    (temporary / "open").mkdir()
    (temporary / "open").chmod(0o777)
    assert os.path.dirname(private_folder(str(temporary / "open"))) == str(temporary), "others could rename it"
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    assert private_folder(str(own)) == str(own)


def listening(pid: int) -> list[tuple[str, int]]:
    """Returns the addresses that a process and its children listen on."""
    process = psutil.Process(pid)
    found = [each for one in (process, *process.children(recursive=True)) for each in one.net_connections("all")]
    return [each.laddr for each in found if each.status == psutil.CONN_LISTEN]


@pytest.mark.parametrize("processes", [1, 2])
def test_worker_of_a_job_listens_only_where_dask_needs_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    settings = {"processes": processes, "cores": processes, "nanny": processes > 1}
    with fake_queue(tmp_path / "queue", monkeypatch, **settings) as queue:
        queue.write("jobs-start")
        with queue.pool(most=1) as pool:
            wait_for_workers(pool, queue, processes)
            (pid,) = queue.lines("pids")
            there = listening(int(pid))
    assert {address for address, _ in there} == {"127.0.0.1"}, "the configured interface is lo"
    assert len(there) == (1 if processes == 1 else 2 * processes), "one port for each worker and each nanny"


@pytest.mark.parametrize("dashboard", [None, DashboardAddress("127.0.0.1", 0)])
def test_local_cluster_listens_only_for_its_dashboard(user: Sandbox, dashboard: DashboardAddress | None) -> None:
    before = listening(os.getpid())
    cluster = LocalCluster(1, {}, dashboard, json.dumps)
    try:
        there = [each for each in listening(os.getpid()) if each not in before]
    finally:
        cluster.close()
    assert [address for address, _ in there] == (["127.0.0.1"] if dashboard else [])
