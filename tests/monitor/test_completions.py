"""The lines of the log for runs that completed."""

import pathlib
import time

import pytest

from guild_dask.home.outcome import End
from guild_dask.monitor import completions
from guild_dask.monitor.completions import Completions
from guild_dask.monitor.state import EndedRun


def moment(text: str) -> float:
    """Returns a time of this host's zone as seconds since the epoch."""
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))


def completed(at: float, run_id: str = "aaa") -> EndedRun:
    """Returns a run that completed at a time, after two seconds."""
    return EndedRun(run_id, "train", End.COMPLETED.value, 0, "local", "host", at, 2.0, 0.0, 1)


def test_line_at_once_has_the_duration_and_the_scalars() -> None:
    run = completed(moment("2026-11-16 23:17:21"))
    assert completions.text_for(run, {"loss": 0.5}) == "Run aaa completed in 2 s (loss=0.5)"


def test_late_line_says_when_the_run_ended() -> None:
    run, late = completed(moment("2026-11-16 23:17:21")), moment("2026-11-16 23:17:31")
    assert completions.text_for(run, {}, late) == "Run aaa completed in 2 s, at 23:17:21"
    assert completions.text_for(run, {"loss": 0.5}, late) == "Run aaa completed in 2 s, at 23:17:21 (loss=0.5)"


def test_late_line_has_the_date_if_it_was_another_day() -> None:
    run, late = completed(moment("2026-11-16 23:17:21")), moment("2026-11-17 07:00:00")
    assert completions.text_for(run, {}, late) == "Run aaa completed in 2 s, at 2026-11-16 23:17:21"


@pytest.mark.parametrize("at_once", [True, False])
def test_only_lines_that_are_kept_until_the_end_have_a_time(
    at_once: bool, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "guild"):
        view = Completions(str(tmp_path), at_once)
        view.ended(completed(moment("2026-11-16 23:17:21")))
        view.close()
    expected = "completed in 2 s" if at_once else "completed in 2 s, at 2026-11-16 23:17:21"
    assert {record.getMessage() for record in caplog.records} == {f"Run aaa {expected}"}
