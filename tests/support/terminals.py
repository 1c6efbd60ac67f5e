"""A command in a terminal of its own, as a user sees it."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Sequence

import click

from tests.support.sandbox import DEADLINE, wait_until


class InTerminal:
    """A command in the foreground of a terminal. Use it as a context: it is killed in the end."""

    def __init__(self, command: Sequence[str], columns: int = 120, lines: int = 40) -> None:
        self._seen = b""
        self.exit_code: int | None = None
        self._fd, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        # Not pty.fork(): this process may have threads, and a fork of such a process is deprecated.
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *command], stdin=terminal, stdout=terminal, stderr=terminal
        )
        os.close(terminal)

    def __enter__(self) -> "InTerminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.kill()  # setsid may not have made its group yet
            self._process.wait()
        os.close(self._fd)

    @property
    def pid(self) -> int:
        """Returns the id of the command's process, and of its group."""
        return self._process.pid

    @property
    def raw(self) -> str:
        """Returns everything that was written to the terminal so far."""
        with contextlib.suppress(OSError):  # no process has the terminal open any more
            while select.select([self._fd], [], [], 0)[0] and (part := os.read(self._fd, 65536)):
                self._seen += part
        return self._seen.decode(errors="replace")

    @property
    def text(self) -> str:
        """Returns the same without colours and other escape sequences."""
        return click.unstyle(self.raw)

    def press(self, keys: str) -> None:
        """Types keys, such as Ctrl-C."""
        os.write(self._fd, keys.encode())

    def wait_for(self, text: str) -> None:
        """Waits until a text was shown."""
        wait_until(lambda: text in self.text, DEADLINE, lambda: f"{text!r} in {self.text}")

    def wait(self) -> int:
        """Waits for the end of the command, and returns its exit code."""

        def has_ended() -> bool:
            self.raw  # noqa: B018  # a full terminal would block the command
            self.exit_code = self._process.poll()
            return self.exit_code is not None

        wait_until(has_ended, DEADLINE, lambda: self.text)
        assert self.exit_code is not None
        return self.exit_code


CTRL_C = "\x03"
