"""Guild records the same for a run whether the user or a scheduler started it.

A starter that is forked from the forkserver has Guild read and write its records with the compiled half of PyYAML, and
with the other half what that does not take.
"""

import contextlib
import pathlib
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from guild import yaml_util
from hypothesis import example, given, settings
from hypothesis import strategies as some

from guild_dask.worker import forkserver
from tests.support.sandbox import Guild, Sandbox
from tests.support.scheduling import NO_DASHBOARD

# Texts that YAML could read as another type, or wrap.
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

# Records that differ for each run, or that we write.
_OWN = {"id", "initialized", "started", "stopped", "dask", "label", "random_seed"}
_OWN_VARIABLES = {"RUN_ID", "RUN_DIR", "CMD_DIR", "PWD", "_", "SHLVL"}

values = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(),
    lambda of: some.lists(of, max_size=4) | some.dictionaries(some.text(), of, max_size=4),
    max_leaves=10,
)


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
    (user.folder / "guild.yml").write_text(PROJECT.format("\n    ".join(f"{name}: x" for name in DIFFICULT)))
    flags = [f"{name}={text}" for name, text in DIFFICULT.items()]
    for run_id in ("aaa", "bbb"):
        guild(shlex.join(["run", "op", *flags, "--stage", "-y", "--run-id", run_id]))
    # Not earlier: with a lone surrogate in a variable, Guild cannot stage a run, but it can start one.
    monkeypatch.setenv("DIFFICULT", DIFFICULT["marks"] + DIFFICULT["face"])
    monkeypatch.setenv("HALF_A_LETTER", "a\udcffb")
    guild("run --start aaa -y")
    guild(f"run dask:scheduler run-once=yes {NO_DASHBOARD} -y")
    by_hand, by_us = _records(user, "aaa"), _records(user, "bbb")
    assert by_us["exit_status"] == 0
    assert by_us == by_hand
    assert by_us["flags"]["face"] == DIFFICULT["face"]
    assert by_us["env"]["HALF_A_LETTER"] == "a\udcffb"


@contextlib.contextmanager
def libyaml() -> Iterator[None]:
    """Reads and writes YAML as the forkserver does."""
    before = yaml.safe_load, yaml.safe_dump
    forkserver.use_libyaml()
    try:
        yield
    finally:
        yaml.safe_load, yaml.safe_dump = before


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="this PyYAML was built without libyaml")
def test_libyaml_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    class Loader(yaml.CSafeLoader):  # type: ignore[misc]
        def __init__(self, stream: object) -> None:
            used.append("load")
            super().__init__(stream)

    class Dumper(yaml.CSafeDumper):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            used.append("dump")
            super().__init__(*args, **options)

    monkeypatch.setattr(yaml, "CSafeLoader", Loader)
    monkeypatch.setattr(yaml, "CSafeDumper", Dumper)
    with libyaml():
        assert yaml_util.decode_yaml(yaml_util.encode_yaml({"a": 1})) == {"a": 1}
    assert used == ["dump", "load"]


@settings(deadline=None)
@given(values)
@example("y")
@example("\udcff")
@example({"a\udcffb": "\ud800"})
def test_values_are_written_and_read_as_by_pyyaml(value: object) -> None:
    written = yaml_util.encode_yaml(value, strict=True)
    with libyaml():
        written_by_libyaml = yaml_util.encode_yaml(value, strict=True)
        read = [yaml_util.decode_yaml(text) for text in (written, written_by_libyaml)]
    read += [yaml_util.decode_yaml(text) for text in (written, written_by_libyaml)]
    assert len({repr(each) for each in read}) == 1


@pytest.mark.parametrize("text", ["[1, 2", "a: b: c", "\0", "'"])
def test_errors_are_the_same(text: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "record").write_text(text)
    with libyaml():
        complaint = _complaint(tmp_path / "record")
    assert complaint == _complaint(tmp_path / "record")
    assert str(tmp_path) in complaint


def _complaint(path: pathlib.Path) -> str:
    with path.open() as f, pytest.raises(yaml.YAMLError) as caught:
        yaml.safe_load(f)
    return str(caught.value)
