"""What the documentation refers to is there."""

import pathlib
import re
from collections.abc import Iterator

import pytest

from tests.support.sandbox import PROJECT

PAGES = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md"), *PROJECT.glob("examples/*/*.md")])

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```.*?\n(.*?)^```", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
# A path of this repository, from its top.
_PATH = re.compile(r"(?<![\w./~-])(?:\.ci|benchmarks|docs|examples|guild_dask|tests)/[\w./*-]*")


@pytest.fixture(params=PAGES, ids=lambda path: str(path.relative_to(PROJECT)))
def page(request: pytest.FixtureRequest) -> pathlib.Path:
    path: pathlib.Path = request.param
    return path


def test_links_lead_to_files(page: pathlib.Path) -> None:
    links = [link.partition("#")[0] for link in _LINK.findall(page.read_text(encoding="utf-8"))]
    missing = [link for link in links if link and "://" not in link and not (page.parent / link).exists()]
    assert not missing


def test_paths_in_code_and_commands_exist(page: pathlib.Path) -> None:
    missing = [path for path in _paths(page.read_text(encoding="utf-8")) if not any(PROJECT.glob(path))]
    assert not missing


def _paths(text: str) -> Iterator[str]:
    indented = "\n".join(line for line in text.splitlines() if line.startswith("    "))
    for code in (*_FENCED.findall(text), *_CODE.findall(text), indented):
        for path in _PATH.findall(code):
            yield path.rstrip("./")


def test_every_module_is_in_the_table_of_the_architecture() -> None:
    table = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = [PROJECT / "guild_dask" / name for name in (".", "cluster", "page", "report")]
    names = [path.name for folder in folders for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert not [name for name in sorted(names) if f"`{name}`" not in table]


def test_nobody_is_told_to_install_from_an_index_that_does_not_have_us() -> None:
    # What can be typed whether guild-dask was installed by its name or from a folder, is what is missing itself.
    texts = [*PAGES, *(PROJECT / "guild_dask").rglob("*.py"), *(PROJECT / "guild_dask").rglob("*.yml")]
    told = re.compile(r"pip install [^`\n]*(?<![/\w-])guild-dask\b")
    assert not [path.name for path in texts if "guild-dask[" in path.read_text() or told.search(path.read_text())]
