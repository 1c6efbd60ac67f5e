"""Files that cannot be read, one at a time: a test lets each of them fail, and checks what follows."""

import builtins
import contextlib
import errno
import io
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from guild_dask.host import shortage

# What takes a descriptor, as this process calls it; and what else fails where a file server does.
OPENING = ((os, "open"), (io, "open"), (builtins, "open"), (os, "listdir"), (os, "scandir"))
LOOKING = ((os, "stat"), (os, "lstat"))


class Files:
    """Counts files that are opened or looked at, and lets one of them fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: int = errno.EMFILE) -> None:
        self._monkeypatch = monkeypatch
        self._error = error
        self._calls = OPENING if error in shortage.ERRORS else (*OPENING, *LOOKING)
        self.count = 0

    @contextlib.contextmanager
    def failing(self, *chosen: int) -> Iterator[None]:
        """Lets the files with these numbers fail, within the block."""
        self.count = 0
        with self._monkeypatch.context() as patched:
            for module, name in self._calls:
                patched.setattr(module, name, self._counted(getattr(module, name), chosen))
            yield

    def _counted(self, call: Callable[..., Any], chosen: Sequence[int]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count in chosen:
                raise OSError(self._error, os.strerror(self._error))
            return call(*args, **kwargs)

        return counted


@contextlib.contextmanager
def unreadable_file(monkeypatch: pytest.MonkeyPatch, *paths: str, error: int = errno.EIO) -> Iterator[None]:
    """Lets some files fail within the block, as with a bad block, or folders as on a mount whose server is gone."""

    def checked(call: Callable[..., Any]) -> Callable[..., Any]:
        def fail(file: Any, *args: Any, **options: Any) -> Any:
            if not isinstance(file, int) and not {os.fspath(file), os.path.normpath(file)}.isdisjoint(paths):
                raise OSError(error, os.strerror(error))
            return call(file, *args, **options)

        return fail

    with monkeypatch.context() as patched:
        for module, name in (*OPENING, *LOOKING):
            patched.setattr(module, name, checked(getattr(module, name)))
        yield
