"""Every file, heading, module, function, flag and command that the documentation names exists."""

import ast
import configparser
import functools
import pathlib
import re
from collections.abc import Iterator

import pytest
import yaml

from guild_dask.cli.main import main
from tests.support.sandbox import PROJECT

PAGES = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md"), *PROJECT.glob("examples/*/*.md")])

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?\n(.*?)^```", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
# A path of this repository, from its top.
_PATH = re.compile(r"(?<![\w./~-])(?:\.ci|benchmarks|docs|examples|guild_dask|tests)/[\w./*-]*")
# A Python file by the end of its path, and perhaps what it defines: `claims.py`, `home/claims.py:claim`.
_FILE = re.compile(r"((?:\w+/)*\w+\.py)(?::([\w.]+?)(?:\(\))?)?")
# What a module defines: `claims.claim`, `home.claims.claim()`, `home/claims.claim`.
_DOTTED = re.compile(r"((?:\w+/)*\w+(?:\.\w+)+)(?:\(\))?")
_SUFFIXES = (".css", ".html", ".js", ".json", ".jsonl", ".log", ".md", ".py", ".svg", ".yaml", ".yml")
_PYTHON_COMMAND = re.compile(r"python3? -m ((?:benchmarks|guild_dask|tests)[\w.]*)")
_OUR_COMMAND = re.compile(r"^ *(?:\$ )?guild-dask ([a-z-]+)", re.MULTILINE)
_TOX_COMMAND = re.compile(r"\btox -e ([\w-]+)")


@pytest.fixture(params=PAGES, ids=lambda path: str(path.relative_to(PROJECT)))
def page(request: pytest.FixtureRequest) -> pathlib.Path:
    path: pathlib.Path = request.param
    return path


def test_links_lead_to_files_and_headings(page: pathlib.Path) -> None:
    links = [link for link in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert not [link for link in links if not _leads_somewhere(page, *link.partition("#")[::2])]


def _leads_somewhere(page: pathlib.Path, path: str, heading: str) -> bool:
    target = page.parent / path if path else page
    return target.exists() and (not heading or heading in _anchors(target))


def _anchors(page: pathlib.Path) -> set[str]:
    """Returns the anchors that GitHub makes of a page's headings."""
    headings = _HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_paths_in_code_and_commands_exist(page: pathlib.Path) -> None:
    found = {path.rstrip("./") for code in _codes(page) for path in _PATH.findall(code)}
    assert not [path for path in sorted(found) if not any(PROJECT.glob(path))]


def test_python_files_and_what_they_define_exist(page: pathlib.Path) -> None:
    found = {match.groups() for code in _inline(page) if (match := _FILE.fullmatch(code))}
    assert not [each for each in sorted(found, key=str) if not any(_defines(path, each[1]) for path in _files(each[0]))]


def test_functions_and_modules_by_dotted_name_exist(page: pathlib.Path) -> None:
    names = {match[1] for code in _inline(page) if (match := _DOTTED.fullmatch(code))}
    assert not [name for name in sorted(names) if _is_ours(name) and not _exists(name)]


def test_commands_exist(page: pathlib.Path) -> None:
    text = "\n".join(_codes(page))
    missing = [f"python -m {name}" for name in _PYTHON_COMMAND.findall(text) if not _is_runnable(name)]
    known = main.list_commands(main.make_context("guild-dask", ["status"], resilient_parsing=True))
    missing += [f"guild-dask {name}" for name in _OUR_COMMAND.findall(text) if name not in known]
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(PROJECT / "tox.ini")
    missing += [f"tox -e {name}" for name in _TOX_COMMAND.findall(text) if f"testenv:{name}" not in tox]
    assert not missing


def test_every_flag_is_documented() -> None:
    declared = yaml.safe_load((PROJECT / "guild_dask" / "dask.yml").read_text(encoding="utf-8"))
    for page in (PROJECT / "README.md", PROJECT / "docs" / "reference.md"):
        text = page.read_text(encoding="utf-8")
        assert not [flag for flag in declared["operations"]["scheduler"]["flags"] if f"`{flag}`" not in text]


def test_every_command_is_in_the_readme() -> None:
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    commands = main.list_commands(main.make_context("guild-dask", ["status"], resilient_parsing=True))
    assert not [name for name in commands if not re.search(rf"`(?:guild-dask )?{name}\b", text)]


def test_every_room_is_on_the_map_of_the_architecture() -> None:
    text = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = sorted(path.parent.name for path in (PROJECT / "guild_dask").glob("*/__init__.py"))
    assert not [room for room in rooms if not re.search(rf"\b{room}/", text)]


def test_way_of_a_run_names_a_function_in_every_file_and_says_how_many_files_there_are() -> None:
    text = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("\n## The way of a run\n")[2].partition("\n## ")[0]
    rows = [row.split("|")[2] for row in section.splitlines() if re.match(r"\| \d+ ", row)]
    named = [match.groups() for row in rows for code in _CODE.findall(row) if (match := _FILE.fullmatch(code))]
    assert rows
    assert all(_CODE.search(row) for row in rows)
    assert all(function for _, function in named)
    files = {file for file, _ in named}
    warm = {file for file in files if file.startswith("worker/warm_")}
    assert f"These are {len(files)} files, {len(files - warm)} if the run starts cold" in section
    assert len(files) <= 26, "half of the 53 that there were before there were rooms"


def test_no_text_says_to_install_guild_dask_from_an_index() -> None:
    # guild-dask is not on PyPI, so no text says `pip install guild-dask` or names its extras.
    texts = [*PAGES, *(PROJECT / "guild_dask").rglob("*.py"), *(PROJECT / "guild_dask").rglob("*.yml")]
    told = re.compile(r"pip install [^`\n]*(?<![/\w-])guild-dask\b")
    assert not [path.name for path in texts if "guild-dask[" in path.read_text() or told.search(path.read_text())]


def _codes(page: pathlib.Path) -> Iterator[str]:
    """Returns all code of a page: fenced, indented and within a line."""
    text = page.read_text(encoding="utf-8")
    indented = "\n".join(line for line in text.splitlines() if line.startswith("    "))
    yield from (*_FENCED.findall(text), indented, *_inline(page))


def _inline(page: pathlib.Path) -> list[str]:
    return _CODE.findall(_FENCED.sub("", page.read_text(encoding="utf-8")))


@functools.cache
def _sources() -> tuple[pathlib.Path, ...]:
    """Returns all Python files of the repository."""
    folders = ("benchmarks", "examples", "guild_dask", "tests")
    return (PROJECT / "setup.py", *(path for folder in folders for path in (PROJECT / folder).rglob("*.py")))


def _files(name: str) -> list[pathlib.Path]:
    """Returns the Python files whose path ends with the name."""
    return [path for path in _sources() if f"/{path.relative_to(PROJECT)}".endswith(f"/{name}")]


def _is_ours(name: str) -> bool:
    """Returns whether a dotted name begins with our package, or with a module of it, and is not the name of a file."""
    first = name.partition(".")[0].rpartition("/")[2]
    modules = {path.stem for path in _sources() if path.is_relative_to(PROJECT / "guild_dask")}
    return first in {"guild_dask", *modules} and not name.endswith(_SUFFIXES)


def _exists(name: str) -> bool:
    """Returns whether a dotted name is a module, or what a module defines. Any end of a module's full name will do."""
    parts = name.replace("/", ".").split(".")
    for count in range(len(parts), 0, -1):
        path, rest = "/".join(parts[:count]), ".".join(parts[count:])
        files = [*_files(f"{path}.py"), *_files(f"{path}/__init__.py")]
        if any(_defines(file, rest) for file in files):
            return True
    return False


def _defines(path: pathlib.Path, name: str | None) -> bool:
    """Returns whether a file defines a name, such as `claim` or `Runner.run`, at its top."""
    scope: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for part in name.split(".") if name else ():
        found = [node for node in scope if part in _names(node)]
        if not found:
            return False
        scope = getattr(found[0], "body", [])
    return True


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _is_runnable(name: str) -> bool:
    path = PROJECT / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__main__.py").exists()
