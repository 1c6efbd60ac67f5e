"""A deadline for what must not hang, nor take longer and longer with the size of what it gets."""

import contextlib
import signal
from collections.abc import Iterator

# Seconds; each takes less than a tenth of one.
SOON = 20


@contextlib.contextmanager
def soon() -> Iterator[None]:
    """Fails what takes too long, even if it waits for another process."""

    def fail(_number: int, _frame: object) -> None:
        raise AssertionError(f"it takes longer than {SOON} seconds")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(SOON)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
