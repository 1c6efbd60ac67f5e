"""The chaos test in a virtual machine whose clock is set ahead and back, by up to a week, every few seconds.

    python -m tests.long.clock_change [--runs 30] [--seed 1]

The clock of this machine is not changed. Needs what tests/long/on_nfs.py needs for its virtual machine, and some ten
minutes: the machine has no hardware support, and is ten times slower than this one.
"""

import argparse
import pathlib
import random
import shlex
import sys
import tempfile
import threading
import time
from datetime import timedelta

from tests.long import chaos
from tests.support.sandbox import PROJECT
from tests.systems import virtual_machine
from tests.systems.needs import Missing

_LONGEST = 5400.0
# Seconds of chaos, and between two changes of the clock.
_SECONDS = 900.0
_PERIOD = 15.0

# By how much the clock is set ahead, or back.
_JUMPS = (
    timedelta(seconds=2),
    timedelta(seconds=40),
    timedelta(minutes=5),
    timedelta(hours=1),
    timedelta(days=1),
    timedelta(days=7),
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the test; returns 1 if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.clock_change", description="Chaos, and a wrong clock.")
    parser.add_argument("--runs", type=int, default=30, help="how many")
    parser.add_argument("--kind", default="many", help="of chaos")
    parser.add_argument("--seed", default="1", help="any text; the same one rolls the same dice")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)  # the virtual machine
    options = parser.parse_args(arguments)
    given = ["--runs", str(options.runs), "--kind", options.kind, "--seed", options.seed]
    if options.inside:
        if "QEMU" not in pathlib.Path("/sys/class/dmi/id/sys_vendor").read_text():
            parser.error("this is not the virtual machine: its clock stays as it is")
        return _run_inside(given, random.Random(options.seed))
    words = shlex.join([sys.executable, "-m", "tests.long.clock_change", "--inside", *given])
    try:
        with tempfile.TemporaryDirectory(prefix="guild-dask-clock-", dir="/var/tmp") as folder:
            command = f"cd {shlex.quote(str(PROJECT))} && {words}"
            code, output = virtual_machine.run(command, pathlib.Path(folder), _LONGEST)
    except Missing as e:
        code, output = 1, str(e)
    _say(output)
    return 1 if code is None else code


def _run_inside(given: list[str], dice: random.Random) -> int:
    """Runs the chaos while the clock of this machine, which is a virtual one, is changed."""
    is_over = threading.Event()
    changes: list[float] = []
    thread = threading.Thread(target=_change_clock, args=(dice, is_over, changes))
    thread.start()
    try:
        code = chaos.main(["--rounds", "1", "--seconds", f"{_SECONDS:g}", *given])
    finally:
        is_over.set()
        thread.join()
    _say(f"changes of the clock: {len(changes)}, from {min(changes):+.0f} to {max(changes):+.0f} seconds")
    return code


def _change_clock(dice: random.Random, is_over: threading.Event, changes: list[float]) -> None:
    while not is_over.wait(_PERIOD):
        jump = dice.choice(_JUMPS).total_seconds() * dice.choice((-1, 1))
        time.clock_settime(time.CLOCK_REALTIME, time.time() + jump)
        changes.append(jump)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
