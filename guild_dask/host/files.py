"""Files that other hosts read and write: reads that are not answered from NFS's cache, and writes that are atomic.

An NFS client caches for up to a minute whether a file is there, and finds a file that another host has renamed under
its old name. It drops that cache when the folder is opened. So a file that another host may have made, renamed or
removed is read with the functions of this module, which open its folder first. On a local disk, that takes a few
microseconds.
"""

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")
Path = str | os.PathLike[str]

_HOW = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def refresh(*folders: Path) -> None:
    """Invalidates NFS's cache of these folders; missing ones are ignored."""
    for folder in folders:
        with contextlib.suppress(OSError):
            os.close(os.open(folder, _HOW))


def _refresh_around(file: Path, levels: int) -> None:
    """Refreshes the folder of a file and those above it, the outermost first: each may have been made just now."""
    folders = [pathlib.PurePath(file).parent]
    while len(folders) < levels:
        folders.append(folders[-1].parent)
    refresh(*reversed(folders))


def read_text(file: Path, levels: int = 1) -> str:
    """Returns the text of a file as it is now; raises OSError or ValueError. So many levels of folders may be new."""
    _refresh_around(file, levels)
    return pathlib.Path(file).read_text(encoding="utf-8")


def exists(file: Path, levels: int = 1) -> bool:
    """Tells whether a file is there now. So many levels of folders may be new."""
    _refresh_around(file, levels)
    return os.path.exists(file)


def names(folder: Path) -> list[str]:
    """Returns the names in a folder now, none if it is missing; raises OSError if it cannot be read."""
    try:
        return os.listdir(folder)  # which opens it
    except FileNotFoundError:
        return []


def first(files: Sequence[pathlib.Path], use: Callable[[pathlib.Path], T | None]) -> T | None:
    """Returns the first result of using one of several files in one folder, of which some may be missing.

    Their folder is refreshed once. A use that raises FileNotFoundError or returns None is followed by the next.
    """
    refresh(files[0].parent)
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


def modified(file: Path) -> float:
    """Returns when a file was last written or touched, in seconds; raises OSError if that cannot be seen."""
    _refresh_around(file, 1)
    # NFS caches the time, too, until the file is opened.
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(fd).st_mtime
    finally:
        os.close(fd)


def write(file: Path, content: str | bytes, draft: str | None = None) -> None:
    """Writes a file so that a reader sees the old content or all of the new; raises OSError with the old in place.

    The draft, a name in the same folder, is what the content is called until all of it is written. A process that is
    killed meanwhile leaves it.
    """
    target = pathlib.Path(file)
    written = target.with_name(draft or f".{target.name}.draft")
    try:
        written.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(written, target)
    except OSError:
        with contextlib.suppress(OSError):
            written.unlink(missing_ok=True)
        raise
