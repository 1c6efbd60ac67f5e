"""An error in guild-dask itself: runs are ended in order, and the user gets one line, not a traceback."""

import pathlib
from typing import Any

import pytest

from guild_dask.scheduler import service as scheduler


class _Failing:
    """A loop that fails in the middle of its work."""

    is_abandoned = False

    def run(self) -> None:
        raise ZeroDivisionError("something is wrong")

    def abandon(self) -> None:
        self.is_abandoned = True


def test_unexpected_error_is_one_line_and_runs_are_ended(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop: Any = _Failing()
    error_log = tmp_path / "error.log"
    assert scheduler.work(loop, str(error_log)) == scheduler.UNEXPECTED
    assert loop.is_abandoned
    assert "ZeroDivisionError: something is wrong" in error_log.read_text()
    (line,) = caplog.messages
    assert "something is wrong" in line
    assert "Traceback" not in line
