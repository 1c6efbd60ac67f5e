"""The wording of messages can change without any other effect: no code reads them."""

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest
import yaml

from guild_dask.home import attempts
from guild_dask.monitor.report.files import history_of
from guild_dask.plan.reasons import NotDefined
from tests.support import rewording, wording_stories
from tests.support.rewording import MARK
from tests.support.sandbox import PROJECT, Guild, Sandbox, run_command
from tests.support.scheduling import NO_DASHBOARD, a_project, stage
from tests.support.wording_stories import REWORDED, RUN

OPERATIONS = """
nap: {exec: 'sleep 3600'}
bad: {exec: 'sh -c "exit 3"'}
die: {exec: 'python -c "import os; os.kill(os.getpid(), 11)"'}
"""


def told(what: str, home: pathlib.Path, *wording: str) -> str:
    command = [sys.executable, "-m", wording_stories.__name__, what, str(home), *wording]
    finished = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_every_message_is_reworded() -> None:
    code = "import rewording; rewording.install(); from guild_dask.plan import reasons; print(reasons.InUse('a', 1, 0))"
    folder = str(pathlib.Path(rewording.__file__).parent)
    finished = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert finished.stdout.replace(MARK, "") == "waits for a=1, 0 free\n"
    assert finished.stdout.count(MARK) == 4


def test_records_lead_to_the_same_in_any_wording(user: Sandbox, guild: Guild, tmp_path: pathlib.Path) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "bad", RUN)
    found: list[dict[str, Any]] = []
    for number, (writer, reader) in enumerate(itertools.product(((), (REWORDED,)), repeat=2)):
        home = tmp_path / f"home{number}"
        shutil.copytree(user.guild_home, home)
        told("write", home, *writer)
        found.append(json.loads(told("read", home, *reader)))
    plain = found[0]
    assert plain["is read back"]
    assert len(plain["recovered"]) > 1
    for other, (name, value) in itertools.product(found[1:], plain.items()):
        assert other[name] == value, name


def test_what_a_scheduler_records_in_other_words_is_explained_as_ever(
    user: Sandbox, guild: Guild, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa", options="--tag dask-time:1s")
    stage(guild, "bad", "bbb", options="--tag dask-retries:1")
    stage(guild, "die", "ccc")
    stage(guild, "bad", "ddd", options="--tag dask:foo=1")
    with monkeypatch.context() as patched:
        patched.setenv("PYTHONPATH", rewording.environment(tmp_path / "first")["PYTHONPATH"])
        output = guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} --run-id sss -y").output
    assert f"Run {MARK}aaa {MARK}was {MARK}terminated" in output
    runs = user.guild_home / "runs"
    facts = {run: yaml.safe_load((runs / run / ".guild" / "attrs" / "dask").read_text()) for run in ("aaa", "ccc")}
    assert (facts["aaa"]["ended"], facts["aaa"]["ended_limit"]) == ("time-limit", 1.0)
    assert facts["ccc"]["killed_by_signal"] == 11
    assert [(past.cause, past.exit_status) for past in attempts.past(str(runs / "bbb"))] == [(None, 3)]
    story = history_of(str(runs / "sss"))
    assert story
    assert story.left == {"ddd": NotDefined(("foo",))}
    assert {span.run.run: (span.run.cause, span.run.is_failure) for span in story.spans} == {
        "aaa": ("time-limit", True),
        "bbb": ("", True),
        "ccc": ("", True),
    }
    for run, text in (("aaa", "It was ended: it ran for 1s, its time limit."), ("ccc", "It failed: it was killed by")):
        assert text in " ".join(run_command(f"guild-dask explain {run}", os.environ, os.getcwd()).output.split())
