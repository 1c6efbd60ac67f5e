"""What Guild has on record for a run is the same whoever started it.

A starter that is forked from the template has Guild read and write its records with the compiled half of PyYAML.
"""

import pathlib
import shlex
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as some
from scheduling import NO_DASHBOARD
from support import Guild, Sandbox

# Texts that YAML could take for something else, or break in two.
DIFFICULT = {
    "plain": "a b",
    "number": "'1e3'",
    "octal": "'010'",
    "truth": "'yes'",
    "nothing": "'null'",
    "marks": "a: b # c",
    "quotes": 'it\'s "so"',
    "lines": "one\ntwo\n",
    "long": "a long text that has to be broken in two, since it has more than eighty characters in one line, and more",
    "face": "\U0001f600 é",
    "empty": "",
    "list": "'[1, 2]'",
    "small": "1e-5",
    "date": "'2026-11-16'",
}

PROJECT = """
op:
  exec: 'true'
  flags:
    {}
"""

# What is another for each run, or said by us.
_OWN = {"id", "initialized", "started", "stopped", "dask", "label", "random_seed"}
_OWN_VARIABLES = {"RUN_ID", "RUN_DIR", "CMD_DIR", "PWD", "_", "SHLVL"}

values = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text(),
    lambda of: some.lists(of, max_size=4) | some.dictionaries(some.text(), of, max_size=4),
    max_leaves=10,
)

_DUMPERS = (yaml.SafeDumper, getattr(yaml, "CSafeDumper", yaml.SafeDumper))
_LOADERS = (yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _records(user: Sandbox, run_id: str) -> dict[str, Any]:
    folder = pathlib.Path(user.guild_home, "runs", run_id, ".guild", "attrs")
    found = {path.name: yaml.safe_load(path.read_text()) for path in folder.iterdir() if path.name not in _OWN}
    found["env"] = {name: text for name, text in found["env"].items() if name not in _OWN_VARIABLES}
    found["run_params"].pop("run_id")
    return found


@pytest.mark.every_python
def test_records_are_the_same_as_after_a_start_by_hand(
    guild: Guild, user: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIFFICULT", DIFFICULT["marks"] + DIFFICULT["face"])
    (user.folder / "guild.yml").write_text(PROJECT.format("\n    ".join(f"{name}: x" for name in DIFFICULT)))
    flags = [f"{name}={text}" for name, text in DIFFICULT.items()]
    for run_id in ("aaa", "bbb"):
        guild(shlex.join(["run", "op", *flags, "--stage", "-y", "--run-id", run_id]))
    guild("run --start aaa -y")
    guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y")
    by_hand, by_us = _records(user, "aaa"), _records(user, "bbb")
    assert by_us["exit_status"] == 0
    assert by_us == by_hand
    assert by_us["flags"]["face"] == DIFFICULT["face"]


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="this PyYAML has no compiled half")
@settings(deadline=None)
@given(values)
def test_both_halves_of_pyyaml_agree(value: object) -> None:
    texts = [yaml.dump(value, Dumper=dumper, default_flow_style=False, indent=2) for dumper in _DUMPERS]
    read = [yaml.load(text, Loader=loader) for text in texts for loader in _LOADERS]
    assert read[0] == value
    assert len({repr(each) for each in read}) == 1
