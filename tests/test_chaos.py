"""The chaos test in its short form, a round of each kind; tests/chaos.py is the long one, for by hand."""

import os
import pathlib
import sys

import pytest
from support import PROJECT, run_command

ROUNDS = ("--rounds=2", "--runs=24", "--seed=3", "--seconds=15")
DEADLINE = 300.0


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_no_run_is_lost_or_started_twice_when_processes_die(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "tests.chaos", *ROUNDS, f"--deadline={DEADLINE}", f"--homes={tmp_path}"]
    # It ends its processes itself at its deadline, so it gets a little longer than that.
    finished = run_command(command, os.environ, PROJECT, DEADLINE + 60)
    assert finished.exit_code == 0, finished
