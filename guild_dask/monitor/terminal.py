"""The terminal that shows the scheduler's output, if there is one.

Guild reads an operation's output through a pipe, and copies it to its own standard output and to the run's record. So
the scheduler's own output does not show whether there is a terminal. The plugin, in Guild's process, passes on the path
of the terminal that Guild prints to. Text that is written there directly appears at once, and is not in the record.
"""

import contextlib
import os
from collections.abc import Mapping

from guild_dask.host.environment import TERMINAL


class Terminal:
    """A terminal; writing to it never blocks."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @property
    def is_ours(self) -> bool:
        """Returns whether this process is in its foreground: neither a background job nor a daemon."""
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return False

    @property
    def width(self) -> int:
        try:
            return os.get_terminal_size(self._fd).columns or 80
        except OSError:
            return 80

    def write(self, text: str) -> None:
        """Writes as much as the terminal accepts now; nothing if it is stopped (Ctrl-S) or gone."""
        with contextlib.suppress(OSError):
            os.write(self._fd, text.encode("utf-8", "replace"))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._fd)


def is_in_terminal(environ: Mapping[str, str]) -> bool:
    """Returns whether a user sees the output in a terminal, and this process is in its foreground."""
    found = terminal_for(environ)
    if found:
        found.close()
    return found is not None


def terminal_for(environ: Mapping[str, str]) -> Terminal | None:
    """Returns the terminal that the plugin passed on, if it exists and this process is in its foreground."""
    path = environ.get(TERMINAL)
    if not path:
        return None
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    terminal = Terminal(fd)
    if os.isatty(fd) and terminal.is_ours:
        return terminal
    terminal.close()
    return None
