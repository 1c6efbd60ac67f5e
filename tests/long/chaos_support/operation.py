"""The operation of the chaos test: works for a short time, and writes its start and end to a journal.

Guild runs it as a module, or as `python -S operation.py`. CHAOS_FOLDER/plans/RUN_ID has its parameters: the seconds
that it works, its exit code, and 1 if it starts a process in a session of its own.

Each line of the journal is appended in one write, so that lines of several processes never mix.
"""

import os
import signal
import time

_BEAT = 0.05


def tell(what: str) -> None:
    """Appends a line to the journal: the event, the run, the process, its parent, and the time."""
    line = f"{what} {os.environ['RUN_ID']} {os.getpid()} {os.getppid()} {time.monotonic():.6f}\n"
    journal = os.open(
        os.path.join(os.environ["CHAOS_FOLDER"], "journal"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
    )
    os.write(journal, line.encode())
    os.close(journal)


def start_runaway() -> int:
    """Starts an orphan process in a session of its own, which lives until it is killed."""
    told, telling = os.pipe()
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork() == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            tell("runaway")
            os.write(telling, str(os.getpid()).encode())
            while True:
                signal.pause()
        os._exit(0)
    os.waitpid(middle, 0)
    os.close(telling)
    return int(os.read(told, 20) or 0)  # empty: it was killed before it wrote its pid


def work(seconds: float) -> bool:
    """Works for that long; returns False if it got a stop signal."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if signal.sigtimedwait({signal.SIGTERM}, min(left, _BEAT)):
            return False
        tell("beat")
    return True


def main() -> None:
    # From here on SIGTERM is handled, so that the journal records how the run ended.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    tell("start")
    with open(os.path.join(os.environ["CHAOS_FOLDER"], "plans", os.environ["RUN_ID"])) as f:
        seconds, exit_code, has_runaway = f.read().split()
    runaway = start_runaway() if has_runaway == "1" else None
    if not work(float(seconds)):
        tell("term")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.kill(os.getpid(), signal.SIGTERM)
    if runaway:
        os.kill(runaway, signal.SIGKILL)
    tell("end")
    os._exit(int(exit_code))


if __name__ == "__main__":
    main()
