"""Errors that prevent the use of the Guild home, or of one run in it."""

import contextlib
import errno
from collections.abc import Iterator

# Errors of the file system rather than of one directory on it.
_OF_THE_HOME = frozenset(
    getattr(errno, name)
    for name in ("EROFS", "ENOSPC", "EDQUOT", "EIO", "ESTALE", "ENOTCONN", "ETIMEDOUT")
    if hasattr(errno, name)
)


class HomeUnavailable(Exception):
    """The Guild home cannot be used at the moment; the text says why."""


class RunUnusable(Exception):
    """One run cannot be used; the text says why. Other runs can."""


def problem_for(error: OSError, what: str) -> HomeUnavailable | RunUnusable:
    """Returns the exception to raise for an error of the operating system."""
    text = f"{what}: {error.strerror or error}"
    return HomeUnavailable(text) if error.errno in _OF_THE_HOME else RunUnusable(text)


@contextlib.contextmanager
def translated(message: str, *args: object) -> Iterator[None]:
    """Raises HomeUnavailable or RunUnusable for an OSError, with the message."""
    try:
        yield
    except OSError as e:
        raise problem_for(e, message % args) from e
