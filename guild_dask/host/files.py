"""What other hosts have done, on a file system that answers from memory.

NFS says for up to a minute whether a file is there as it was when it last looked, and finds a file that another host
has renamed under its old name. It looks anew when a folder is opened. So whoever decides something by a file that
another host may have made, moved or removed has its folder opened first. On a disk, that takes a few microseconds.
"""

import contextlib
import os

_HOW = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def look_anew(*folders: str | os.PathLike[str]) -> None:
    """Has the next look at what is in these folders show what is there now. One that is not there is none."""
    for folder in folders:
        with contextlib.suppress(OSError):
            os.close(os.open(folder, _HOW))


def time_of(file: str | os.PathLike[str]) -> float:
    """Returns when a file was last written or touched, in seconds; raises OSError if that cannot be seen."""
    # Its own time is remembered, too, and looked at anew when the file is opened.
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(fd).st_mtime
    finally:
        os.close(fd)
