"""What shells offer when a user presses the Tab key."""

import os

import pytest

from tests.support.sandbox import Guild, Sandbox, run_command, wait_until
from tests.support.scheduling import NO_DASHBOARD, a_project, stage, statuses

OPERATIONS = """
nap: {exec: 'sleep 3600'}
bad: {exec: 'false'}
"""


def offered(words: str, shell: str = "bash") -> list[str]:
    """Returns what a shell offers at the end of a command line."""
    line = f"guild-dask {words}"
    variables = {
        "_GUILD_DASK_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": line,
    }
    # In fish, COMP_CWORD is the word that is being completed; in the others, its number.
    number = str(len(line.split(" ")) - 1)
    variables["COMP_CWORD"] = line.rsplit(" ", maxsplit=1)[-1] if shell == "fish" else number
    finished = run_command("guild-dask", {**os.environ, **variables}, os.getcwd())
    assert finished.exit_code == 0, finished
    assert "Traceback" not in finished.output, finished
    lines = finished.output.strip().splitlines()
    if shell == "zsh":
        return lines[1::3]  # each is a kind, a text and a help
    return [line.split(",", 1)[-1].split("\t")[0] for line in lines]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_offer_what_a_command_can_use(user: Sandbox, guild: Guild, shell: str) -> None:
    a_project(user, OPERATIONS)
    stage(guild, "nap", "aaa")
    stage(guild, "bad", "bbb")
    guild(f"run dask:scheduler --run-id sss workers=2 {NO_DASHBOARD} --background -y")
    wait_until(lambda: statuses(user) == {"aaa": "running", "bbb": "error", "sss": "running"}, describe=lambda: "runs")
    stage(guild, "nap", "ccc", options="--tag dask:gpu=1")
    assert offered("pause ", shell) == ["sss"]
    assert offered("stop ", shell) == ["aaa"]
    assert offered("retry ", shell) == ["bbb"]
    assert offered("priority ", shell) == ["ccc"]
    assert offered("explain b", shell) == ["bbb"]
    assert offered("report ", shell) == ["sss"]
    guild("stop -Fo dask:scheduler -y")


def test_nothing_is_offered_without_a_guild_home(user: Sandbox) -> None:
    assert offered("pause ") == []
    assert offered("-H /no/where stop ") == []
