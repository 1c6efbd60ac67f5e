"""The environment that a run sees: that of the user's shell."""

import json
import os
import pathlib
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guild_dask.host.environment import OVERRIDDEN, overridden_variables, user_environment
from tests.support.sandbox import Guild

checked = settings(deadline=None, max_examples=150)

# The characters that an operating system accepts. Surrogates are Python's form of bytes that are not UTF-8.
CHARACTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.characters(
    min_codepoint=0xDC80, max_codepoint=0xDCFF, categories=["Cs"]
)
NAMES = st.sampled_from(
    ["RUN_ID", "RUN_DIR", "LOG_LEVEL", "GUILD_OP", "FLAG_LR", "PYTHONPATH", "PATH", "FLAG_"]
) | st.text(CHARACTERS.filter(lambda character: character != "="), min_size=1)
ENVIRONMENTS = st.dictionaries(NAMES.filter(lambda name: name != OVERRIDDEN), st.text(CHARACTERS))

SET_BY_GUILD = {
    "RUN_ID": "aaa",
    "RUN_DIR": "/runs/aaa",
    "LOG_LEVEL": "20",
    "GUILD_OP": "dask:scheduler",
    "FLAG_LR": "1",
}


@checked
@given(ENVIRONMENTS)
def test_run_sees_what_the_user_has_set_and_nothing_of_the_scheduler(user: dict[str, str]) -> None:
    scheduler = {**user, **overridden_variables(user), **SET_BY_GUILD}
    assert user_environment(scheduler) == user


@checked
@given(ENVIRONMENTS)
def test_guild_does_not_change_the_variable(user: dict[str, str]) -> None:
    # Guild resolves `${...}` in the variables that a plugin adds.
    for text in overridden_variables(user).values():
        assert "$" not in text
        assert text.isascii()


def test_there_is_no_variable_if_guild_overrides_nothing() -> None:
    assert overridden_variables({"PATH": "/bin", "HOME": "/root"}) == {}


@checked
@given(st.text() | st.recursive(st.none() | st.text(), st.lists).map(json.dumps))
def test_unreadable_variable_is_ignored(text: str) -> None:
    assert user_environment({"PATH": "/bin", OVERRIDDEN: text}) == {"PATH": "/bin"}


SHOW = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"


@pytest.mark.parametrize(
    "variables", [{}, {"RUN_ID": "mine", "FLAG_LR": "${x}", "PYTHONPATH": "/mine", "LOG_LEVEL": "30"}]
)
def test_all_variables_that_guild_sets_are_known(
    guild: Guild, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, variables: dict[str, str]
) -> None:
    # The scheduler is such an operation. This fails if another version of Guild sets more variables.
    shown = tmp_path / "shown.json"
    pathlib.Path("show.py").write_text(SHOW)
    exec_ = json.dumps(f"{sys.executable} {os.path.abspath('show.py')} {shown} ${{flag_args}}")
    pathlib.Path("guild.yml").write_text(f"show:\n  exec: {exec_}\n  flags: {{rate: 1}}\n")
    # In the C locale, Python would set a variable of its own.
    for name, value in {**variables, "LC_ALL": "C.UTF-8"}.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    for name, value in overridden_variables(before).items():
        monkeypatch.setenv(name, value)
    guild("run show -y")
    assert user_environment(json.loads(shown.read_text())) == before
