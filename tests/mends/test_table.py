"""Each mend is needed where the table says so, and only there: a piece of Guild works with it and fails without it."""

import importlib.metadata
import pathlib
import subprocess
import sys

import pytest

from guild_dask.mends.mend import PYTHON, Mend, Range, version_of
from guild_dask.mends.table import MENDS
from tests.support.sandbox import Sandbox

pytestmark = pytest.mark.every_python

WITHOUT = """
from guild_dask.mends import table
table.MENDS = tuple(each for each in table.MENDS if each.name != {name!r})
"""

MINIMIZE = """
from guild import _skopt
_skopt.{kind}_minimize(lambda x: x[0] ** 2, [(0.0, 2.0)], n_calls=3, n_random_starts=2, random_state=1)
"""

# A piece of Guild for each mend, which raises or prints something to stderr if the mend is missing.
USES = {
    "imp": "import guild.op_main",
    "pkg_resources": """
import warnings
warnings.simplefilter("error", UserWarning)
from guild import plugin
assert "guild_dask" in [name for name, _ in plugin.iter_plugins()]
""",
    "ast": """
import warnings
warnings.simplefilter("error", DeprecationWarning)
from guild import python_util
found = python_util.Script("values.py").params
assert found == {"a": 1, "b": -2.5, "c": "text", "d": True, "e": None, "f": [1, "x"], "g": {"k": 3}}, found
""",
    "find_spec": """
import os, sys
from guild import model
sys.path.insert(0, os.getcwd())
sys.path_importer_cache.clear()
import colorsys
""",
    "protobuf": """
import tempfile
from guild import summary, tfevent
folder = tempfile.mkdtemp(dir=".")
with summary.SummaryWriter(folder) as writer:
    writer.add_scalar("loss", 1.5, 1)
assert list(tfevent.ScalarReader(folder)) == [("loss", 1.5, 1)]
""",
    "umath_tests": "import guild.plugins.skopt_forest_main, guild.plugins.skopt_gbrt_main",
    "is_regressor": """
from guild import _skopt
_skopt.Optimizer([(0.0, 2.0)], "GBRT")
_skopt.Optimizer([(0.0, 2.0)], "dummy")
""",
    "max_features": MINIMIZE.format(kind="forest"),
    "in1d": MINIMIZE.format(kind="gbrt"),
    "chardet": """
from guild import util
assert not util.is_text_file("weights.unknown")
assert util.is_text_file("values.py", ignore_ext=True)
""",
    "click-steps": """
from guild import steps_main
steps_main._run_params_for_step_data({"run": "op"})
""",
    "click-flags": """
import json, runpy, sys
sys.argv = ["click_flags", "script.py", "", "", "flags.json"]
runpy.run_module("guild.plugins.click_flags", run_name="__main__", alter_sys=True)
flags = json.load(open("flags.json"))
assert "default" not in flags["name"], flags
assert (flags["fast"]["default"], flags["fast"]["arg-switch"], flags["x"]["default"]) == (False, True, 1), flags
assert flags["rate"] == {"required": True, "type": "float"}, flags
assert flags["mode"] == {"required": True, "arg-switch": True, "type": "boolean"}, flags
""",
    "click-doubled": """
import warnings
warnings.simplefilter("error", UserWarning)
from guild.commands import api_merge, merge, runs_merge
for command in (api_merge.main, merge.merge, runs_merge.merge_runs):
    assert command.make_context("merge", ["-S"]).params["no_summary"]
""",
    "second-start": """
import os, types
from guild import op
from guild_dask.home import claims, layout
from guild_dask.host import processes
home, me = os.environ["GUILD_HOME"], processes.identity(os.getpid())
os.makedirs(layout.run_dir(home, "aaa"))
claims.write(layout.claims_folder(home), claims.Claim("aaa", "sss", me, me))
operation = types.SimpleNamespace(run_dir=layout.run_dir(home, "aaa"), opref=None)
try:
    op.init_run(operation)
except SystemExit as e:
    assert "scheduler sss is about to start aaa" in str(e), e
else:
    raise AssertionError("the run was started")
""",
    "preview": """
import types
from guild import opref
from guild.commands import run_impl
def is_optimizer(model, name):
    return run_impl._is_likey_optimizer(types.SimpleNamespace(opref=opref.OpRef("builtin", "p", "1", model, name)))
assert is_optimizer("dask", "random")
assert not is_optimizer("skopt", "random") and not is_optimizer("", "+")
""",
    "new-run": """
import os
from guild import var
os.makedirs(os.path.join(var.runs_dir(), "aaa", ".guild"))
assert not var.runs()
open(os.path.join(var.runs_dir(), "aaa", ".guild", "opref"), "w").close()
assert not var.runs()
""",
    "started-run": """
import os
from guild import run
os.makedirs("aaa/.guild")
for opref in ("test:a 1 m op", "test:a 2 m op", "test:a 2 m op"):
    if os.path.exists("aaa/.guild/opref"):
        os.utime("aaa/.guild/opref", (0, 0))
    run.Run("aaa", "aaa").write_encoded_opref(opref)
    assert open("aaa/.guild/opref").read() == opref
assert os.path.getmtime("aaa/.guild/opref") == 0, "it was written again"
""",
    "staged-run": """
import os
from guild import op, op_util, run
staged, set_started = run.Run("aaa", os.path.abspath("aaa")), op_util.set_run_started
staged.init_skel()
op_util.set_run_pending(staged)

def take(run):  # a scheduler takes it as soon as it is staged
    set_started(run)
    assert run.status == "staged"
    op_util.set_run_marker(run, "PENDING")
    op_util.clear_run_marker(run, "STAGED")

op.init_run, op._stage_run_proc_env, op._resolve_deps = lambda op: staged, lambda *_: None, lambda *_, **__: None
op_util.set_run_started = take
assert op.stage(None).status == "pending"

def fail(*_, **__):
    raise ValueError

op_util.set_run_pending(staged)
other = run.Run("aaa", staged.dir)
op.init_run, op._resolve_deps = lambda op: other, fail
try:
    op.stage(None)
except ValueError:
    assert other.status == "error"
""",
}

VALUES = (
    "a = 1\nb = -2.5\nc = 'text'\nd = True\ne = None\nf = [1, 'x']\ng = {'k': 3}\nh = b'bytes'\ni = ...\nj = f(1)\n"
)

CLICK_SCRIPT = """
import click

@click.command()
@click.option("--x", default=1)
@click.option("--name")
@click.option("--fast", is_flag=True)
@click.option("--rate", required=True, type=float)
@click.option("--mode/--no-mode", required=True)
def main(x, name, fast, rate, mode):
    pass

main()
"""


def problems(user: Sandbox, code: str) -> str:
    """Returns what a piece of code says about its failure, in the user's folder; empty if it works."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=user.folder, env=user.environ, capture_output=True, text=True, check=False
    )
    return done.stderr or ("" if done.returncode == 0 else f"exit code {done.returncode}")


@pytest.mark.parametrize("mend", MENDS, ids=lambda mend: mend.name)
def test_guild_fails_without_the_mend_where_it_is_needed(user: Sandbox, mend: Mend) -> None:
    write_project(user.folder)
    assert problems(user, USES[mend.name]) == ""
    without = problems(user, WITHOUT.format(name=mend.name) + USES[mend.name])
    assert bool(without) == mend.is_needed(version_of), without


def write_project(folder: pathlib.Path) -> None:
    (folder / "guild.yml").write_text("op:\n  main: op\n")
    (folder / "values.py").write_text(VALUES)
    (folder / "script.py").write_text(CLICK_SCRIPT)
    # As in tests/project/test_guild_works.py: with a current chardet Guild fails at this one.
    (folder / "weights.unknown").write_bytes(b"\x89\x12\xe3\xff\xd0\x00" * 10)


def test_each_mend_has_a_name_of_its_own_a_reason_and_a_use() -> None:
    assert [mend.name for mend in MENDS] == list(USES)
    assert all(mend.why and mend.where for mend in MENDS)


@pytest.mark.parametrize(
    ("versions", "version", "has"),
    [
        (Range("click", "8.3"), "8.2.1", False),
        (Range("click", "8.3"), "8.3", True),
        (Range("click", "8.3"), "8.10.0rc1", True),
        (Range("click", "8.3"), None, False),
        (Range("protobuf", before="5"), "4.25.9", True),
        (Range("protobuf", before="5"), "5.0", False),
        (Range("setuptools", "80.9", or_missing=True), None, True),
    ],
)
def test_range_of_versions(versions: Range, version: str | None, has: bool) -> None:
    assert versions.has(version) is has


def test_no_mend_is_applied_to_a_guild_that_it_was_not_written_for() -> None:
    assert not any(mend.is_needed(lambda name: "0.10" if name == "guildai" else "99") for mend in MENDS)
    assert any(mend.is_needed(lambda name: None if name == "guildai" else "99") for mend in MENDS)


def test_versions_are_those_that_pip_knows() -> None:
    names = ("guildai", "click", "chardet", "numpy", "protobuf", "scikit-learn")
    assert {name: version_of(name) for name in names} == {name: importlib.metadata.version(name) for name in names}
    assert version_of(PYTHON) == sys.version.split()[0]
    assert version_of("no-such-package") is None
