"""The documents that the project was created from pass unchanged. They take long, and run only with `--seeds`."""

import os
import pathlib

import pytest

from tests.support.documents import AS_DOCTEST, DocumentFailure, check_in_new_home

NAMES = ("dask-scheduler.md", "dask-scheduler-resources.md")


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> pathlib.Path:
    """The folder of the seed documents. Without one, tests are skipped, or fail in CI."""
    given = request.config.getoption("--seeds")
    if given is None:
        pytest.skip("run with --seeds=DIR")
    folder = request.config.invocation_params.dir / str(given)
    if not folder.is_dir():
        missing = f"there is no folder {folder}"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return folder


@pytest.mark.seeds
@pytest.mark.parametrize("name", NAMES)
def test_seed_document_holds(seeds: pathlib.Path, name: str) -> None:
    # They assume a machine with five cores or more.
    try:
        check_in_new_home(seeds / name, AS_DOCTEST, DASK_GUILD_DASK__WORKERS="8")
    except DocumentFailure as failure:
        pytest.fail(str(failure), pytrace=False)
