"""Errors that prevent the use of the Guild home, or of one run in it."""

import contextlib
import errno
from collections.abc import Iterator

from guild_dask.host import shortage

# Errors of the file system, or of this host, rather than of one directory.
_OF_THE_HOME = shortage.ERRORS | frozenset(
    getattr(errno, name) for name in ("EROFS", "EIO", "ESTALE", "ENOTCONN", "ETIMEDOUT") if hasattr(errno, name)
)


# Of these, errors that may concern one file or one mounted folder only.
_OF_A_FILE = frozenset(
    getattr(errno, name) for name in ("EIO", "ESTALE", "ENOTCONN", "ETIMEDOUT") if hasattr(errno, name)
)


class HomeUnavailable(Exception):
    """The Guild home cannot be used at the moment; the text says why."""


class RunUnusable(Exception):
    """One run cannot be used; the text says why. Other runs can."""


def is_of_home(error: OSError) -> bool:
    """Returns whether an error is one of the file system or of this host."""
    return error.errno in _OF_THE_HOME


def may_concern_one_run(error: BaseException | None) -> bool:
    """Returns whether an error is one of the file system, and others of its files may be readable."""
    return isinstance(error, OSError) and error.errno in _OF_A_FILE


def trouble_in(error: BaseException) -> str:
    """Returns what is wrong with the home or short on this host if that led to an error, as text; empty otherwise."""
    is_trouble = isinstance(error, OSError) and is_of_home(error)
    return shortage.shortage_in(error) or (shortage.text_for(error) if is_trouble else "")


def raise_if_of_home(error: Exception) -> None:
    """Raises an error, or that which it was raised from, if it is one of the file system or of this host.

    It says nothing about a file: what cannot be read because of it is unknown, not missing.
    """
    found = error if isinstance(error, OSError) else error.__cause__
    if isinstance(found, OSError) and is_of_home(found):
        raise found


def check_home(error: Exception, run_id: str) -> None:
    """Raises HomeUnavailable if it is no fault of a run that it, or a record of it, cannot be read."""
    with translated("cannot read run %s", run_id):
        raise_if_of_home(error)


def problem_for(error: OSError | MemoryError, what: str) -> HomeUnavailable | RunUnusable:
    """Returns the exception to raise for an error of the operating system."""
    text = f"{what}: {shortage.text_for(error)}"
    return HomeUnavailable(text) if isinstance(error, MemoryError) or is_of_home(error) else RunUnusable(text)


@contextlib.contextmanager
def translated(message: str, *args: object) -> Iterator[None]:
    """Raises HomeUnavailable or RunUnusable for an error of the operating system, with the message."""
    try:
        yield
    except (OSError, MemoryError) as e:
        raise problem_for(e, message % args) from e
