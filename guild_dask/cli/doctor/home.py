"""Checks the Guild home: permissions, lock, clock, free space, and whether other hosts share it."""

import os
import pathlib
import shlex
import shutil
import socket
import time
from collections.abc import Iterator

from guild_dask.cli.doctor.finding import Finding, bad, good, note
from guild_dask.home import layout, run_queue
from guild_dask.home.errors import HomeUnavailable
from guild_dask.home.heartbeat import Heartbeat
from guild_dask.host import processes
from guild_dask.plan.units import format_size

# Types of shared file systems.
_SHARED = (
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "fuse.sshfs",
    "glusterfs",
    "gpfs",
    "lustre",
    "nfs",
    "pvfs2",
    "smb",
    "wekafs",
)
_FEW_BYTES = 1_000_000_000
_MOST_SKEW = 10.0

_OTHER_FOLDER = "set GUILD_HOME to the folder with your runs"


def findings(home: str, is_named: bool) -> Iterator[Finding]:
    """Yields the findings about a Guild home, which may not exist yet; `is_named` if the user selected it."""
    if not os.path.lexists(home):
        parent = _nearest(home)
        yield _missing(home, parent, is_named)
        yield _space(parent)
        yield _shared(parent)
        return
    problem = _writable(home) if os.path.isdir(home) else bad("home", f"{home} is not a folder", _OTHER_FOLDER)
    yield problem or good("home", f"{home} is writable")
    if problem is None:
        yield _lock(home)
        yield _clock(home)
    yield _space(home)
    yield _shared(home)


def _nearest(path: str) -> str:
    """Returns the nearest existing parent of a path."""
    parent = os.path.dirname(os.path.abspath(path))
    return parent if os.path.lexists(parent) else _nearest(parent)


def _missing(home: str, parent: str, is_named: bool) -> Finding:
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK | os.X_OK):
        remedy = f"give {_user()} write permission to {parent}, or set GUILD_HOME"
        return bad("home", f"{home} does not exist and cannot be created in {parent}", remedy)
    if is_named:
        # Guild creates its default home only.
        remedy = f"mkdir -p {shlex.quote(home)}, or {_OTHER_FOLDER}"
        return bad("home", f"{home} does not exist, and Guild creates only its default home", remedy)
    remedy = "if your runs are elsewhere, set GUILD_HOME"
    return note("home", f"{home} does not exist yet; the first 'guild run' creates it", remedy)


def _writable(home: str) -> Finding | None:
    remedy = f"give {_user()} write permission to {home}, or set GUILD_HOME"
    for folder in (pathlib.Path(layout.runs_dir(home)), layout.own_folder(home), layout.locks_folder(home)):
        there = folder if folder.exists() else pathlib.Path(home)
        probe = layout.probe(there, os.getpid())
        try:
            probe.write_text("")
            os.replace(probe, probe.with_suffix(".moved"))
            probe.with_suffix(".moved").unlink()
        except OSError as e:
            return bad("home", f"cannot write to {there}: {e.strerror or e}", remedy)
    return None


def _user() -> str:
    return os.environ.get("USER") or f"user {os.getuid()}"


def _lock(home: str) -> Finding:
    process = processes.identity(os.getpid())
    assert process is not None  # this process is alive
    try:
        with run_queue.GuildHome(home, Heartbeat(home, "doctor", process)).lock():
            return good("lock", "Guild's lock works")
    except HomeUnavailable as e:
        remedy = "end the process that holds it; on NFS, mount with locking (not 'nolock')"
        return bad("lock", str(e), remedy)


def _clock(home: str) -> Finding:
    """Returns whether this host's clock agrees with the clock of the file system, which all hosts share."""
    probe = layout.probe(pathlib.Path(home), os.getpid())
    try:
        probe.write_text("")
        skew = probe.stat().st_mtime - time.time()
        probe.unlink()
    except OSError as e:
        return bad("clock", f"cannot write to {home}: {e.strerror or e}", "free some space, or check the permissions")
    if abs(skew) > _MOST_SKEW:
        return bad(
            "clock", f"this host's clock differs from the Guild home's by {-skew:+.0f} s", "set up NTP on this host"
        )
    return good("clock", "this host's clock agrees with the Guild home's")


def _space(home: str) -> Finding:
    try:
        free = shutil.disk_usage(home).free
    except OSError as e:
        return bad("space", f"cannot read the free space: {e.strerror or e}", "check the permissions")
    if free < _FEW_BYTES:
        return bad("space", f"only {format_size(free)} free", "delete runs ('guild runs rm'), or move the Guild home")
    return good("space", f"{format_size(free)} free")


def _shared(home: str) -> Finding:
    kind, mounted = _mount(os.path.realpath(home))
    host = socket.gethostname()
    if not kind:
        return note("shared", "the type of its file system is unknown")
    if kind.startswith(_SHARED):
        return good("shared", f"it is on {kind} ({mounted}), a shared file system")
    return note(
        "shared",
        f"it is on {kind} ({mounted}), which is probably local to this host ({host})",
        "for workers on other hosts, move it to a shared file system, and set GUILD_HOME",
    )


def _mount(path: str) -> tuple[str, str]:
    """Returns the type and the mount point of a path's file system."""
    best = ("", "")
    try:
        lines = pathlib.Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return best
    for line in lines:
        _, point, kind, *_ = line.split()
        point = point.encode().decode("unicode_escape")
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best[1]):
            best = (kind, point)
    return best
