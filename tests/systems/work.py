"""The operation of the tests on systems: works for some seconds over all its attempts, and writes a journal.

Guild runs it as `python -S work.py JOURNAL SECONDS`, or as a Python module, in the run's directory. Each line of the
journal is appended in one write, so that lines of several processes and hosts never mix. All hosts have the clock of
this machine.
"""

import os
import sys
import time

_BEAT = 0.1
_CHECKPOINT = "checkpoint"


def tell(journal: str, what: str) -> None:
    """Appends a line: the event, the run, the host, the process, the attempt and the time."""
    attempt = os.environ.get("GUILD_DASK_ATTEMPT", "1")
    line = f"{what} {os.environ['RUN_ID']} {os.uname().nodename} {os.getpid()} {attempt} {time.monotonic():.6f}\n"
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line.encode())
    os.close(file)


def done_before() -> float | None:
    """Returns the seconds that earlier attempts have worked, or None if this is the first."""
    try:
        with open(_CHECKPOINT) as f:
            return float(f.read() or 0)
    except FileNotFoundError:
        return None


def main() -> None:
    journal, seconds = sys.argv[1], float(sys.argv[2])
    before = done_before()
    tell(journal, "start" if before is None else "resume")
    begun = time.monotonic() - (before or 0)
    while (done := time.monotonic() - begun) < seconds:
        with open(f"{_CHECKPOINT}.new", "w") as f:
            f.write(str(done))
        os.replace(f"{_CHECKPOINT}.new", _CHECKPOINT)
        time.sleep(_BEAT)
        tell(journal, "beat")
    tell(journal, "end")
    os._exit(0)  # at once: a run that was killed after its last line had exited by itself


if __name__ == "__main__":
    main()
