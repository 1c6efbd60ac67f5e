"""The meaning of a signal that ended a process, and handlers that run even while the main thread waits."""

import os
import signal
import threading
from collections.abc import Callable, Iterable

# The signals that request a process to end: from `guild stop`, kill, Ctrl-C, a closed terminal.
_REQUESTS = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))

# The signals that a process gets for what it does itself. Any other may have been sent to it.
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP))

# The exit codes of a shell whose command was killed by a signal that another process may have sent.
_OF_SHELLS = frozenset(128 + number for number in (*_REQUESTS, signal.SIGKILL))

# Seconds for the main thread to run a handler before it is woken up.
_PATIENCE = 0.1

_HINTS: dict[int, str] = {signal.SIGKILL: "the kernel does that when memory runs out"}


def is_failure(exit_status: int) -> bool:
    """Returns whether a process with that exit status was killed by a signal that does not request an end."""
    return exit_status < 0 and not is_request(exit_status)


def is_request(exit_status: int) -> bool:
    """Returns whether a process with that exit status was killed by a signal that requests an end."""
    return -exit_status in _REQUESTS


def may_be_sent(exit_status: int) -> bool:
    """Returns whether a signal that another process may have sent killed a process with that exit status, or its child.

    A shell whose command was killed exits by itself, with 128 and the signal.
    """
    return (exit_status < 0 and -exit_status not in _CRASHES) or exit_status in _OF_SHELLS


def killed_by(exit_status: int) -> str:
    """Returns which signal killed a process with that exit status: `killed by signal 11, SIGSEGV`."""
    number = -exit_status
    try:
        name = f", {signal.Signals(number).name}"
    except ValueError:
        name = ""  # most real-time signals have no name
    hint = _HINTS.get(number)
    return f"killed by signal {number}{name}" + (f"; {hint}" if hint else "")


def leave_interrupts_to_child(most: int = 3) -> None:
    """Makes this process ignore the first few Ctrl-C, which reach its child in the same terminal, too.

    A process that is started from here does not inherit that, as it would with SIG_IGN.
    """
    left = most

    def count(_number: int, _frame: object) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, count)


def set_handler(numbers: Iterable[signal.Signals], handler: Callable[[int, object], None]) -> None:
    """Sets the handler for the signals, and guarantees that it runs for the first of them without delay.

    Python runs a handler in the main thread, but wakes that thread up only if the kernel delivered the signal to it.
    The kernel chooses another thread if the main one has a signal pending, as after SIGSTOP and SIGCONT. The handler
    would then wait for as long as the main thread waits for a process, and the run could not be stopped.
    """
    has_run = threading.Event()

    def note_and_handle(number: int, frame: object) -> None:
        has_run.set()
        handler(number, frame)

    wanted = set(numbers)
    receiving, sending = os.pipe()
    os.set_blocking(sending, False)
    signal.set_wakeup_fd(sending, warn_on_full_buffer=False)
    for number in wanted:
        signal.signal(number, note_and_handle)
    threading.Thread(target=_relay, args=(receiving, wanted, has_run), daemon=True).start()


def _relay(receiving: int, wanted: set[signal.Signals], has_run: threading.Event) -> None:
    """Sends a signal to the main thread if its handler has not run. The pipe has one byte for each signal received."""
    main = threading.main_thread().ident
    while not has_run.is_set():
        (number,) = os.read(receiving, 1)
        if number in wanted and not has_run.wait(_PATIENCE) and main:
            signal.pthread_kill(main, number)
