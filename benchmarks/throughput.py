"""What many no-op runs cost: every contender in turn, round after round."""

import pathlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import click

from benchmarks.contenders import FLOOR, Contender
from benchmarks.homes import Home, Template
from benchmarks.measuring import Cost, cost_of
from benchmarks.sizes import Sizes


@dataclass(frozen=True)
class Throughput:
    """The costs of one contender for few and for more runs in a home of one size, round by round."""

    contender: str
    finished: int
    counts: tuple[int, int]  # of runs: few, and more
    few: list[Cost]
    more: list[Cost]

    @property
    def one_more(self) -> Cost:
        """Returns the cost of one more run; the contender's own start and end cancel out."""
        count = self.counts[1] - self.counts[0]
        pairs = list(zip(self.few, self.more, strict=True))
        return Cost(
            statistics.median((more.wall - few.wall) / count for few, more in pairs),
            statistics.median((more.cpu - few.cpu) / count for few, more in pairs),
        )

    @property
    def all_of_it(self) -> Cost:
        """Returns the cost of the greater number of runs, from the command to its end."""
        return Cost(statistics.median(c.wall for c in self.more), statistics.median(c.cpu for c in self.more))

    def as_data(self) -> dict[str, object]:
        return {**asdict(self), "one_more": asdict(self.one_more), "all_of_it": asdict(self.all_of_it)}


def measure(
    contenders: Sequence[Contender],
    homes: Mapping[tuple[str, str], Home],
    templates: Mapping[str, Template],
    sizes: Sizes,
) -> list[Throughput]:
    """Returns the costs of each contender in each of its homes. The contenders are measured in turn."""
    measured = [
        (contender, home, Throughput(contender.name, home.finished, (sizes.few, sizes.more), [], []))
        for (environment, size), home in homes.items()
        for contender in contenders
        if environment == contender.environment and size in contender.homes
    ]
    for number in range(sizes.rounds):
        for contender, home, result in measured:
            for count, into in zip(result.counts, (result.few, result.more), strict=True):
                cost = once(contender, home, templates[contender.environment], count)
                into.append(cost)
                text = f"{count} runs, wall {cost.wall:.2f} s, CPU {cost.cpu:.2f} s"
                click.echo(f"round {number + 1}: {contender.name}, {home.finished} finished, {text}", err=True)
    return [result for _, _, result in measured]


def once(contender: Contender, home: Home, template: Template, count: int) -> Cost:
    """Returns the cost of a number of runs, from the command to its end."""
    home.clear()
    run_dirs = home.staged(template, count)
    cost = cost_of(contender.commands_for(home, template, run_dirs), home)
    if contender.name != FLOOR:
        _check(contender, run_dirs)
    home.clear()
    return cost


def _check(contender: Contender, run_dirs: Sequence[pathlib.Path]) -> None:
    """Fails unless all runs completed: a contender that starts nothing would seem fast."""
    ended = [path for path in run_dirs if _exit_status(path) == "0"]
    if len(ended) != len(run_dirs):
        raise click.ClickException(f"{contender.name} completed {len(ended)} of {len(run_dirs)} runs")


def _exit_status(run_dir: pathlib.Path) -> str | None:
    try:
        return (run_dir / ".guild" / "attrs" / "exit_status").read_text().strip()
    except FileNotFoundError:
        return None
