"""Processes for tests."""

import contextlib
import subprocess
from collections.abc import Iterator

from tests.support.sandbox import DEADLINE


@contextlib.contextmanager
def living(*command: str, **options: object) -> Iterator["subprocess.Popen[bytes]"]:
    """Yields a process that waits for the end of its input, and ends it."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
    try:
        yield process
        process.stdin.close()
        process.wait(DEADLINE)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
