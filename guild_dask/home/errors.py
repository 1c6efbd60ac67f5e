"""What keeps us from using the Guild home, or one run of it."""

import contextlib
import errno
from collections.abc import Iterator

# What is wrong with the file system rather than with one directory on it.
_OF_THE_HOME = frozenset(
    getattr(errno, name)
    for name in ("EROFS", "ENOSPC", "EDQUOT", "EIO", "ESTALE", "ENOTCONN", "ETIMEDOUT")
    if hasattr(errno, name)
)


class HomeUnavailable(Exception):
    """The Guild home cannot be used at the moment; the text says why."""


class RunUnusable(Exception):
    """One run cannot be used; the text says why. Others can."""


def problem_for(error: OSError, what: str) -> HomeUnavailable | RunUnusable:
    """Returns what an error of the operating system means for us, to be raised."""
    text = f"{what}: {error.strerror or error}"
    return HomeUnavailable(text) if error.errno in _OF_THE_HOME else RunUnusable(text)


@contextlib.contextmanager
def translated(message: str, *args: object) -> Iterator[None]:
    """Raises what an error of the operating system means for us."""
    try:
        yield
    except OSError as e:
        raise problem_for(e, message % args) from e
