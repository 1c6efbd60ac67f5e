"""Files that others read and write: bounded reads, not answered from NFS's cache, and writes that are atomic.

What lies in a run directory may be anything: a pipe without a writer, a device, a file of any size. So every file
there is opened by this module, which opens regular files only, never waits, and reads no more than a limit.

An NFS client caches for up to a minute whether a file is there, and finds a file that another host has renamed under
its old name. It drops that cache when the folder is opened. So a file that another host may have made, renamed or
removed is read with the functions of this module, which open its folder first. On a local disk, that takes a few
microseconds.
"""

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, TypeVar

T = TypeVar("T")
Path = str | os.PathLike[str]

# The most bytes of a file that are read, unless its reader sets another limit.
MOST = 16_000_000

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A pipe is opened without waiting for a process at its other end, and a terminal does not become ours.
_AT_ONCE = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PIECE = 1 << 16

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def kind(mode: int) -> str:
    """Returns what has a mode that is not a file's, as text: `a named pipe`; empty for a regular file."""
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "something unknown")


def open_file(file: Path, flags: int = os.O_RDONLY, folder: int | None = None) -> int:
    """Returns a descriptor of a regular file; raises OSError if it is another kind. Never waits for another process.

    Here and below, the path of a file may begin at a folder that is open: what is done in it by its descriptor is done
    there, even if the folder is moved meanwhile.
    """
    return _open(file, flags, folder)[0]


def _open(file: Path, flags: int, folder: int | None) -> tuple[int, os.stat_result]:
    """Returns a descriptor of a regular file, and the file's status; raises OSError if it is another kind."""
    fd = os.open(file, flags | _AT_ONCE, 0o666, dir_fd=folder)
    try:
        status = os.fstat(fd)
        found = kind(status.st_mode)
        if found:
            raise OSError(errno.EINVAL, f"it is {found}, not a file", os.fspath(file))
    except OSError:
        os.close(fd)
        raise
    return fd, status


def opened(file: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Returns a regular file that is opened for reading, or as the flags say; raises OSError if it is another kind."""
    return os.fdopen(open_file(file, flags), "ab" if flags & os.O_WRONLY else "rb")


def content(file: Path, most: int = MOST, folder: int | None = None) -> bytes:
    """Returns the content of a regular file; raises OSError if it is another kind, or larger than the limit."""
    return content_and_status(file, most, folder)[0]


def content_and_status(file: Path, most: int = MOST, folder: int | None = None) -> tuple[bytes, os.stat_result]:
    """Returns the content of a file as content() does, and the file's status before it was read."""
    # open() takes three times as long, and tens of thousands of files are read.
    fd, status = _open(file, os.O_RDONLY, folder)
    try:
        is_larger = status.st_size > most
        found = part = b"" if is_larger else os.read(fd, _PIECE)
        while len(part) == _PIECE and len(found) <= most:  # a file gives less only at its end
            part = os.read(fd, _PIECE)
            found += part
    finally:
        os.close(fd)
    if is_larger or len(found) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most // 1000} kB", os.fspath(file))
    return found, status


def tail(file: Path, most: int) -> bytes:
    """Returns the end of a regular file, so many bytes at most; raises OSError if it is another kind."""
    with opened(file) as f:
        f.seek(max(0, os.fstat(f.fileno()).st_size - most))
        return f.read(most)


def refresh(*folders: Path) -> None:
    """Invalidates NFS's cache of these folders; missing ones are ignored."""
    for folder in folders:
        with contextlib.suppress(OSError, ValueError):  # no path has a null character
            os.close(os.open(folder, _FOLDER))


def _refresh_around(file: Path, levels: int) -> None:
    """Refreshes the folder of a file and those above it, the outermost first: each may have been made just now."""
    folder = os.path.dirname(file)
    if levels > 1:
        _refresh_around(folder, levels - 1)
    if levels:
        refresh(folder)


def current(file: Path, levels: int = 1, most: int = MOST) -> bytes:
    """Returns the content of a file as it is now; raises OSError. So many levels of folders may be new."""
    _refresh_around(file, levels)
    return content(file, most)


def read_text(file: Path, levels: int = 1, most: int = MOST) -> str:
    """Returns the text of a file as it is now; raises OSError or ValueError. So many levels of folders may be new."""
    return current(file, levels, most).decode()


def read_json(file: Path, levels: int = 0, most: int = MOST) -> Any:
    """Returns the data in a file of JSON; raises OSError or ValueError. So many levels of folders may be new."""
    try:
        return json.loads(read_text(file, levels, most))
    except RecursionError as e:
        raise ValueError("it is nested too deeply") from e


def exists(file: Path, levels: int = 1) -> bool:
    """Returns whether a file is there now. So many levels of folders may be new."""
    _refresh_around(file, levels)
    return os.path.exists(file)


def names(folder: Path) -> list[str]:
    """Returns the names in a folder now, none if it is missing; raises OSError if it cannot be read."""
    try:
        return os.listdir(folder)  # which opens it
    except FileNotFoundError:
        return []


def first(files: Sequence[Path], use: Callable[[Any], T | None]) -> T | None:
    """Returns the first result of using one of several files in one folder, of which some may be missing.

    Their folder is refreshed once. A use that raises FileNotFoundError or returns None is followed by the next.
    """
    refresh(os.path.dirname(files[0]))
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            result = use(file)
            if result is not None:
                return result
    return None


def remove(folder: Path, names_of_files: Iterable[str]) -> None:
    """Removes files from a folder in the given order, those of them that are there."""
    refresh(folder)
    for name in names_of_files:
        try:
            os.unlink(f"{os.fspath(folder)}/{name}")
        except FileNotFoundError:
            continue


def is_locked(file: Path) -> bool:
    """Returns whether a process holds flock's lock of a file; raises OSError if the file or its lock cannot be used."""
    fd = open_file(file)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def modified(file: Path) -> float:
    """Returns when a file was last written or touched, in seconds; raises OSError if that cannot be seen."""
    _refresh_around(file, 1)
    # NFS caches the time, too, until the file is opened.
    fd = os.open(file, os.O_RDONLY | _AT_ONCE)
    try:
        return os.fstat(fd).st_mtime
    finally:
        os.close(fd)


def copy(source: Path, target: Path) -> None:
    """Copies a regular file; raises OSError if the source or the target is something else."""
    with opened(source) as f, opened(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as copied:
        shutil.copyfileobj(f, copied, 1 << 20)


def overwrite(
    file: Path, data: str | bytes = b"", flags: int = os.O_CREAT | os.O_TRUNC, folder: int | None = None
) -> None:
    """Writes a file in place; raises OSError. A process that is killed meanwhile leaves a part of the content."""
    fd = open_file(file, os.O_WRONLY | flags, folder)
    with os.fdopen(fd, "wb", buffering=0) as f:
        left = memoryview(data.encode() if isinstance(data, str) else data)
        while left:
            left = left[f.write(left) :]


def write(file: Path, content: str | bytes, draft: str | None = None, folder: int | None = None) -> None:
    """Writes a file so that a reader sees the old content or all of the new; raises OSError with the old in place.

    The draft, a name in the same folder, is what the content is called until all of it is written. A process that is
    killed meanwhile leaves it.
    """
    target = pathlib.Path(file)
    written = target.with_name(draft or f".{target.name}.draft")
    try:
        overwrite(written, content, folder=folder)
        os.replace(written, target, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(written, dir_fd=folder)
        raise


@contextlib.contextmanager
def open_folder(folder: Path, within: int | None = None) -> Iterator[int]:
    """Holds a folder open, for files whose paths begin there; raises OSError if it is not a folder."""
    fd = os.open(folder, _FOLDER, dir_fd=within)
    try:
        yield fd
    finally:
        os.close(fd)


def remove_in(folder: int, *names_of_files: str) -> None:
    """Removes files from an open folder, those of them that are there."""
    for name in names_of_files:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
