"""Folders for temporary files that no other user of the host can read, write or replace."""

import os
import pathlib
import stat
import tempfile
from collections.abc import Iterable


def private_folder(*parents: str | None) -> str:
    """Returns a folder of this user's own: the first of these parents that is safe, or a folder in it.

    If none of them is safe, it is in the system's folder for temporary files or in the user's cache. Raises OSError
    if it cannot be made anywhere.
    """
    candidates = [*filter(None, parents), tempfile.gettempdir(), os.path.expanduser("~/.cache")]
    parent = next((each for each in map(_made, candidates) if each and _is_safe(each)), _made(candidates[-1]))
    if parent is None:
        raise OSError(f"{candidates[-1]} cannot be written to")
    if _is_own(parent):
        return parent
    path = os.path.join(parent, f"guild-dask-{os.getuid()}")
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not _is_own(path):  # another user was first
            return tempfile.mkdtemp(prefix="guild-dask-", dir=parent)
    return path


def _made(folder: str) -> str | None:
    """Returns the real path of a folder, which is made if it is missing; None if it cannot be made or written to."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return None
    return os.path.realpath(folder) if os.access(folder, os.W_OK | os.X_OK) else None


def _is_own(path: str) -> bool:
    """Returns whether a path is a folder, not a link to one, of this user that no other user can open."""
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _is_safe(folder: str) -> bool:
    """Returns whether no other user but root can rename what this user makes in a folder, or the folder itself."""
    return all(map(_keeps_names, _with_parents(folder)))


def _with_parents(folder: str) -> Iterable[str]:
    path = pathlib.Path(folder)
    return map(str, (path, *path.parents))


def _keeps_names(folder: str) -> bool:
    found = os.stat(folder)
    others_can_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    return found.st_uid in (0, os.getuid()) and not others_can_write
