"""Where things are in the Guild home and in run directories."""

import os


def run_output(scheduler_dir: str) -> str:
    """Returns the folder in a scheduler's run directory that has the output of its runs while they run."""
    return os.path.join(scheduler_dir, "run-output")
