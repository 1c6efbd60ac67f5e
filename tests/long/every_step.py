"""The systematic chaos test: kills a process at every single step of a story.

    python -m tests.long.every_step

runs each story of chaos_support/steps.py once undisturbed and records all steps of guild-dask's processes: what they
write, move and remove in the Guild home, and what they start. Then it repeats the story for each step, and kills the
process that reaches it. Undisturbed schedulers run the remaining runs, and the invariants must hold (see
chaos_support/invariants.py).

With --fault ENOSPC (or EIO, EACCES, ...) the process is not killed: the step fails, once, with that error.

With --part 3/40, only every fortieth step is tried, beginning with the third.
"""

import argparse
import pathlib
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from tests.long.chaos_support.invariants import Violation
from tests.long.chaos_support.schedulers import Settings
from tests.long.chaos_support.steps import NOWHERE, STORIES, Point, Told, points_of

_speaking = threading.Lock()


def main(arguments: list[str] | None = None) -> int:
    """Runs the stories, prints a report, and returns 1 if anything was wrong."""
    options = _options(arguments)
    begun = time.monotonic()
    undisturbed = {name: _told(name, NOWHERE, options) for name in options.story or STORIES}
    wrong = [found for told in undisturbed.values() for found in told[1]]
    points = [
        (name, point)
        for name, (told, _) in undisturbed.items()
        for point in points_of(told, options.depth, options.fault)
    ]
    first, every = options.part
    chosen = points[first - 1 :: every]
    with ThreadPoolExecutor(options.jobs) as pool:
        missed = 0
        for told, violations in pool.map(lambda each: _told(each[0], each[1], options), chosen):
            wrong += violations
            missed += not (told.home.folder / "crashes").exists()
    _say(f"points: {len(points)}, told: {len(chosen)}, not come to again: {missed}")
    _say(f"violations: {len(wrong)}, seconds: {time.monotonic() - begun:.0f}")
    if missed == len(chosen) or {name for name, _ in points} != set(undisturbed):
        _say("NOTHING SHOWN: no process came to any of the steps, or none was seen in one of the stories")
        return 1
    return int(bool(wrong))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.long.every_step", description="Kills a process at a step.")
    parser.add_argument("--story", action="append", choices=sorted(STORIES), help="one of the stories; else all")
    parser.add_argument("--depth", type=int, default=2, help="how many times the same step is tried")
    parser.add_argument("--fault", default="SIGKILL", help="the signal at a step, or the error (ENOSPC, EIO, EACCES)")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="N/M", help="only every Mth point, from the Nth")
    parser.add_argument("--jobs", type=int, default=2, help="how many at the same time")
    parser.add_argument("--homes", metavar="FOLDER", help="where the stories get their homes; else a temporary folder")
    parser.add_argument("--warm", choices=("yes", "no"), default="yes", help="the flag `warm` of all schedulers")
    parser.add_argument("--package", metavar="FOLDER", help="test the guild_dask in this folder")
    return parser.parse_args(arguments)


def _part(text: str) -> tuple[int, int]:
    first, _, every = text.partition("/")
    return int(first), int(every)


def _told(name: str, point: Point, options: argparse.Namespace) -> tuple[Told, list[Violation]]:
    """Runs a story. The home of a failed one is kept."""
    root = pathlib.Path(tempfile.mkdtemp(prefix="guild-dask-step-", dir=options.homes))
    told = STORIES[name](point, options.fault, root, Settings(options.package, options.warm == "yes"))
    seen, violations = told.tell()
    with _speaking:
        _say(f"{name}: {point if point.role else 'undisturbed'}: {'WRONG' if violations else 'well'}")
        if violations:
            _say(f"Its home is {root}\n")
            for violation in violations:
                _say(told.aftermath.story(violation, seen) + "\n")
            _say("\n".join(told.aftermath.tails()))
        elif point.role:
            shutil.rmtree(root / "guild-home")
    return told, violations


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
