"""What the forkserver loads, so that a start need not."""

import ast
import json
import pathlib
import re
import subprocess
import sys

import pytest

# Prints the modules of guild_dask that a forkserver has loaded, with their files.
LOADED = """
import json, sys
from guild_dask.worker import forkserver
forkserver.load()
print(json.dumps({name: each.__file__ for name, each in sys.modules.items() if name.startswith("guild_dask")}))
"""

# Prints the modules that a forkserver is to load and has not.
MISSING = """
import sys
from guild_dask.worker import forkserver
forkserver.load()
print(*(name for name in forkserver._PRELOADED if name not in sys.modules))
"""

# Prints how a program that a forkserver starts handles three signals.
HANDLERS = """
import signal, subprocess, sys
from guild_dask.worker import forkserver
forkserver.handle_ignored()
names = ("SIGTERM", "SIGHUP", "SIGINT")
code = f"import signal; print(*(repr(signal.getsignal(getattr(signal, each))) for each in {names}), sep='; ')"
subprocess.run([sys.executable, "-c", code], check=True)
"""


def imported_late(path: str) -> set[str]:
    """Returns the modules of guild_dask that the functions of a module import when they are called."""
    tree = ast.parse(pathlib.Path(path).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found = [node for function in functions for node in ast.walk(function) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in found if node.module and node.module.startswith("guild_dask")]
    return {f"{node.module}.{alias.name}" for node in ours for alias in node.names}


def is_module(name: str) -> bool:
    return (pathlib.Path(__file__).parents[2] / f"{name.replace('.', '/')}.py").exists()


def test_starter_finds_all_of_guild_dask_loaded() -> None:
    # To define the classes of one such module takes longer than most of what a starter does.
    printed = subprocess.run([sys.executable, "-c", LOADED], check=True, stdout=subprocess.PIPE, text=True).stdout
    loaded: dict[str, str] = json.loads(printed)
    # The mends load what the versions of Python and Guild need.
    paths = [path for name, path in loaded.items() if path and not name.startswith("guild_dask.mends")]
    late = {name for path in paths for name in imported_late(path)}
    assert {name for name in late if is_module(name) or is_module(name.rpartition(".")[0])}
    assert {name for name in late if is_module(name) and name not in loaded} == set()
    assert {parent for name in late if is_module(parent := name.rpartition(".")[0]) and parent not in loaded} == set()


@pytest.mark.every_python
def test_forkserver_loads_all_that_a_start_imports() -> None:
    # A mend that is for Guild only must be for the forkserver, too.
    printed = subprocess.run([sys.executable, "-c", MISSING], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert printed.split() == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has forkservers")
def test_signals_that_a_worker_ignores_are_not_ignored_by_warm_servers() -> None:
    # As with `nohup dask worker ... &`. A starter handles them, so that a fresh process does not ignore them either.
    command = ["sh", "-c", 'trap "" HUP INT TERM; exec "$@"', "sh", sys.executable, "-c", HANDLERS]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert re.findall(r"SIG_\w+|default_int_handler", printed) == ["SIG_DFL", "SIG_DFL", "default_int_handler"]
