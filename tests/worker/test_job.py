"""What workers report about jobs, also to and from other versions."""

import errno
import os
import pickle

import pytest

from guild_dask.cluster.events import JobEnded, job_ended
from guild_dask.worker.job import KILLED, NOT_STARTED, Ended, Report, report_for_text
from guild_dask.worker.starter import report_for_error

REPORTS = [
    Report(0),
    Report(KILLED),
    Report(NOT_STARTED),
    Report(1, "Guild says why"),
    Report(NOT_STARTED, "No space left on device"),
    Report(NOT_STARTED, "Permission denied", may_be_of_run=True),
]


@pytest.mark.parametrize("report", REPORTS)
def test_report_is_read_as_it_was_written(report: Report) -> None:
    assert report_for_text(report.as_text()) == report


def test_report_of_another_version_is_read() -> None:
    assert report_for_text("75 Permission denied") == Report(NOT_STARTED, "Permission denied")
    assert report_for_text("") is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.EIO, errno.EROFS])
def test_shortage_and_a_home_that_fails_are_not_the_runs_fault(number: int) -> None:
    assert not report_for_error(OSError(number, os.strerror(number))).may_be_of_run
    assert not report_for_error(MemoryError()).may_be_of_run


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "Permission denied"), ValueError("x"), KeyError()])
def test_any_other_error_may_be_the_runs_fault(error: Exception) -> None:
    assert report_for_error(error).may_be_of_run


def test_result_of_a_worker_with_an_older_version_is_read() -> None:
    ended = Ended(NOT_STARTED, False, "Permission denied", may_be_of_run=True)
    del ended.__dict__["may_be_of_run"]  # as that version pickles it
    assert job_ended("aaa", pickle.loads(pickle.dumps(ended))) == JobEnded(
        "aaa", NOT_STARTED, False, "Permission denied"
    )
