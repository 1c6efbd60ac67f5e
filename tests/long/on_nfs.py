"""A Guild home on NFS, seen by two hosts: a scheduler on one, a worker on the other.

    python -m tests.long.on_nfs

Each host has a mount of its own, and so its own cache, which can be up to a minute old. Runs complete, fail and are
retried, and are stopped from the other host. Guild's status of each run, its attempts, its output in the scheduler's
log and the files left beside the claims must be the same as on a local disk.

Needs root and a kernel with NFS. If the kernel has none, as in many containers and small virtual machines, the test
runs in a virtual machine (some ten minutes), which needs:

    apt install qemu-system-x86 linux-image-amd64 nfs-kernel-server nfs-common busybox-static cpio kmod
"""

import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from typing import IO, Any

from tests.support.sandbox import PROJECT, wait_until
from tests.systems import virtual_machine
from tests.systems.needs import Missing, program, root_on_linux

_LONGEST = 3000.0
_SHARED = pathlib.Path("/srv/guild-dask-nfs/shared")
_DISK = pathlib.Path("/srv/guild-dask-nfs/disk")
_EXPORT = "127.0.0.0/8(rw,sync,fsid=0,no_root_squash,no_subtree_check,insecure)"

_GUILD_FILE = """\
quick: {exec: sh -c "echo quick-output"}
bad: {exec: sh -c "echo bad-output; exit 3"}
slow: {exec: sleep 600}
"""

# A host: its name, its own mount, and a command in the project. Each mounts the server by another address, because the
# server takes two mounts of one address for the same client.
_ADDRESSES = {"one": "127.0.0.1", "two": "127.0.0.2"}
_HOST = f"""
hostname $0 && mount -t nfs4 -o vers=4.2,nosharecache $1:/ {_SHARED} && cd {_SHARED}/project && shift && exec "$@"
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the test, here or in a virtual machine; returns 1 if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.on_nfs", description="A Guild home on NFS.")
    parser.add_argument("--here", action="store_true", help="in this machine, whatever its kernel seems to have")
    options = parser.parse_args(arguments)
    try:
        root_on_linux()
        if options.here or _has_nfs():
            return _tell_here()
        return _tell_in_machine()
    except Missing as e:
        _say(str(e))
        return 1


def _has_nfs() -> bool:
    return all(subprocess.run([program("modprobe"), name], check=False).returncode == 0 for name in ("nfsd", "nfsv4"))


def _tell_in_machine() -> int:
    words = shlex.join([sys.executable, "-m", "tests.long.on_nfs", "--here"])
    with tempfile.TemporaryDirectory(prefix="guild-dask-nfs-", dir="/var/tmp") as folder:
        _say("This kernel has no NFS; the story is told in a virtual machine.")
        command = f"cd {shlex.quote(str(PROJECT))} && for m in nfsd nfsv4; do modprobe $m; done && {words}"
        code, output = virtual_machine.run(command, pathlib.Path(folder), _LONGEST)
    _say(output)
    return 1 if code is None else code


def _tell_here() -> int:
    _serve()
    for folder in ("project", "guild-home"):
        (_DISK / folder).mkdir()
    (_DISK / "project" / "guild.yml").write_text(_GUILD_FILE)
    file = _SHARED / "scheduler.json"
    listens = "--host 127.0.0.1 --port 0 --no-dashboard"
    works = "--nthreads 2 --name two --no-nanny --no-dashboard --local-directory /var/tmp/two"
    dask = [_start("one", *f"dask scheduler {listens} --scheduler-file {file}".split())]
    wait_until((_DISK / "scheduler.json").exists, _LONGEST, "the Dask scheduler")
    dask.append(_start("two", *f"dask worker {works} --scheduler-file {file}".split()))
    try:
        wrong = _tell(file)
    finally:
        for process in dask:
            process.kill()
    _say("\n".join(wrong) or "well: all is as on a disk")
    return int(bool(wrong))


def _tell(file: pathlib.Path) -> list[str]:
    """Runs the test, and returns what was wrong."""
    for words in ("quick --run-id aaa", "bad --run-id bbb --tag dask-retries:1", "slow --run-id ccc"):
        _do("one", "guild", "run", *words.split(), "--stage", "-y")
    log = _DISK / "log"
    with log.open("w") as output:
        flags = f"cluster=scheduler-file:{file} run-once=yes lease=600 dashboard-address=no"
        scheduler = _start("one", "guild", *f"run dask:scheduler {flags} -y".split(), output=output)
        claim = _DISK / "guild-home" / "dask" / "claims" / "ccc.started"
        wait_until(claim.exists, _LONGEST, "the start of ccc")
        _do("two", "guild-dask", "stop", "ccc")
        scheduler.wait(_LONGEST)
    _say(log.read_text())
    runs = _do("two", "guild", "runs", "--json")
    _say(_do("two", "guild", "runs"))
    return list(_wrong(log.read_text(), runs))


def _wrong(log: str, runs: str) -> list[str]:
    claims = sorted(path.name for path in (_DISK / "guild-home" / "dask" / "claims").iterdir())
    expected = {"aaa": "completed", "bbb": "error", "ccc": "terminated"}
    found = {name: _status(runs, name) for name in expected}
    wrong = [f"{name} is {found[name]}, not {expected[name]}" for name in expected if found[name] != expected[name]]
    wrong += [f"beside claims: {', '.join(claims)}"] if claims else []
    for text in ("is staged again for attempt 2", "1 run(s) completed, 1 failed, 1 terminated, 0 left staged"):
        wrong += [] if text in log else [f"the log has no {text!r}"]
    for text, count in (("quick-output", 1), ("bad-output", 2)):
        wrong += [] if log.count(text) == count else [f"{text!r} is {log.count(text)} times in the log, not {count}"]
    return wrong


def _status(runs: str, run_id: str) -> str:
    return next((run["status"] for run in json.loads(runs) if run["id"] == run_id), "not there")


def _serve() -> None:
    """Serves a file system in memory by NFS, to this machine only."""
    for folder in (_SHARED, _DISK):
        folder.mkdir(parents=True, exist_ok=True)
    exports = pathlib.Path("/etc/exports.d/guild-dask-nfs.exports")
    exports.parent.mkdir(exist_ok=True)
    exports.write_text(f"{_DISK} {_EXPORT}\n")
    pathlib.Path("/var/lib/nfs/v4recovery").mkdir(parents=True, exist_ok=True)
    for command in (
        f"mount -t tmpfs guild-dask {_DISK}",
        "mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd",
        "exportfs -ra",
        "rpc.nfsd --no-nfs-version 3 --host 127.0.0.1 --host 127.0.0.2 8",
        "rpc.mountd --no-nfs-version 3",
    ):
        subprocess.run(command, shell=True, check=True)


def _environ() -> dict[str, str]:
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))
    slow = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "300s", "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "300s"}
    own = {"GUILD_HOME": str(_SHARED / "guild-home"), "PYTHONPATH": str(PROJECT), "LC_ALL": "C.UTF-8"}
    return {"PATH": path, "HOME": "/root", **own, **slow}


def _start(host: str, *words: str, output: IO[str] | int | None = None) -> "subprocess.Popen[str]":
    """Starts a command on a host."""
    command = [program("unshare"), "--mount", "--uts", "sh", "-c", _HOST, host, _ADDRESSES[host], *words]
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env=_environ(), text=True, **streams)


def _do(host: str, *words: str) -> str:
    """Runs a command on a host to its end, and returns what it printed; it must succeed."""
    process = _start(host, *words, output=subprocess.PIPE)
    text, _ = process.communicate(timeout=_LONGEST)
    if process.returncode != 0:
        raise AssertionError(f"on {host}: {shlex.join(words)}\n{text}")
    return text


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
