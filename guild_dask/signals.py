"""What it says about a run that a signal ended its process. Pure."""

import signal

# With these, people and what acts for them ask a process to end: `guild stop`, kill, Ctrl-C, a closed terminal.
_REQUESTS = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))

_HINTS: dict[int, str] = {signal.SIGKILL: "the kernel does that when memory runs out"}


def is_failure(exit_status: int) -> bool:
    """Tells whether a process with that exit status was killed by a signal that is no request to end."""
    return exit_status < 0 and -exit_status not in _REQUESTS


def killed_by(exit_status: int) -> str:
    """Returns which signal killed a process with that exit status: `killed by signal 11, SIGSEGV`."""
    number = -exit_status
    try:
        name = f", {signal.Signals(number).name}"
    except ValueError:
        name = ""  # one of those that have no name, but a number only
    hint = _HINTS.get(number)
    return f"killed by signal {number}{name}" + (f"; {hint}" if hint else "")
