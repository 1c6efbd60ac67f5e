"""The sizes of the measurements."""

from collections.abc import Mapping
from dataclasses import dataclass

# The homes, by the number of finished runs in them.
EMPTY, MANY, VERY_MANY = "empty", "many", "very many"


@dataclass(frozen=True)
class Sizes:
    """Numbers of runs, of rounds, and seconds."""

    finished: Mapping[str, int]  # runs in each home
    few: int  # runs that a contender starts
    more: int
    rounds: int  # of all contenders
    latencies: int  # samples
    built_in_latencies: int  # samples of guildai's built-in scheduler, which takes ten seconds for one
    staged: int  # staged runs in the home of a busy scheduler
    further: int  # how many of them it starts while it is measured
    idle: float  # seconds for which an idle scheduler is measured
    ready: int  # how often the start of a scheduler is measured
    mixed: int  # runs that request resources
    mixed_longest: float  # seconds
    mixed_rounds: int
    trials_of_own: tuple[int, int]  # runs that import scikit-learn and pandas: few, and more
    trials: int  # that are compared with pools of processes
    trainings: int  # that take longer, and are compared with the same
    trial_rounds: int
    backlog: int  # staged runs in the largest home
    search_trials: int  # of a search that runs one at a time
    search_more: int  # of one that runs several at a time
    search_many: int  # whose time is compared with bare processes
    search_seconds: float  # that a trial takes
    search_slots: int
    search_seeds: int
    search_stopped: int  # trials of which some are ended early
    stopping_seeds: int
    search_epochs: int


FULL = Sizes(
    finished={EMPTY: 0, MANY: 3_000, VERY_MANY: 30_000},
    few=20,
    more=80,
    rounds=3,
    latencies=30,
    built_in_latencies=5,
    staged=10_000,
    further=200,
    idle=60,
    ready=5,
    mixed=24,
    mixed_longest=4,
    mixed_rounds=3,
    trials_of_own=(4, 16),
    trials=200,
    trainings=60,
    trial_rounds=2,
    backlog=100_000,
    search_trials=30,
    search_more=100,
    search_many=100,
    search_seconds=1.0,
    search_slots=8,
    search_seeds=10,
    search_stopped=60,
    stopping_seeds=5,
    search_epochs=27,
)

QUICK = Sizes(
    finished={EMPTY: 0, MANY: 300, VERY_MANY: 1_000},
    few=4,
    more=12,
    rounds=1,
    latencies=6,
    built_in_latencies=1,
    staged=300,
    further=20,
    idle=10,
    ready=2,
    mixed=10,
    mixed_longest=2,
    mixed_rounds=1,
    trials_of_own=(2, 5),
    trials=10,
    trainings=4,
    trial_rounds=1,
    backlog=1_000,
    search_trials=3,
    search_more=6,
    search_many=6,
    search_seconds=0.2,
    search_slots=2,
    search_seeds=1,
    search_stopped=9,
    stopping_seeds=1,
    search_epochs=9,
)
