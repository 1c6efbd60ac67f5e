"""The storm: jobs and nodes of a real job queue are cancelled, suspended, drained and killed at random moments.

    python -m tests.long.storm --system slurm --rounds 200 --seed 1
    python -m tests.long.storm --system gridengine --rounds 50 --seed 1

A round stages up to three runs, waits until one of them has reached a moment of its life that is drawn at random (see
storm_support/moments.py), and a random instant longer, and then does one or two acts (see storm_support/sites.py) to
its job or node. Five rounds have a scheduler in common; each block of rounds has a Guild home of its own. Then:

- each run has completed, since none of the acts is a request to stop a run;
- it never ran twice at a time, nor again after it had completed, and each further attempt is explained by an act;
- no dead run was recognized by its lease, unless a host was switched off;
- nothing is left in the published state, in the job queue, on the nodes, or in the Guild home.

A restart of a run that had ended is excused, and counted, if its processes were killed in the instant between its last
instruction and the record of its end. Needs Linux, root, and what .ci/install-systems installs.
"""

import argparse
import collections
import contextlib
import json
import pathlib
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from tests.long.storm_support.blocks import Block, Round, living_as
from tests.long.storm_support.sites import GridEngineSite, Site, SlurmSite
from tests.support.sandbox import sandbox
from tests.systems.gridengine import GridEngine
from tests.systems.hosts import network
from tests.systems.needs import Missing
from tests.systems.slurm import Node, Slurm

_NODES = (Node("n1"), Node("n2"), Node("n3"))


def main(arguments: list[str] | None = None) -> int:
    """Runs the rounds, prints a report, and returns 1 if anything was wrong."""
    options = _options(arguments)
    begun = time.monotonic()
    rounds: list[Round] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        with _site(options.system) as site:
            for this in storm(site, options.seed, options.rounds, options.block, options.first):
                rounds.append(this)
                _say(this)
                if this.violations and not options.keep_going:
                    break
                if options.seconds and time.monotonic() - begun > options.seconds:
                    break
    except Missing as e:
        sys.stdout.write(f"{e}\n")
        return 1
    report = report_for_rounds(rounds)
    sys.stdout.write(f"{json.dumps(report, indent=2)}\n")
    return int(any(this.violations for this in rounds))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.long.storm", description="A storm over jobs and nodes.")
    parser.add_argument("--system", choices=("slurm", "gridengine"), default="slurm")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1, help="the number of the first round; the seed has it, too")
    parser.add_argument("--block", type=int, default=5, help="how many rounds have the same scheduler")
    parser.add_argument("--seed", default="1", help="any text; the same one rolls the same dice")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no round after that time; 0: no limit")
    parser.add_argument("--keep-going", action="store_true", help="do not stop after a round that went wrong")
    return parser.parse_args(arguments)


@contextlib.contextmanager
def _site(name: str) -> Iterator[Site]:
    # The folder has a short name, because paths of sockets are limited.
    with (
        tempfile.TemporaryDirectory(prefix="storm-", ignore_cleanup_errors=True) as folder,
        network(pathlib.Path(folder).resolve()) as hosts,
    ):
        yield SlurmSite(Slurm(hosts, _NODES)) if name == "slurm" else GridEngineSite(GridEngine(hosts))


def storm(site: Site, seed: str, rounds: int, block: int, first: int = 1) -> Iterator[Round]:
    """Yields each round when it is over. After a round that went wrong, a new block begins."""
    left = collections.deque(f"{seed}-{number}" for number in range(first, first + rounds))
    while left:
        seeds = [left.popleft() for _ in range(min(block, len(left)))]
        done = 0
        with (
            tempfile.TemporaryDirectory(prefix="storm-user-") as folder,
            sandbox(pathlib.Path(folder), site.variables) as user,
            living_as(user) as journal,
        ):
            for this in Block(site, user, journal).run(seeds):
                done += 1
                yield this
        left.extendleft(reversed(seeds[done:]))
        site.heal()


def _say(this: Round) -> None:
    acts = "; ".join(map(str, this.done)) or "no act"
    sys.stdout.write(f"Round {this.seed}: {len(this.runs)} runs, {this.seconds:.0f} s, {acts}\n")
    for violation in this.violations:
        sys.stdout.write(f"  WRONG: {violation}\n")
    sys.stdout.flush()


def report_for_rounds(rounds: list[Round]) -> dict[str, Any]:
    """Returns the totals of all rounds."""
    done = [done for this in rounds for done in this.done]
    return {
        "rounds": len(rounds),
        "seconds": round(sum(this.seconds for this in rounds)),
        "runs": sum(len(this.runs) for this in rounds),
        "attempts": sum(this.attempts for this in rounds),
        "last attempts that were forked from warm servers": sum(this.warm for this in rounds),
        "acts": dict(collections.Counter(each.act.name for each in done)),
        "moments": dict(collections.Counter(each.moment.name for each in done)),
        "acts that the queue refused, or had no job for": sum(this.refused for this in rounds),
        "killed between the last instruction and its record": sum(this.excused for this in rounds),
        "rounds that went wrong": [this.seed for this in rounds if this.violations],
    }


if __name__ == "__main__":
    sys.exit(main())
