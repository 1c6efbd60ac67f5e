"""Which commands may be stopping a run."""

from collections.abc import Mapping

import pytest

from guild_dask.worker.guild_stop import may_stop

HOME = "/home/me/.guild"
RUN = "4c07aaaa"
MINE: Mapping[str, str] = {"GUILD_HOME": HOME}


@pytest.mark.parametrize(
    "words",
    [
        "guild stop",
        "/venv/bin/python3 /venv/bin/guild stop",
        "/venv/bin/python /venv/bin/guild stop 4c07 -y",
        "python -um guild.main_bootstrap stop -y",
        "guild runs stop 1",
        "guild runs delete 2:3 --yes",
        "guild runs rm -y",
        "guild stop -Fo train",
        "guild -H /home/me/.guild stop 4c07aaaa",
    ],
)
def test_guild_command_that_may_choose_the_run_may_stop_it(words: str) -> None:
    assert may_stop(words.split(), MINE, RUN, HOME)
    assert may_stop(words.split(), {}, RUN, HOME)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "guild",
        "guild runs",
        "guild run train --stage",
        "python stop.py",
        "python train.py --then guild stop",
        "sh -c sleep guild stop",
        "vim guild stop",
        "guild stop 9999bbbb",
        "guild stop 9999bbbb -y",
        "guild -H /home/other/.guild stop",
        "guild --guild-home /home/other/.guild runs rm -y",
    ],
)
def test_other_command_does_not_stop_the_run(words: str) -> None:
    assert not may_stop(words.split(), MINE, RUN, HOME)


def test_command_on_another_home_does_not_stop_the_run() -> None:
    assert not may_stop(["guild", "stop"], {"GUILD_HOME": "/home/other/.guild"}, RUN, HOME)
    assert may_stop(["guild", "stop"], {"GUILD_HOME": f"{HOME}/"}, RUN, HOME)
