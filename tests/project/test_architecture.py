"""Who may know what: the table in docs/architecture.md, enforced on the source.

A rule takes the modules of the package and returns complaints. That each rule can fail is tested, too, on modules
with a line too many. A module that no rule names gets the strictest one: neither Guild nor Dask.
"""

import ast
import functools
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from tests.support.sandbox import PROJECT

PACKAGE = "guild_dask"

GUILD = frozenset(("guild",))
DASK = frozenset(("bokeh", "dask", "dask_jobqueue", "distributed", "tornado"))

# Of these, all files are meant where the module is a package.
KNOWS_DASK = frozenset(("cluster",))
# Beside the cluster, each of these knows one of what Dask brings: what draws, or what serves a page.
KNOWS_PART_OF_DASK: Mapping[str, frozenset[str]] = {
    "page.handlers": frozenset(("tornado",)),
    "page.server": frozenset(("tornado",)),
    "report.charts": frozenset(("bokeh",)),
    "report.page": frozenset(("bokeh",)),
}
KNOWS_GUILD = frozenset(("guild_compatibility", "plugin", "rundir", "runs"))
KNOWS_GUILD_IN_FUNCTIONS = frozenset(("selection", "starter", "scalars"))
# It loads Guild by name, without using it.
IMPORTS_BY_NAME = frozenset(("template",))

# Guild imports the first at many of its commands, and the others come with it or before the scheduler's own imports.
# The starter, or the template that it is forked from, is a process of its own.
LIGHT = frozenset(
    ("command", "commands", "environment", "guild_compatibility", "operation", "plugin", "starter", "template")
)

PURE = frozenset(
    (
        "estimate",
        "outcomes",
        "records",
        "signals",
        "troubles",
        "explanation",
        "demands",
        "dependencies",
        "devices",
        "plan",
        "reasons",
        "resources",
        "rooms",
        "shown",
        "state",
        "units",
    )
)
PURE_LIBRARY = frozenset(
    (
        "abc",
        "bisect",
        "collections",
        "dataclasses",
        "decimal",
        "difflib",
        "enum",
        "fractions",
        "functools",
        "heapq",
        "itertools",
        "math",
        "operator",
        "re",
        "shlex",
        "signal",  # the numbers and names of signals
        "statistics",
        "string",
        "types",
        "typing",
        "unicodedata",
    )
)
IMPURE_FUNCTIONS = frozenset(("__import__", "breakpoint", "eval", "exec", "input", "open", "print"))

# What a module must never import, beside Guild and Dask: its own package's modules and those of the library.
NEVER: Mapping[str, frozenset[str]] = {
    "cluster": frozenset(
        (
            "guild_dask.scheduler.events",
            "guild_dask.scheduler.loop",
            "guild_dask.home.run_directory",
            "guild_dask.home.run_queue",
        )
    ),
    "claims": frozenset(("guild_dask.cluster", "guild_dask.home.run_directory", "guild_dask.home.run_queue")),
    "job": frozenset(
        ("guild_dask.cluster", "guild_dask.home.run_directory", "guild_dask.worker.runner", "guild_dask.home.run_queue")
    ),
    "page": frozenset(("guild_dask.cluster", "guild_dask.settings.settings")),
    "processes": frozenset(("guild_dask.home.claims", "guild_dask.home.run_directory", "guild_dask.home.run_queue")),
    "rundir": frozenset(
        ("guild_dask.cluster", "guild_dask.worker.job", "guild_dask.worker.runner", "guild_dask.home.run_queue")
    ),
    "runner": frozenset(("guild_dask.cluster", "guild_dask.home.run_directory", "guild_dask.home.run_queue")),
    "runs": frozenset(
        ("guild_dask.cluster", "guild_dask.worker.job", "guild_dask.plan.placement", "guild_dask.worker.runner")
    ),
    "settings": frozenset(("asyncio", "multiprocessing", "os", "signal", "socket", "subprocess", "threading")),
    "operation": frozenset(("guild_dask.cluster", "guild_dask.worker.runner")),
    "starter": frozenset(("guild_dask.cluster", "guild_dask.worker.runner")),
}

NAMED = KNOWS_DASK | KNOWS_GUILD | KNOWS_GUILD_IN_FUNCTIONS | IMPORTS_BY_NAME | LIGHT | PURE | frozenset(NEVER)

# Functions of logging itself, which log through the root logger and set it up on first use.
ROOT_LOGGING = frozenset(
    f"logging.{name}"
    for name in ("basicConfig", "critical", "debug", "error", "exception", "fatal", "info", "log", "root", "warning")
)


class Import(NamedTuple):
    """A module that is imported, and whether that is done when the importing module is."""

    name: str
    is_at_top: bool
    line: int

    @property
    def distribution(self) -> str:
        return self.name.partition(".")[0]


# Each rule looks at each module, and each is broken once in all of them.
@functools.cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


@dataclass(frozen=True)
class Module:
    """A source file of the package; its name is relative to the package, such as `plan` or `cluster.local`."""

    name: str
    source: str

    @property
    def part(self) -> str:
        """Returns the name that the table has: that of the module, or of the package that it is in."""
        return self.name.partition(".")[0]

    @property
    def tree(self) -> ast.Module:
        return _parsed(self.source)

    def imports(self) -> Iterator[Import]:
        """Returns what is imported anywhere; for `from a import b` both a and a.b, since b may be a module."""
        return iter(_all_imports(self.source))

    def uses(self) -> Iterator[tuple[ast.expr, int]]:
        """Returns each name and attribute that is mentioned, with its line."""
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.Name, ast.Attribute)):
                yield node, node.lineno


@functools.cache
def _all_imports(source: str) -> tuple[Import, ...]:
    return tuple(_imports(_parsed(source), is_at_top=True))


def _imports(node: ast.AST, is_at_top: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, is_at_top, child.lineno) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            # A relative import would hide from the rules; it is shown as one of a module that nobody may import.
            source = "." * child.level + (child.module or "")
            yield Import(source, is_at_top, child.lineno)
            yield from (Import(f"{source}.{alias.name}", is_at_top, child.lineno) for alias in child.names)
        else:
            is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _imports(child, is_at_top and not is_function)


Modules = Mapping[str, Module]
Rule = Callable[[Modules], Iterable[str]]


def modules() -> dict[str, Module]:
    """Returns all modules of the package as they are now."""
    root = PROJECT / PACKAGE
    return {
        name: Module(name, path.read_text(encoding="utf-8"))
        for path in sorted(root.rglob("*.py"))
        for name in [_name(path.relative_to(root))]
    }


def _name(path: pathlib.Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _complaint(module: Module, line: int, text: str) -> str:
    return f"{PACKAGE}/{module.name.replace('.', '/')}.py:{line}: {text}"


def only_the_cluster_knows_dask(given: Modules) -> Iterator[str]:
    for module in given.values():
        for found in module.imports():
            own = KNOWS_PART_OF_DASK.get(module.name, frozenset())
            if found.distribution in DASK - own and module.part not in KNOWS_DASK:
                yield _complaint(module, found.line, f"imports {found.name}, which is for {sorted(KNOWS_DASK)} only")


def only_the_runs_know_guild(given: Modules) -> Iterator[str]:
    for module in given.values():
        for found in module.imports():
            may = module.part in KNOWS_GUILD or (module.part in KNOWS_GUILD_IN_FUNCTIONS and not found.is_at_top)
            if found.distribution in GUILD and not may:
                yield _complaint(module, found.line, f"imports {found.name}, or not inside a function")


def pure_modules_have_no_effects(given: Modules) -> Iterator[str]:
    for module in given.values():
        if module.part not in PURE:
            continue
        for found in module.imports():
            own = found.name == PACKAGE or found.name.split(".")[:2] in [[PACKAGE, name] for name in PURE]
            if not own and found.distribution not in PURE_LIBRARY:
                yield _complaint(module, found.line, f"imports {found.name}, and is to be pure")
        for node, line in module.uses():
            if isinstance(node, ast.Name) and node.id in IMPURE_FUNCTIONS:
                yield _complaint(module, line, f"uses {node.id}, and is to be pure")


def modules_do_not_import_what_they_must_never(given: Modules) -> Iterator[str]:
    for module in given.values():
        for found in module.imports():
            names = {found.name, found.distribution, ".".join(found.name.split(".")[:2])}
            for name in sorted(names & NEVER.get(module.part, frozenset())):
                yield _complaint(module, found.line, f"must never import {name}")


def light_modules_do_not_bring_dask(given: Modules) -> Iterator[str]:
    """What is imported at the top of a light module, and at the top of that, and so on, has no Dask in it."""
    for module in given.values():
        heavy = [n for n in _brought(module, given) if given[n].part in KNOWS_DASK or n in KNOWS_PART_OF_DASK]
        if module.part in LIGHT and heavy:
            yield _complaint(module, 1, f"brings {', '.join(heavy)}, and is to be light")


def _brought(module: Module, given: Modules) -> list[str]:
    seen: list[str] = []
    ahead = [module]
    while ahead:
        for name in _own_imports(ahead.pop(), given, at_top_only=True):
            if name not in seen:
                seen.append(name)
                ahead.append(given[name])
    return seen


def _own_imports(module: Module, given: Modules, at_top_only: bool = False) -> list[str]:
    found = [each for each in module.imports() if each.is_at_top or not at_top_only]
    names = [each.name.removeprefix(f"{PACKAGE}.") for each in found if each.distribution == PACKAGE]
    return sorted({name for name in names if name in given})


def nothing_imports_its_importer(given: Modules) -> Iterator[str]:
    done: set[str] = set()
    for name in given:
        yield from _cycles(name, (), done, given)


def _cycles(name: str, above: tuple[str, ...], done: set[str], given: Modules) -> Iterator[str]:
    if name in above:
        yield f"modules import each other: {' -> '.join([*above[above.index(name) :], name])}"
    elif name not in done:
        for imported in _own_imports(given[name], given):
            yield from _cycles(imported, (*above, name), done, given)
        done.add(name)


def imports_can_be_seen(given: Modules) -> Iterator[str]:
    for module in given.values():
        for found in module.imports():
            if found.name.startswith("."):
                yield _complaint(module, found.line, "has a relative import, which the other rules do not see")
            is_data = found.name.startswith("importlib.metadata")  # what is installed, not what it does
            if found.distribution in ("importlib", "runpy") and not is_data and module.part not in IMPORTS_BY_NAME:
                yield _complaint(module, found.line, "may import by name, which the other rules do not see")


def the_root_logger_is_left_alone(given: Modules) -> Iterator[str]:
    for module in given.values():
        for found in module.imports():
            if found.name.startswith("logging.config") or found.name == "logging.basicConfig":
                yield _complaint(module, found.line, f"imports {found.name}")
        for node, line in module.uses():
            if ast.unparse(node) in ROOT_LOGGING:
                yield _complaint(module, line, f"uses {ast.unparse(node)}, which is the root logger's")
        for call in ast.walk(module.tree):
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("getLogger") and not call.args:
                yield _complaint(module, call.lineno, "takes the root logger")


def nothing_sleeps(given: Modules) -> Iterator[str]:
    for module in given.values():
        for found in module.imports():
            if found.name in ("time.sleep", "asyncio.sleep"):
                yield _complaint(module, found.line, f"imports {found.name}; wait for something instead")
        for node, line in module.uses():
            if ast.unparse(node) in ("time.sleep", "asyncio.sleep"):
                yield _complaint(module, line, "sleeps; wait for something instead")


RULES: tuple[Rule, ...] = (
    only_the_cluster_knows_dask,
    only_the_runs_know_guild,
    pure_modules_have_no_effects,
    modules_do_not_import_what_they_must_never,
    light_modules_do_not_bring_dask,
    nothing_imports_its_importer,
    imports_can_be_seen,
    the_root_logger_is_left_alone,
    nothing_sleeps,
)

# A line that breaks the rule, and the module that it is added to.
BREAKS: tuple[tuple[Rule, str, str], ...] = (
    (only_the_cluster_knows_dask, "loop", "import distributed"),
    (only_the_cluster_knows_dask, "runner", "def f():\n    from dask.system import CPU_COUNT"),
    (only_the_cluster_knows_dask, "nobody_knows_it_yet", "import tornado.ioloop"),
    (only_the_cluster_knows_dask, "report.page", "import distributed"),
    (only_the_cluster_knows_dask, "report.story", "import bokeh"),
    (only_the_cluster_knows_dask, "page.book", "import tornado"),
    (only_the_cluster_knows_dask, "page.server", "import distributed"),
    (light_modules_do_not_bring_dask, "commands.report", "from guild_dask.report import page"),
    (only_the_cluster_knows_dask, "plugin", "if TYPE_CHECKING:\n    import distributed"),
    (only_the_runs_know_guild, "loop", "from guild import run"),
    (only_the_runs_know_guild, "scheduler", "def f():\n    import guild.var"),
    (only_the_runs_know_guild, "runner", "import guild"),
    (only_the_runs_know_guild, "starter", "try:\n    from guild import main_bootstrap\nexcept ImportError:\n    pass"),
    (only_the_runs_know_guild, "cluster.local", "import guild"),
    (pure_modules_have_no_effects, "plan", "import logging"),
    (pure_modules_have_no_effects, "plan", "def f():\n    import time"),
    (pure_modules_have_no_effects, "plan", "from guild_dask import resources, runs"),
    (pure_modules_have_no_effects, "plan", "from guild_dask.runs import End"),
    (pure_modules_have_no_effects, "resources", "import os"),
    (pure_modules_have_no_effects, "resources", "def f(): return open('x')"),
    (modules_do_not_import_what_they_must_never, "cluster", "from guild_dask import rundir"),
    (modules_do_not_import_what_they_must_never, "cluster.local", "from guild_dask.runs import End"),
    (modules_do_not_import_what_they_must_never, "cluster.kinds", "from guild_dask.events import StopAsked"),
    (modules_do_not_import_what_they_must_never, "page.showing", "from guild_dask.cluster.kinds import Cluster"),
    (modules_do_not_import_what_they_must_never, "runs", "import guild_dask.cluster"),
    (modules_do_not_import_what_they_must_never, "settings", "import subprocess"),
    (modules_do_not_import_what_they_must_never, "settings", "from os import path"),
    (light_modules_do_not_bring_dask, "plugin", "from guild_dask.cluster import local"),
    (light_modules_do_not_bring_dask, "environment", "from guild_dask.loop import Loop"),
    (nothing_imports_its_importer, "resources", "def f():\n    from guild_dask import plan"),
    (imports_can_be_seen, "loop", "from . import cluster"),
    (imports_can_be_seen, "loop", "from importlib import import_module"),
    (the_root_logger_is_left_alone, "log", "logging.basicConfig()"),
    (the_root_logger_is_left_alone, "log", "logging.info('to the root logger')"),
    (the_root_logger_is_left_alone, "log", "root = logging.getLogger()"),
    (the_root_logger_is_left_alone, "log", "from logging import basicConfig"),
    (nothing_sleeps, "loop", "time.sleep(1)"),
    (nothing_sleeps, "loop", "from time import sleep"),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: Rule) -> None:
    complaints = list(rule(modules()))
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(("rule", "name", "lines"), BREAKS, ids=lambda value: getattr(value, "__name__", None))
def test_rule_can_fail(rule: Rule, name: str, lines: str) -> None:
    now = modules()
    before = now[name].source if name in now else ""
    broken = Module(name, f"{before}\n{lines}\n")
    assert list(rule({**now, name: broken})), f"{rule.__name__} has nothing against this in {name}:\n{lines}"


def test_every_rule_is_tested() -> None:
    assert {rule for rule, _, _ in BREAKS} == set(RULES)


@pytest.mark.parametrize("name", sorted(NAMED))
def test_module_that_a_rule_names_exists(name: str) -> None:
    # A module that is renamed would otherwise leave its rules behind.
    assert name in modules()


@pytest.mark.parametrize(
    "name", ["plugin", "command", "commands.main", "commands.status", "commands.explain", "starter", "template"]
)
def test_light_module_loads_no_dask(name: str) -> None:
    # What it brings through other packages counts, too: this is what every `guild` command pays for.
    code = f"import sys, {PACKAGE}.{name}; print(*sorted({{n.partition('.')[0] for n in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert PACKAGE in loaded
    heavy = sorted(DASK & set(loaded))
    assert not heavy


def test_job_brings_nothing_that_starts_a_run() -> None:
    # The scheduler and every kind of cluster import it for its values.
    now = modules()
    assert not {"operation", "runner", "starter", "template", "warm"} & set(_brought(now["job"], now))
