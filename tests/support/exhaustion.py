"""A host that is short of something: small disks that a test fills, and an ordinary user with low limits."""

import contextlib
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence

import pytest

# A user without any process. Root, which runs the tests, has no limit on processes.
NOBODY = 54321


def needs(what: str, error: Exception) -> None:
    """Skips the test on a developer's machine, and raises the error in CI."""
    if os.environ.get("CI") == "true":
        raise error
    pytest.skip(f"{what}: {error}")


@contextlib.contextmanager
def disk(kind: str, folder: pathlib.Path, image: pathlib.Path, size: int = 8 << 20) -> Iterator[pathlib.Path]:
    """Mounts a small file system, in memory or of kind ext4 in an image, over a folder."""
    try:
        if kind == "tmpfs":
            _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
        else:
            with image.open("wb") as f:
                f.truncate(size)
            _run(shutil.which("mkfs.ext4", path="/sbin:/usr/sbin") or "mkfs.ext4", "-q", "-m", "0", str(image))
            _run("mount", "-o", "loop", str(image), str(folder))
    except (OSError, subprocess.CalledProcessError) as e:
        needs(f"cannot mount a {kind}", e)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def fill(path: pathlib.Path, leave: int) -> None:
    """Fills the disk with one file, and leaves so many bytes free."""
    with path.open("wb", buffering=0) as f:
        with contextlib.suppress(OSError):
            while f.write(b"\0" * 4096):
                pass
        os.fsync(f.fileno())
        f.truncate(max(0, f.tell() - leave))


def give_to_nobody(root: pathlib.Path) -> None:
    """Makes an ordinary user the owner of all files of a sandbox, which it can reach."""
    for folder, _, names in os.walk(root):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def as_nobody(*limits: str) -> Sequence[str]:
    """Returns the words before a command that run it as that user, with limits such as `--nproc=25`.

    The user may read all files, so that Python and the project can be anywhere.
    """
    if os.getuid() != 0 or not shutil.which("setpriv") or not shutil.which("prlimit"):
        needs("cannot become another user", PermissionError("this needs root, setpriv and prlimit"))
    rights = "-all,+dac_read_search"
    who = (f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", f"--inh-caps={rights}")
    return ("setpriv", *who, f"--ambient-caps={rights}", "prlimit", *limits)
