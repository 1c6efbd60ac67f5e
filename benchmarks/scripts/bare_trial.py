"""What the scripts that search without guild-dask have in common: their arguments, and a trial as a bare process."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Given:
    """The arguments SCRIPT SLOTS COUNT SEED SECONDS NAME=LOW:HIGH..."""

    script: str
    slots: int
    count: int
    seed: int
    seconds: str
    spaces: Mapping[str, tuple[float, float]]

    def value_at(self, point: Mapping[str, float]) -> float:
        """Runs the script as a process of its own, and returns the loss that it prints."""
        words = [f"--{name}={value!r}" for name, value in point.items()]
        command = [sys.executable, self.script, f"--seconds={self.seconds}", *words]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        return float(output.rpartition("loss:")[2])


def given(words: Sequence[str]) -> Given:
    """Returns the arguments of a command line."""
    _, script, slots, count, seed, seconds, *spaces = words
    pairs = (word.split("=") for word in spaces)
    ranges = {name: (float(text.split(":")[0]), float(text.split(":")[1])) for name, text in pairs}
    return Given(script, int(slots), int(count), int(seed), seconds, ranges)
