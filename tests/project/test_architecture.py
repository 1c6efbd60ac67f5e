"""Which room may import which: the map of docs/architecture.md, one row a room, enforced on the source.

A rule takes the modules of the package and returns violations. A test breaks each rule once, with an additional line.
"""

import ast
import functools
import itertools
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from tests.support.sandbox import PROJECT

PACKAGE = "guild_dask"

GUILD = frozenset(("guild",))
OPTUNA = frozenset(("optuna",))
DASK = frozenset(("bokeh", "dask", "dask_jobqueue", "distributed", "tornado"))


@dataclass(frozen=True)
class Room:
    """What a room may import: other rooms, and, for some of its modules, Guild and Dask."""

    rooms: tuple[str, ...] = ()
    guild: tuple[str, ...] = ()  # modules that import Guild; in functions only, if the name ends with ()
    dask: tuple[str, ...] = ()  # modules that import Dask or its dependencies; * for all
    extra: Mapping[str, tuple[str, ...]] | None = None  # parts of the room that may import more rooms


ROOMS: Mapping[str, Room] = {
    "mends": Room(extra={"table": ("home",)}),
    "plan": Room(),
    "host": Room(),
    "settings": Room(("plan",)),
    "home": Room(("plan", "host"), guild=("run_directory", "run_queue", "run_filter()", "status_lock")),
    "worker": Room(("plan", "host", "home"), guild=("starter()",)),
    "cluster": Room(("plan", "host", "settings", "worker"), dask=("*",)),
    "monitor": Room(
        ("plan", "host", "home"),
        guild=("scalars()",),
        dask=(
            "page.handlers",
            "page.server",
            "report.charts",
            "report.page",
            "report.search_charts",
            "report.search_sections",
        ),
    ),
    "scheduler": Room(
        ("plan", "host", "settings", "home", "worker", "cluster", "monitor"),
        extra={"observers": ("scheduler.search",)},
    ),
    "scheduler.search": Room(
        ("plan", "host", "settings", "home", "cluster", "monitor", "scheduler", "worker"), guild=("staging()",)
    ),
    "cli": Room(
        ("plan", "host", "settings", "home", "monitor"),
        extra={"doctor": ("cluster", "mends"), "export_study": ("scheduler.search",), "report": ("scheduler.search",)},
    ),
}

# Modules outside the rooms, which Guild discovers.
OUTSIDE: Mapping[str, tuple[str, ...]] = {
    "__init__": (),
    "plugin": ("settings", "host"),
}
OUTSIDE_WITH_GUILD = ("plugin",)

# Optuna takes a second to load, and its trials are no records of ours.
WITH_OPTUNA = ("scheduler.search.engine", "scheduler.search.study")

# Rooms and modules that only decide: no clock, file, log, process, Guild or Dask.
PURE = ("plan",)
PURE_MODULES = (
    "cluster.scaling",
    "home.claim_record",
    "home.event_files",
    "home.operation_data",
    "home.outcome",
    "home.process_start",
    "monitor.durations",
    "monitor.estimate",
    "monitor.explanation",
    "monitor.flag_columns",
    "monitor.formatting",
    "monitor.report.history",
    "monitor.results",
    "monitor.run_states",
    "monitor.search_results",
    "monitor.state",
    "scheduler.announcer",
    "scheduler.core",
    "scheduler.dependency_lookup",
    "scheduler.instructions",
    "scheduler.ledger",
    "scheduler.postponed",
    "scheduler.log_texts",
    "scheduler.shutdown",
    "scheduler.view",
    "scheduler.waiting",
    "scheduler.workers",
    "scheduler.search.budget",
    "scheduler.search.space",
    "scheduler.search.stopping",
    "scheduler.search.width",
    "settings.cluster_spec",
    "settings.readers",
    "worker.job",
    "worker.options",
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
        "ipaddress",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
        "shlex",
        "statistics",
        "string",
        "struct",
        "types",
        "typing",
        "unicodedata",
    )
)
# Pure functions of modules that are not, because of what else is there.
PURE_FUNCTIONS = frozenset(
    (
        # What an exit status means, beside the handlers of signals.
        "host.signals.is_failure",
        "host.signals.is_request",
        "host.signals.killed_by",
        "host.signals.may_be_sent",
        # A number as event files store it, beside what reads them.
        "home.run_scalars.with_32_bits",
        # What a trial's values cost, beside what reads trials.
        "home.trials.completed_costs",
    )
)
IMPURE_FUNCTIONS = frozenset(("__import__", "breakpoint", "eval", "exec", "input", "open", "print"))

# Many Guild commands import the plugin, every run has a starter process, and `guild-dask status` must be fast. So these
# import no Dask at the top, directly or through other modules.
LIGHT = ("plugin", "mends", "settings", "worker", "cli")

# Modules that import others by name: one preloads Guild, one runs the command of a Dask worker that a site configures,
# and the mends load what they mend.
IMPORTS_BY_NAME = (
    "worker.forkserver",
    "worker.warm_preload",
    "worker.warm_site.sitecustomize",
    "cluster.private_worker",
    "mends.loading",
    "mends.report",
    "mends.stand_in_pkg_resources",
)

# Rooms that handle what others may have put into the Guild home. They open files through `host.files` only, which opens
# nothing but regular files; two of their modules open what is no file, a terminal and the null device.
BOUNDED = ("home", "monitor")
OPENS_OTHER_THINGS = ("monitor.terminal", "monitor.log")
OPENING = frozenset(("open", "read_text", "read_bytes", "write_text", "write_bytes", "copyfile", "copy", "copytree"))

# Paths of the Guild home are made in one module. Another one lists what operations have written, whatever its names.
LAYOUT = "home.layout"
LISTS_FILES_OF_OPERATIONS = "home.run_scalars"
OF_A_RUN = frozenset(("batch_dir", "home", "run_dir", "runs", "runs_dir", "scheduler_dir", "trash"))
PATH_FUNCTIONS = frozenset(
    (
        "os.path.basename",
        "os.path.dirname",
        "os.path.join",
        "os.path.split",
        "pathlib.Path",
        "pathlib.PurePath",
    )
)

# NFS's cache is refreshed by the functions that read, so that none of their callers can forget it. A worker does it for
# others: for Guild, which reads the run next, and for a file that it appends to.
REFRESHING = ("host.files", "home.run_directory")
REFRESHES_FOR_OTHERS = "worker.runner"

# Functions of `logging` that use the root logger and set it up on first use.
ROOT_LOGGING = frozenset(
    f"logging.{name}"
    for name in ("basicConfig", "critical", "debug", "error", "exception", "fatal", "info", "log", "root", "warning")
)


class Import(NamedTuple):
    """An imported module, and whether the import is at the top of the importing module."""

    name: str
    is_at_top: bool
    line: int

    @property
    def distribution(self) -> str:
        return self.name.partition(".")[0]


def _room_of(name: str) -> str:
    """Returns the room of a module by its name in the package: the innermost, since a room may be inside of another."""
    rooms = [room for room in ROOMS if f"{name}.".startswith(f"{room}.")]
    return max(rooms, key=len, default=name.partition(".")[0])


# Cached: every rule reads every module, and every test of a rule does so again.
@functools.cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


@dataclass(frozen=True)
class Module:
    """A source file of the package; its name is relative to the package, such as `plugin` or `plan.placement`."""

    name: str
    source: str

    @property
    def room(self) -> str:
        """Returns the room that the module is in, or its own name if it is in none."""
        return _room_of(self.name)

    @property
    def inside(self) -> str:
        """Returns the module's name inside its room; empty for the room's own `__init__`."""
        return self.name.removeprefix(self.room).lstrip(".")

    @property
    def tree(self) -> ast.Module:
        return _parsed(self.source)

    def imports(self) -> Iterator[Import]:
        """Returns what is imported anywhere; for `from a import b` both a and a.b, since b may be a module."""
        return iter(_all_imports(self.source))

    def uses(self) -> Iterator[tuple[ast.expr, int]]:
        """Returns each name and attribute that is used, with its line."""
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
            # The rules do not resolve relative imports, so each counts as the import of a module that is never allowed.
            source = "." * child.level + (child.module or "")
            yield Import(source, is_at_top, child.lineno)
            yield from (Import(f"{source}.{alias.name}", is_at_top, child.lineno) for alias in child.names)
        else:
            is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _imports(child, is_at_top and not is_function)


Modules = Mapping[str, Module]
Rule = Callable[[Modules], Iterable[str]]


def modules() -> dict[str, Module]:
    """Returns all modules of the package."""
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


def rooms_import_only_the_rooms_in_their_row(given: Modules) -> Iterator[str]:
    for module in given.values():
        allowed = _allowed_rooms(module)
        for found in module.imports():
            room = _room_of(found.name.removeprefix(f"{PACKAGE}."))
            if found.distribution == PACKAGE and room in ROOMS and room not in allowed:
                yield _complaint(module, found.line, f"imports room {room}; {module.room} may import {sorted(allowed)}")


def _allowed_rooms(module: Module) -> frozenset[str]:
    if module.room not in ROOMS:
        return frozenset(OUTSIDE.get(module.room, ()))
    room = ROOMS[module.room]
    part = module.inside.partition(".")[0]
    return frozenset((module.room, *room.rooms, *(room.extra or {}).get(part, ())))


def only_named_modules_import_guild(given: Modules) -> Iterator[str]:
    for module in given.values():
        named = ROOMS[module.room].guild if module.room in ROOMS else ()
        anywhere = module.inside in named or module.name in OUTSIDE_WITH_GUILD
        for found in module.imports():
            may = anywhere or (f"{module.inside}()" in named and not found.is_at_top)
            if found.distribution in GUILD and not may:
                yield _complaint(module, found.line, f"imports {found.name}, or not inside a function")


def only_named_modules_import_dask(given: Modules) -> Iterator[str]:
    for module in given.values():
        named = ROOMS[module.room].dask if module.room in ROOMS else ()
        for found in module.imports():
            if found.distribution in DASK and "*" not in named and module.inside not in named:
                yield _complaint(module, found.line, f"imports {found.name}, which is for the room cluster")
            if found.distribution in ("dask", "distributed") and module.room != "cluster":
                yield _complaint(module, found.line, f"imports {found.name}, which is for the room cluster")


def only_named_modules_import_optuna(given: Modules) -> Iterator[str]:
    for module in given.values():
        for found in module.imports():
            if found.distribution in OPTUNA and (module.name not in WITH_OPTUNA or found.is_at_top):
                yield _complaint(module, found.line, f"imports {found.name}, or not inside a function")


def _is_pure(module: Module) -> bool:
    return module.room in PURE or module.name in PURE_MODULES


def pure_modules_have_no_effects(given: Modules) -> Iterator[str]:
    for module in filter(_is_pure, given.values()):
        for found in module.imports():
            if found.distribution != PACKAGE and found.distribution not in PURE_LIBRARY:
                yield _complaint(module, found.line, f"imports {found.name}, and is to be pure")
        for node, line in module.uses():
            if isinstance(node, ast.Name) and node.id in IMPURE_FUNCTIONS:
                yield _complaint(module, line, f"uses {node.id}, and is to be pure")


def pure_modules_take_only_values_from_others(given: Modules) -> Iterator[str]:
    """Of our modules that are not pure, a pure one imports values only: it could reach any effect through another."""
    for module in filter(_is_pure, given.values()):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                whole = [alias.name for alias in node.names if alias.name.partition(".")[0] == PACKAGE]
                yield from (_complaint(module, node.lineno, f"imports {name} as a whole") for name in whole)
            elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{PACKAGE}."):
                for alias in node.names:
                    if not _is_pure_import(_own_name(node), alias.name, given):
                        what = f"{_own_name(node)}.{alias.name}".lstrip(".")
                        yield _complaint(module, node.lineno, f"imports {what}, which is no value")


def _own_name(node: ast.ImportFrom) -> str:
    return (node.module or "").removeprefix(PACKAGE).lstrip(".")


def _is_pure_import(source: str, name: str, given: Modules) -> bool:
    """Returns whether what is imported from a module of ours is pure, or a value: no effect is reached through it."""
    full = f"{source}.{name}".lstrip(".")
    if full in given:
        return _is_pure(given[full])
    return full in PURE_FUNCTIONS or (
        source in given and (_is_pure(given[source]) or _is_value(name, given[source], given))
    )


def _is_value(name: str, module: Module, given: Modules) -> bool:
    """Returns whether a module defines a constant of that name, or a class of values whose methods have no effects."""
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _is_class_of_values(node) and not _uses_effects(node, module, given)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and name in _defined(node):
            return not _uses_effects(node, module, given)
    return False


def _is_class_of_values(node: ast.ClassDef) -> bool:
    bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
    is_frozen = any(re.search(r"\bdataclass\(.*frozen=True", ast.unparse(each)) for each in node.decorator_list)
    return is_frozen or any(re.search(r"^(Enum|NamedTuple)$|(Error|Exception)$", base) for base in bases)


def _defined(node: ast.stmt) -> set[str]:
    """Returns the names that a statement at the top of a module defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}


def _uses_effects(node: ast.stmt, module: Module, given: Modules) -> bool:
    """Returns whether a class, with its methods, or a constant uses a name of its module that may lead to an effect."""
    used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    own = {node.name} if isinstance(node, ast.ClassDef) else set()
    return any(_has_effects(name, module, given) for name in used - own)


def _has_effects(name: str, module: Module, given: Modules) -> bool:
    """Returns whether a name may lead to an effect: it stands for something that is neither pure nor a value."""
    for node in module.tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                if (alias.asname or alias.name.partition(".")[0]) == name:
                    return not _is_pure_source(node, alias.name, given)
        elif name in _defined(node):
            return not _is_value(name, module, given)
    return name in IMPURE_FUNCTIONS


def _is_pure_source(node: "ast.Import | ast.ImportFrom", name: str, given: Modules) -> bool:
    source = (node.module or "") if isinstance(node, ast.ImportFrom) else name
    if f"{source}.".startswith(f"{PACKAGE}."):
        return isinstance(node, ast.ImportFrom) and _is_pure_import(_own_name(node), name, given)
    return source.partition(".")[0] in PURE_LIBRARY


def modules_that_claim_to_be_pure_are_checked(given: Modules) -> Iterator[str]:
    for module in given.values():
        text = ast.get_docstring(module.tree) or ""
        if module.name not in OUTSIDE and re.search(r"\bPure\b", text) and not _is_pure(module):
            yield _complaint(module, 1, "says that it is pure, which no rule checks")


def light_modules_do_not_bring_dask(given: Modules) -> Iterator[str]:
    """Light modules import no Dask at the top, directly or through other modules."""
    heavy = {
        name for name, module in given.items() if any(i.distribution in DASK and i.is_at_top for i in module.imports())
    }
    for module in given.values():
        brought = [name for name in _brought(module, given) if name in heavy]
        if module.room in LIGHT and brought:
            yield _complaint(module, 1, f"brings {', '.join(brought)}, and is to be light")


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
            is_data = found.name.startswith("importlib.metadata")  # reads the installed version only
            if found.distribution in ("importlib", "runpy") and not is_data and module.name not in IMPORTS_BY_NAME:
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


def modules_are_named_by_those_who_may_import_them(given: Modules) -> Iterator[str]:
    """A text such as `guild_dask.home.claims`, for a command or an import by name, counts as an import."""
    for module in given.values():
        allowed = _allowed_rooms(module)
        docstrings = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(module.tree):
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)) or id(node) in docstrings:
                continue
            for name in re.findall(rf"\b{PACKAGE}((?:\.\w+)+)", node.value):
                if (room := _room_of(name.lstrip("."))) in ROOMS and room not in allowed:
                    yield _complaint(module, node.lineno, f"names a module of room {room}")


def files_are_opened_in_one_place(given: Modules) -> Iterator[str]:
    for module in given.values():
        if module.room not in BOUNDED or module.name in OPENS_OTHER_THINGS:
            continue
        for call in (node.func for node in ast.walk(module.tree) if isinstance(node, ast.Call)):
            name = call.id if isinstance(call, ast.Name) else call.attr if isinstance(call, ast.Attribute) else ""
            if name in OPENING and not ast.unparse(call).startswith("files."):
                yield _complaint(module, call.lineno, f"uses {ast.unparse(call)}; host.files opens files")


def paths_of_the_home_are_made_in_one_place(given: Modules) -> Iterator[str]:
    """A path is made by hand where a name in the home is written, or where a run's path is joined or cut."""
    names = _names_in_the_home(given[LAYOUT])
    for module in given.values():
        if "home" not in _allowed_rooms(module) or module.name in (LAYOUT, LISTS_FILES_OF_OPERATIONS):
            continue
        docstrings = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                for name in sorted(names & set(node.value.split("/"))):
                    yield _complaint(module, node.lineno, f"writes the name {name!r}; home.layout has the paths")
            elif (path := _joined_or_cut(node)) is not None and _is_of_the_home(path):
                yield _complaint(module, path.lineno, f"makes a path of {ast.unparse(path)}; home.layout does that")


def _names_in_the_home(layout: Module) -> set[str]:
    """Returns the names of files and folders in the home that are no ordinary words."""
    texts = (node.value for node in ast.walk(layout.tree) if isinstance(node, ast.Constant))
    names = {name for text in texts if isinstance(text, str) and " " not in text for name in text.split("/")}
    return {name for name in names if re.fullmatch(r"[A-Z]{3,}|\.?\w+([.-]\w+)+|\.guild", name)}


def _joined_or_cut(node: ast.AST) -> ast.expr | None:
    """Returns the path that another one is made of here: os.path.join(PATH, ...), f"{PATH}/..." or PATH / ..."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in PATH_FUNCTIONS and len(node.args) > 0:
        is_whole = ast.unparse(node.func).startswith("pathlib.") and len(node.args) == 1
        return None if is_whole else node.args[0]
    if isinstance(node, ast.JoinedStr):
        for part, after in itertools.pairwise(node.values):
            if isinstance(part, ast.FormattedValue) and isinstance(after, ast.Constant):
                return part.value if str(after.value).startswith("/") else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return node.left
    return None


def _is_of_the_home(path: ast.expr) -> bool:
    if isinstance(path, ast.Call):
        is_text = ast.unparse(path.func) in ("pathlib.Path", "pathlib.PurePath", "str")
        return _is_of_the_home(path.args[0]) if is_text else ast.unparse(path.func).startswith("layout.")
    name = path.id if isinstance(path, ast.Name) else path.attr if isinstance(path, ast.Attribute) else ""
    return name.lstrip("_") in OF_A_RUN


def only_the_modules_that_read_refresh(given: Modules) -> Iterator[str]:
    for module in given.values():
        if module.name in (*REFRESHING, REFRESHES_FOR_OTHERS):
            continue
        for found in module.imports():
            if found.name.endswith("files.refresh"):
                yield _complaint(module, found.line, f"imports {found.name}; use a function that reads")
        for node, line in module.uses():
            if re.search(r"\b(files|run_directory)\._?refresh", ast.unparse(node)):
                yield _complaint(module, line, f"uses {ast.unparse(node)}; use a function that reads")


def modules_are_in_rooms(given: Modules) -> Iterator[str]:
    for module in given.values():
        if module.room not in ROOMS and module.name not in OUTSIDE:
            yield _complaint(module, 1, "is in no room")


RULES: tuple[Rule, ...] = (
    rooms_import_only_the_rooms_in_their_row,
    only_named_modules_import_guild,
    only_named_modules_import_dask,
    only_named_modules_import_optuna,
    pure_modules_have_no_effects,
    pure_modules_take_only_values_from_others,
    modules_that_claim_to_be_pure_are_checked,
    light_modules_do_not_bring_dask,
    nothing_imports_its_importer,
    imports_can_be_seen,
    the_root_logger_is_left_alone,
    nothing_sleeps,
    modules_are_named_by_those_who_may_import_them,
    files_are_opened_in_one_place,
    paths_of_the_home_are_made_in_one_place,
    only_the_modules_that_read_refresh,
    modules_are_in_rooms,
)

# A line that breaks the rule, and the module that it is added to.
BREAKS: tuple[tuple[Rule, str, str], ...] = (
    (rooms_import_only_the_rooms_in_their_row, "plan.placement", "from guild_dask.home import run_queue"),
    (rooms_import_only_the_rooms_in_their_row, "host.processes", "from guild_dask.plan.resources import fits"),
    (rooms_import_only_the_rooms_in_their_row, "home.run_queue", "def f():\n    import guild_dask.cluster.local"),
    (rooms_import_only_the_rooms_in_their_row, "worker.starter", "from guild_dask.monitor import log"),
    (rooms_import_only_the_rooms_in_their_row, "cluster.local", "from guild_dask.home.claims import path"),
    (
        rooms_import_only_the_rooms_in_their_row,
        "monitor.publisher",
        "from guild_dask.scheduler.waiting import WaitingRuns",
    ),
    (rooms_import_only_the_rooms_in_their_row, "scheduler.loop", "from guild_dask.cli import common"),
    (rooms_import_only_the_rooms_in_their_row, "scheduler.loop", "from guild_dask.scheduler.search import space"),
    (rooms_import_only_the_rooms_in_their_row, "cli.status", "from guild_dask import cluster"),
    (rooms_import_only_the_rooms_in_their_row, "plugin", "from guild_dask.cluster import base"),
    (only_named_modules_import_guild, "scheduler.loop", "from guild import run"),
    (only_named_modules_import_guild, "home.claims", "def f():\n    import guild.var"),
    (
        only_named_modules_import_guild,
        "worker.starter",
        "try:\n    from guild import main\nexcept ImportError:\n    pass",
    ),
    (only_named_modules_import_dask, "scheduler.loop", "import distributed"),
    (only_named_modules_import_dask, "worker.runner", "def f():\n    from dask.system import CPU_COUNT"),
    (only_named_modules_import_dask, "monitor.report.page", "import distributed"),
    (only_named_modules_import_dask, "monitor.report.history", "import bokeh"),
    (only_named_modules_import_dask, "plugin", "if TYPE_CHECKING:\n    import distributed"),
    (pure_modules_have_no_effects, "plan.placement", "import logging"),
    (pure_modules_have_no_effects, "plan.placement", "def f():\n    import time"),
    (pure_modules_have_no_effects, "plan.resources", "def f(): return open('x')"),
    (pure_modules_have_no_effects, "scheduler.core", "import time"),
    (
        pure_modules_take_only_values_from_others,
        "scheduler.core",
        "from guild_dask.host import files\ndef f(): return files.read_text('x')",
    ),
    (pure_modules_take_only_values_from_others, "scheduler.core", "from guild_dask.host.files import read_text"),
    (pure_modules_take_only_values_from_others, "scheduler.core", "def f():\n    import guild_dask.host.files"),
    (pure_modules_take_only_values_from_others, "scheduler.core", "from guild_dask import host"),
    (pure_modules_take_only_values_from_others, "scheduler.core", "from guild_dask.host.processes import os"),
    # A class, a dataclass and a constant through which files, processes and workers are reached.
    (pure_modules_take_only_values_from_others, "scheduler.core", "from guild_dask.home.run_queue import GuildHome"),
    (
        pure_modules_take_only_values_from_others,
        "scheduler.core",
        "from guild_dask.scheduler.dispatch import Dispatcher",
    ),
    (pure_modules_take_only_values_from_others, "scheduler.core", "from guild_dask.worker.runner import RUNNER"),
    (pure_modules_take_only_values_from_others, "home.outcome", "from guild_dask.host.signals import set_handler"),
    (only_named_modules_import_optuna, "scheduler.search.space", "def f():\n    from optuna import study"),
    (only_named_modules_import_optuna, "scheduler.search.engine", "import optuna"),
    (modules_that_claim_to_be_pure_are_checked, "host.purified", '"""Counts. Pure."""'),
    (light_modules_do_not_bring_dask, "plugin", "from guild_dask.cluster import local"),
    (light_modules_do_not_bring_dask, "cli.report", "from guild_dask.monitor.report import page"),
    (nothing_imports_its_importer, "plan.resources", "def f():\n    from guild_dask.plan import placement"),
    (imports_can_be_seen, "scheduler.loop", "from . import core"),
    (imports_can_be_seen, "scheduler.loop", "from importlib import import_module"),
    (the_root_logger_is_left_alone, "monitor.log", "logging.basicConfig()"),
    (the_root_logger_is_left_alone, "monitor.log", "logging.info('to the root logger')"),
    (the_root_logger_is_left_alone, "monitor.log", "root = logging.getLogger()"),
    (the_root_logger_is_left_alone, "monitor.log", "from logging import basicConfig"),
    (nothing_sleeps, "scheduler.loop", "time.sleep(1)"),
    (nothing_sleeps, "scheduler.loop", "from time import sleep"),
    (
        modules_are_named_by_those_who_may_import_them,
        "monitor.importances",
        "COMMAND = ['python', '-m', 'guild_dask.scheduler.search.study']",
    ),
    (modules_are_named_by_those_who_may_import_them, "home.claims", "def f(): load(f'guild_dask.cluster.{f}')"),
    (files_are_opened_in_one_place, "home.claims", "def f(path): return path.read_text()"),
    (files_are_opened_in_one_place, "monitor.journal", "def f(): return open('x')"),
    (files_are_opened_in_one_place, "monitor.page.rows", "def f(): return os.open('x', 0)"),
    (paths_of_the_home_are_made_in_one_place, "cli.report", "def f(runs_dir, run): return os.path.join(runs_dir, run)"),
    (paths_of_the_home_are_made_in_one_place, "home.listing", "def f(self): return f'{self._runs_dir}/aaa'"),
    (paths_of_the_home_are_made_in_one_place, "monitor.searches", "def f(): return layout.searches_folder('') / 'a'"),
    (paths_of_the_home_are_made_in_one_place, "worker.operation", "def f(run_dir): return os.path.basename(run_dir)"),
    (paths_of_the_home_are_made_in_one_place, "mends.table", "def f(folder): return folder + '/.guild/opref'"),
    (only_the_modules_that_read_refresh, "home.status", "def f(run_dir): files.refresh(run_dir)"),
    (only_the_modules_that_read_refresh, "home.trials", "from guild_dask.host.files import refresh"),
    (modules_are_in_rooms, "helpers", ""),
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


def test_names_in_the_rules_exist() -> None:
    # Otherwise the rules of a renamed module would silently no longer apply.
    known = modules()
    named = [f"{room}.{name.removesuffix('()')}" for room, row in ROOMS.items() for name in (*row.guild, *row.dask)]
    assert [
        name
        for name in (
            *named,
            *PURE_MODULES,
            *(name.rpartition(".")[0] for name in PURE_FUNCTIONS),
            *WITH_OPTUNA,
            *OUTSIDE,
            *IMPORTS_BY_NAME,
            *OPENS_OTHER_THINGS,
            LAYOUT,
            LISTS_FILES_OF_OPERATIONS,
            *REFRESHING,
            REFRESHES_FOR_OTHERS,
        )
        if "*" not in name and name not in known
    ] == []

    functions = {f"{each.name}.{name}" for each in known.values() for node in each.tree.body for name in _defined(node)}
    assert functions >= PURE_FUNCTIONS


def test_the_package_shows_its_rooms_and_little_else() -> None:
    entries = {path.name for path in (PROJECT / PACKAGE).iterdir() if not path.name.startswith("__pycache__")}
    rooms = {room.partition(".")[0] for room in ROOMS}
    assert entries == {*rooms, "__init__.py", "dask.yml", "plugin.py", "py.typed"}
    assert len(rooms) <= 10


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_room_says_what_it_is_what_it_may_import_and_where_to_start(room: str) -> None:
    text = ast.get_docstring(modules()[room].tree) or ""
    assert len(text.splitlines()) == 4, "one line, an empty one, and two more"
    assert "Start at" in text
    missing = [name for name in ROOMS[room].rooms if name not in text and room != "scheduler"]
    assert not missing, f"the docstring does not name {missing}"


@pytest.mark.parametrize(
    "name", ["plugin", "settings.flags", "cli.main", "cli.status", "cli.explain", "worker.starter"]
)
def test_light_module_loads_no_dask(name: str) -> None:
    # Imports through other packages count, too: every `guild` command pays for them.
    code = f"import sys, {PACKAGE}.{name}; print(*sorted({{n.partition('.')[0] for n in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert PACKAGE in loaded
    heavy = sorted(DASK & set(loaded))
    assert not heavy, f"{PACKAGE}.{name} loads {', '.join(heavy)}"


def test_job_brings_nothing_that_starts_a_run() -> None:
    # The scheduler and every kind of cluster import it for its values.
    now = modules()
    starting = {f"worker.{name}" for name in ("fork_client", "forkserver", "operation", "runner", "starter")}
    assert not starting & set(_brought(now["worker.job"], now))


def test_scheduler_handles_signals_before_it_loads_guild_or_dask() -> None:
    code = f"import sys, {PACKAGE}.scheduler.__main__; print(*sorted({{n.partition('.')[0] for n in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not (DASK | GUILD) & set(loaded)
