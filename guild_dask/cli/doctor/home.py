"""Can the Guild home be used, from here and from other hosts?"""

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
from guild_dask.home.heartbeat import Presence
from guild_dask.host import processes
from guild_dask.monitor.formatting import size

# File systems that hosts share.
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


def findings(home: str, is_named: bool) -> Iterator[Finding]:
    """Yields what was found about a Guild home, or about where it is to be; the user may have named it."""
    if not os.path.lexists(home):
        parent = _nearest(home)
        yield _to_be_made(home, parent, is_named)
        yield _space(parent)
        yield _shared(parent)
        return
    problem = _writable(home)
    yield problem or good("home", f"{home} can be written to")
    if problem is None:
        yield _lock(home)
        yield _clock(home)
    yield _space(home)
    yield _shared(home)


def _nearest(path: str) -> str:
    """Returns the folder that a path that is not there would be in, or the nearest one above that is."""
    parent = os.path.dirname(os.path.abspath(path))
    return parent if os.path.lexists(parent) else _nearest(parent)


def _to_be_made(home: str, parent: str, is_named: bool) -> Finding:
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK | os.X_OK):
        remedy = f"see to it that {_user()} may write to {parent}, or set GUILD_HOME"
        return bad("home", f"{home} is not there, and cannot be made in {parent}", remedy)
    if is_named:
        # Guild makes its default home and no other.
        remedy = f"mkdir -p {shlex.quote(home)}, or set GUILD_HOME to where your runs are"
        return bad("home", f"{home} is not there, and Guild does not make a home that is given to it", remedy)
    remedy = "if your runs are elsewhere, set GUILD_HOME"
    return note("home", f"{home} is not there yet; the first 'guild run' makes it", remedy)


def _writable(home: str) -> Finding | None:
    remedy = f"see to it that {_user()} may write to {home}, or set GUILD_HOME"
    for folder in (pathlib.Path(layout.runs_dir(home)), layout.own_folder(home), layout.locks_folder(home)):
        there = folder if folder.exists() else pathlib.Path(home)
        probe = there / f".guild-dask-doctor-{os.getpid()}"
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
    assert process is not None  # we are alive
    try:
        with run_queue.GuildHome(home, Presence(home, "doctor", process)).lock():
            return good("lock", "Guild's lock works")
    except HomeUnavailable as e:
        remedy = "end the process that holds it; on NFS, mount with a lock daemon (not 'nolock')"
        return bad("lock", str(e), remedy)


def _clock(home: str) -> Finding:
    """Returns whether the file system's clock, which all hosts see, is that of this host."""
    probe = pathlib.Path(home, f".guild-dask-doctor-{os.getpid()}")
    try:
        probe.write_text("")
        skew = probe.stat().st_mtime - time.time()
        probe.unlink()
    except OSError as e:
        return bad("clock", f"cannot write to {home}: {e.strerror or e}", "free some space, or see to permissions")
    if abs(skew) > _MOST_SKEW:
        return bad(
            "clock", f"this host's clock is {-skew:+.0f} s off that of the Guild home", "set up NTP on this host"
        )
    return good("clock", "this host and the Guild home agree on the time")


def _space(home: str) -> Finding:
    try:
        free = shutil.disk_usage(home).free
    except OSError as e:
        return bad("space", f"cannot see: {e.strerror or e}", "see to permissions")
    if free < _FEW_BYTES:
        return bad("space", f"only {size(free)} are free", "delete runs ('guild runs rm'), or move the Guild home")
    return good("space", f"{size(free)} are free")


def _shared(home: str) -> Finding:
    kind, mounted = _mount(os.path.realpath(home))
    host = socket.gethostname()
    if not kind:
        return note("shared", "cannot see what kind of file system it is on")
    if kind.startswith(_SHARED):
        return good("shared", f"it is on {kind} ({mounted}), which other hosts can see, too")
    return note(
        "shared",
        f"it is on {kind} ({mounted}), which is probably this host's ({host}) own",
        "for workers on other hosts, move it to a file system that all of them see, and set GUILD_HOME",
    )


def _mount(path: str) -> tuple[str, str]:
    """Returns the kind of file system that a path is on, and where that is mounted."""
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
