"""A scheduler that has nothing to do: how long it takes to start and end."""

import statistics
from dataclasses import asdict, dataclass

from benchmarks.contenders import a_scheduler
from benchmarks.homes import Home, make_template
from benchmarks.measuring import Command, Cost, cost_of
from benchmarks.sizes import Sizes


@dataclass(frozen=True)
class IdleScheduler:
    """Costs of `run-once=yes` without a staged run, and of a Guild command that runs an empty operation."""

    nothing: list[Cost]
    guild: list[Cost]

    def as_data(self) -> dict[str, object]:
        def medians(costs: list[Cost]) -> dict[str, float]:
            return asdict(Cost(statistics.median(c.wall for c in costs), statistics.median(c.cpu for c in costs)))

        return {**asdict(self), "medians": {"nothing": medians(self.nothing), "guild": medians(self.guild)}}


def measure(home: Home, sizes: Sizes) -> IdleScheduler:
    """Returns the costs, measured alternately."""
    found = IdleScheduler([], [])
    template = make_template(home, "noop")
    for _ in range(sizes.ready):
        found.nothing.append(cost_of(a_scheduler(home, template, []), home))
        home.clear()
        found.guild.append(cost_of([Command([home.environment.guild, "run", "nothing", "-y"])], home))
        home.clear()
    return found
