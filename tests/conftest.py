"""Collects documents, and provides a Guild home and a project for each test."""

import errno
import os
import pathlib
import shutil
from collections.abc import Iterator

import pytest

from tests.support import account
from tests.support.documents import Document, is_document
from tests.support.failing_files import Files
from tests.support.sandbox import COLD, EXAMPLES, Guild, Sandbox, sandbox


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds",
        metavar="DIR",
        help="also check the documents that the project was created from, word for word, which are in this folder",
    )
    parser.addoption("--cold", action="store_true", help="start no run warm, as with the flag warm=no")
    parser.addoption("--account", metavar="NAME", help="run Guild's commands as that user; the tests must run as root")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--account"):
        account.choose(config.getoption("--account"))


def pytest_collect_file(file_path: pathlib.Path, parent: pytest.Collector) -> Document | None:
    if not is_document(file_path):
        return None
    document: Document = Document.from_parent(parent, path=file_path)
    return document


@pytest.fixture
def user(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> Iterator[Sandbox]:
    """A new user. This process, and the processes that it starts, have the user's environment and folder."""
    with sandbox(tmp_path, COLD if pytestconfig.getoption("--cold") else None) as box:
        for name in os.environ:
            if not name.startswith("PYTEST_"):
                monkeypatch.delenv(name)
        for name, value in box.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(box.folder)
        yield box


@pytest.fixture
def guild_home(user: Sandbox) -> pathlib.Path:
    """An empty Guild home, in the environment of this process."""
    return user.guild_home


@pytest.fixture
def guild(user: Sandbox) -> Guild:
    """Runs Guild commands: `guild("runs").output`, `with guild.started("run dask:scheduler -y") as scheduler:`."""
    return Guild(user.root)


@pytest.fixture
def project(user: Sandbox, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A copy of the example project; the test is in its folder."""
    copy = user.folder / "parallel-runs"
    shutil.copytree(EXAMPLES / "parallel-runs", copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(copy)
    return copy


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Files:
    """Lets files fail that this process opens, as with too many open files."""
    return Files(monkeypatch)


@pytest.fixture(params=[errno.EMFILE, errno.EIO], ids=lambda number: errno.errorcode[number])
def failing(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Files:
    """Lets files fail that this process reads, with too many open files and on a file server that fails."""
    return Files(monkeypatch, request.param)
