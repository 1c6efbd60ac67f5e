"""A short form of tests/long/chaos.py and tests/long/every_step.py, part of the usual tests."""

import os
import pathlib
import sys

import pytest

from tests.long.chaos_support.journal import Life, Line, peak
from tests.support.sandbox import PROJECT, run_command

ROUNDS = ("--rounds=2", "--runs=24", "--seed=3", "--seconds=15")
STEPS = ("--depth=1", "--part=11/40")
DEADLINE = 300.0


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_no_run_is_lost_or_started_twice_when_processes_die(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "tests.long.chaos", *ROUNDS, f"--deadline={DEADLINE}", f"--homes={tmp_path}"]
    # At its deadline it ends its processes itself, for which it gets a little more time.
    finished = run_command(command, os.environ, PROJECT, DEADLINE + 60)
    assert finished.exit_code == 0, finished


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_no_run_is_lost_or_started_twice_when_a_process_dies_at_a_certain_step(tmp_path: pathlib.Path) -> None:
    # A few of the steps; `python -m tests.long.every_step` tries all of them.
    command = [sys.executable, "-m", "tests.long.every_step", *STEPS, f"--homes={tmp_path}"]
    finished = run_command(command, os.environ, PROJECT, DEADLINE)
    assert finished.exit_code == 0, finished


def test_run_that_was_killed_at_its_first_line_takes_no_room() -> None:
    lives = [
        Life("aaa", [Line("start", "aaa", 1, 0, 1.0)]),
        Life("bbb", [Line("start", "bbb", 2, 0, 2.0), Line("end", "bbb", 2, 0, 3.0)]),
        Life("ccc", [Line("start", "ccc", 3, 0, 2.5), Line("beat", "ccc", 3, 0, 2.6)]),
    ]
    assert peak(lives, dict.fromkeys(("aaa", "bbb", "ccc"), 1.0)) == (2.0, 2.5, ("bbb", "ccc"))
