"""A search that is killed at any of its writes stages each trial once, and no point twice."""

import json
import os
import pathlib
import subprocess
import sys

from tests.scheduler.search import crash_script
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import a_project, scheduler_process

TRAIN = """
train:
  main: train
  flags-import: all
"""
# Waits for a file, so that a test decides when trials end.
SCRIPT = """
import os, time
x = 1
while not os.path.exists(os.environ["GUILD_HOME"] + "/enough"):
    time.sleep(0.05)
print("loss: %d" % x)
"""
SEARCH = "--optimizer dask:random --max-trials 3 --run-id batch -Fo workers=2 -Fo dashboard-address=no"


def test_step_that_is_killed_at_any_write_is_completed_by_the_next(user: Sandbox, guild: Guild) -> None:
    a_project(user, TRAIN, {"train.py": SCRIPT})
    guild("run train x=[1:9] --optimizer dask:random --run-id batch --stage -y")
    script = [sys.executable, crash_script.__file__, str(user.guild_home), "batch", "17"]
    environ = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    done = subprocess.run(script, env=environ, check=True, capture_output=True, text=True)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) > 3, "it was killed at several writes"
    for result in results:
        ids, states, points, markers = zip(*result["trials"], strict=True)
        assert all(markers), result
        assert states == ("waiting",) * crash_script.TRIALS, result
        assert len({*points} - {None}) == crash_script.TRIALS, result
        assert sorted(ids) == result["runs"], result


def test_stopped_search_ends_its_trials_and_stages_them_again_when_it_goes_on(user: Sandbox, guild: Guild) -> None:
    a_project(user, TRAIN, {"train.py": SCRIPT})
    with guild.started(f"run train x=[1:9] {SEARCH} -y") as search:
        wait_until(lambda: _statuses(guild).count("running") == 2, describe=search.so_far)
        guild("stop batch -y", timeout=60)
        assert "The search was stopped" in search.wait().output
    assert _statuses(guild) == ["terminated"] * 2
    (user.guild_home / "enough").touch()
    output = guild("run --restart batch -y").output
    assert output.count("Staged trial ") == 2, "those that were cut short"
    assert _statuses(guild) == ["completed"] * 3


def test_search_goes_on_as_its_own_scheduler_if_the_one_it_proposed_for_is_killed(user: Sandbox, guild: Guild) -> None:
    a_project(user, TRAIN, {"train.py": SCRIPT})
    with guild.started("run dask:scheduler workers=1 dashboard-address=no -y") as scheduler:
        scheduler.wait_for_output("Waiting for staged runs")
        with guild.started(f"run train x=[1:9] {SEARCH} -y") as search:
            search.wait_for_output("Proposing trials for scheduler")
            wait_until(lambda: _statuses(guild) == ["running"], describe=search.so_far)
            scheduler_process(user).kill()
            scheduler.kill()
            search.wait_for_output("Initializing cluster with 2 workers")
            (user.guild_home / "enough").touch()
            assert "The search is over: it has had 3 trial(s)" in search.wait().output
    assert _statuses(guild) == ["completed"] * 3


def _statuses(guild: Guild) -> list[str]:
    lines = guild("runs --operation train --json").output
    return [str(run["status"]) for run in json.loads(lines)]
