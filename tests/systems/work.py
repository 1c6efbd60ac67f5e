"""The operation of the tests on systems: works for some seconds, tells a journal so, and leaves a checkpoint.

Guild runs it as `python -S work.py JOURNAL SECONDS` in the run's directory. Each line of the journal is written at
once, so that lines of many processes, also on several hosts, never mix. All hosts have the clock of this machine.
"""

import os
import sys
import time

_BEAT = 0.1
_CHECKPOINT = "checkpoint"


def tell(journal: str, what: str) -> None:
    """Adds a line: what, which run, on which host and as which process, in which attempt, and when."""
    attempt = os.environ.get("GUILD_DASK_ATTEMPT", "1")
    line = f"{what} {os.environ['RUN_ID']} {os.uname().nodename} {os.getpid()} {attempt} {time.monotonic():.6f}\n"
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line.encode())
    os.close(file)


def main() -> None:
    journal, seconds = sys.argv[1], float(sys.argv[2])
    is_resumed = os.path.exists(_CHECKPOINT)
    tell(journal, "resume" if is_resumed else "start")
    open(_CHECKPOINT, "w").close()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(_BEAT)
        tell(journal, "beat")
    tell(journal, "end")


if __name__ == "__main__":
    main()
