"""The chaos test: processes are killed at random moments and steps, and no run is lost or started twice.

    python -m tests.long.chaos --rounds 5 --runs 100 --seed 7

runs rounds of two kinds alternately, each on a Guild home of its own. The first kind has one scheduler at a time: its
runs must never use more than the machine has, whatever is killed. The second kind has several schedulers and one Guild
queue. In both, processes are killed from outside, and kill themselves at crash points (see chaos_support/crash_points).
Runs write their start and end to a journal. Afterwards, undisturbed schedulers run the remaining runs; then the
invariants must hold (see chaos_support/invariants.py).

    python -m tests.long.chaos --kind marathon --rounds 1 --runs 10000 --seconds 3600 --seed 1

runs 10,000 runs through three schedulers, or as many as it can within an hour, with a kill each second. Few runs wait
at a time, so that it can end at any moment.

With --package FOLDER, the guild_dask in that folder is tested, not the installed one.
"""

import argparse
import collections
import json
import pathlib
import shutil
import signal
import sys
import tempfile
from typing import Any

from tests.long.chaos_support import invariants, rounds
from tests.long.chaos_support.schedulers import Settings


def main(arguments: list[str] | None = None) -> int:
    """Runs the rounds, prints a report, and returns 1 if anything was wrong."""
    options = _options(arguments)
    _set_deadline(options.deadline)
    outcomes = []
    for number in range(options.rounds):
        kind = rounds.KINDS[options.kind[number % len(options.kind)]]
        outcome = run_round(kind, f"{options.seed}-{number + 1}", options)
        outcomes.append(outcome)
        if outcome.violations and not options.keep_going:
            break
    report = report_for_outcomes(outcomes)
    _print_report(report)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=2) + "\n")
    return int(any(outcome.violations for outcome in outcomes))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.long.chaos", description="Kills schedulers, counts runs.")
    parser.add_argument("--rounds", type=int, default=2, help="how many; the kinds take turns")
    parser.add_argument("--kind", nargs="+", choices=sorted(rounds.KINDS), default=["one", "many"])
    parser.add_argument("--runs", type=int, default=100, help="how many in each round")
    parser.add_argument("--seed", default="7", help="any text; the same one rolls the same dice")
    parser.add_argument("--seconds", type=float, default=90.0, help="the longest time of chaos in a round")
    parser.add_argument("--deadline", type=float, default=0.0, help="seconds for all of it; 0 for no deadline")
    parser.add_argument("--homes", metavar="FOLDER", help="where the rounds get their homes; else a temporary folder")
    parser.add_argument("--json", metavar="FILE", help="where to write the report, too")
    parser.add_argument("--package", metavar="FOLDER", help="test the guild_dask in this folder")
    parser.add_argument("--warm", choices=("yes", "no"), default="yes", help="the flag `warm` of all schedulers")
    parser.add_argument("--keep-going", action="store_true", help="do not stop after a round that went wrong")
    return parser.parse_args(arguments)


def _set_deadline(seconds: float) -> None:
    """Makes the whole test fail after that time; processes of the round are still ended."""

    def fail(_number: int, _frame: object) -> None:
        raise AssertionError(f"not done after {seconds:g} seconds")

    signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def run_round(kind: rounds.Kind, seed: str, options: argparse.Namespace) -> rounds.Outcome:
    """Runs one round, and prints its result. The home of a failed round is kept."""
    root = pathlib.Path(tempfile.mkdtemp(prefix="guild-dask-chaos-", dir=options.homes))
    settings = Settings(options.package, options.warm == "yes")
    round_ = rounds.Round(kind, seed, options.runs, root, settings)
    outcome = round_.run(options.seconds)
    if outcome.violations:
        _say(f"Round {seed} ({kind.name}) went wrong; its home is {root}\n")
        for violation in outcome.violations:
            _say(round_.aftermath.story(violation, outcome.seen) + "\n")
        _say("\n".join(round_.aftermath.tails()))
    else:
        _say(f"Round {seed} ({kind.name}): {len(outcome.seen.plans)} runs, {outcome.seconds:.0f} seconds")
        shutil.rmtree(root)
    return outcome


def report_for_outcomes(outcomes: list[rounds.Outcome]) -> dict[str, Any]:
    """Returns the totals of all rounds."""
    seen = [outcome.seen for outcome in outcomes]
    statuses = collections.Counter(each.statuses.get(plan.run_id, "none") for each in seen for plan in each.plans)
    limited = [each for each in seen if each.capacity]
    return {
        "rounds": len(outcomes),
        "by kind": dict(collections.Counter(outcome.kind.name for outcome in outcomes)),
        "seconds": round(sum(outcome.seconds for outcome in outcomes)),
        "runs": sum(len(each.plans) for each in seen),
        "schedulers": sum(outcome.schedulers for outcome in outcomes),
        "of these, forked from warm servers": sum(len(each.warm) for each in seen),
        "statuses": dict(statuses),
        "ended before they could say that they start": sum(len(invariants.never_started(each)) for each in seen),
        "slowest stop, in seconds": round(max(outcome.slowest_stop for outcome in outcomes), 1),
        "most runs at a time, of 3": max((each.peaks[0].amount for each in limited), default=0),
        "most foo at a time, of 4": max((each.peaks[1].amount for each in limited), default=0),
        "kills": dict(sorted(collections.Counter(kill.kind for each in seen for kill in each.kills).items())),
        "deeds": dict(sorted(collections.Counter(deed.kind for each in seen for deed in each.deeds).items())),
        "violations": [[outcome.seed, *violation] for outcome in outcomes for violation in outcome.violations],
    }


def _print_report(report: dict[str, Any]) -> None:
    for name, value in report.items():
        if isinstance(value, dict):
            _say(f"{name}: {sum(value.values())}")
            for key, count in value.items():
                _say(f"  {count:6} {key}")
        elif isinstance(value, list):
            _say(f"{name}: {len(value)}")
            for each in value:
                _say(f"  {' | '.join(each)}")
        else:
            _say(f"{name}: {value}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
