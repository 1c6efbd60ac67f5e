"""Mends reach every process of Guild, and nothing else: neither Python without Guild nor the user's code."""

import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

import guild_dask
from tests.support.sandbox import PROJECT, Guild, Sandbox

pytestmark = pytest.mark.every_python

# Prints what a user's script could notice of the mends.
SCRIPT = """
import builtins, multiprocessing, sys
x = 1
assert __builtins__ is vars(builtins)
assert __import__ is builtins.__import__
assert type(builtins.__import__).__name__ == "builtin_function_or_method"
assert not any("guild_dask" in repr(sys.modules.get(name)) for name in ("ast", "imp", "numpy", "pkg_resources"))
import ast
assert type(ast).__name__ == "module"
if sys.version_info >= (3, 12):
    try:
        import imp
    except ImportError:
        print("no imp")
if __name__ == "__main__":
    # The new process loads the main module of this one again, which is Guild's.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print("spawned:", pool.map(abs, [-1]))
"""


def test_script_of_a_user_sees_no_mend(guild: Guild, user: Sandbox) -> None:
    (user.folder / "script.py").write_text(SCRIPT)
    output = guild("run script.py x=2 -y").output
    assert "spawned: [1]" in output
    assert ("no imp" in output) == (sys.version_info >= (3, 12))


def test_finder_of_another_age_is_no_obstacle(user: Sandbox) -> None:
    old = "type('Old', (), {'find_module': lambda *_: None})()"
    code = f"import sys; sys.meta_path.insert(0, {old}); import guild.python_util; print('imported')"
    assert python(user, code) == "imported"


def test_remains_of_a_package_do_not_matter(user: Sandbox) -> None:
    # As an interrupted `pip uninstall` leaves them.
    (user.folder / "site" / "broken-1.0.dist-info").mkdir(parents=True)
    code = "from guild_dask.mends import stand_in_pkg_resources as p; print('guild-dask' in p.working_set.by_key)"
    assert python(user, code, "-W", "error", PYTHONPATH=str(user.folder / "site")) == "True"


def test_traceback_of_a_user_has_no_line_of_the_mends(guild: Guild, user: Sandbox) -> None:
    (user.folder / "script.py").write_text("def f():\n    raise ValueError('no')\n\nf()\n")
    output = guild("run script.py -y", exit_code=1).output
    assert re.findall(r'File ".*/(.*)", line (\d+)', output) == [("script.py", "4"), ("script.py", "2")]


def python(user: Sandbox, code: str, *options: str, **variables: str) -> str:
    """Returns what a piece of code prints."""
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=user.folder,
        env={**user.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


LOADED = "import sys; print(*sorted(name for name in sys.modules if name.partition('.')[0] == 'guild_dask'))"
FIRST = "import sys; print(sum(type(each).__name__ == 'Waiting' for each in sys.meta_path))"


@pytest.mark.parametrize("options", [(), ("-I",), ("-E", "-s")])
def test_python_without_guild_loads_the_hook_only(user: Sandbox, options: tuple[str, ...]) -> None:
    assert python(user, LOADED, *options).split() == ["guild_dask", "guild_dask.mends", "guild_dask.mends.hook"]
    assert python(user, FIRST, *options) == "1"


def test_hook_brings_no_other_module(user: Sandbox) -> None:
    # What every Python process would pay for: `typing` alone takes several milliseconds.
    code = "import os, sys; before = set(sys.modules); import guild_dask.mends.hook; print(*set(sys.modules) - before)"
    where = str(pathlib.Path(guild_dask.__file__).parents[1])
    brought = python(user, code, "-S", PYTHONPATH=where).split()
    assert sorted(brought) == ["guild_dask", "guild_dask.mends", "guild_dask.mends.hook"]


@pytest.mark.parametrize("value", ["off", "no", "0"])
def test_mends_can_be_switched_off(user: Sandbox, value: str) -> None:
    assert python(user, FIRST, GUILD_DASK_MENDS=value) == "0"


def test_guild_goes_on_without_mends_that_cannot_be_loaded(user: Sandbox) -> None:
    code = "import sys; sys.modules['guild_dask.mends.loading'] = None; import guild; print(guild.__version__)"
    assert python(user, code) == "0.9.0"


def test_mend_that_fails_is_noted(user: Sandbox) -> None:
    code = """
import dataclasses
from guild_dask.mends import loading, table
def fail(module):
    raise RuntimeError("no")
good = next(mend for mend in table.MENDS if mend.name == "chardet")
table.MENDS += (dataclasses.replace(good, name="bad", needed=(), change=fail),)
from guild import util
print(loading.FAILED)
"""
    assert python(user, code) == str({"bad": "RuntimeError('no')"})


BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""


@pytest.mark.parametrize("kind", ["build_wheel", "build_editable"])
def test_installation_has_the_files_that_python_reads_at_its_start(tmp_path: pathlib.Path, kind: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "guild_dask"):
        (source / name).symlink_to(PROJECT / name)
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUILD, kind, str(tmp_path)], cwd=source, check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        assert files.read("guild_dask_mends.start") == b"guild_dask.mends.hook:install\n"
        line = files.read("guild_dask_mends.pth").decode()
    assert line.startswith("import ")
    assert line.count("\n") == 1
    # Without the package, as after half an uninstallation, the line does nothing.
    subprocess.run([sys.executable, "-S", "-I", "-c", line], check=True)
