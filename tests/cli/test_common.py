"""What the commands share."""

import os
import pathlib

from guild_dask.cli.common import as_claimed_in
from guild_dask.home import run_view
from guild_dask.home.status import Status
from tests.home.test_run_directory import make_run


def test_run_that_was_staged_again_since_it_was_read_is_staged(tmp_path: pathlib.Path) -> None:
    # A run that failed and is retried has the status of its failure for a moment: 'logs --follow' goes on.
    run_dir = make_run(tmp_path / "runs" / "aaa", exit_status="5\n")
    os.rename(run_dir / ".guild" / "STAGED", tmp_path / "STAGED")
    failed = run_view.view(str(run_dir))
    assert failed.status is Status.ERROR
    os.rename(tmp_path / "STAGED", run_dir / ".guild" / "STAGED")
    assert as_claimed_in(str(tmp_path), failed).status is Status.STAGED
