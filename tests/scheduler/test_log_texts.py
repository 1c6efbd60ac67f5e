"""Messages: the texts that a user reads, word for word."""

import logging

import pytest

from guild_dask.home.outcome import End, Result
from guild_dask.plan.resources import request_for_specs
from guild_dask.scheduler import log_texts

RUN = "1234567890abcdef"


def test_starting_shows_what_the_run_asks_for_as_it_was_typed() -> None:
    requests = request_for_specs(["mem=8GB gpu=1", "bar=2.50"]).amounts
    assert log_texts.starting(RUN, requests) == f"Starting staged run {RUN} (requires bar=2.50 gpu=1 mem=8GB)"


def test_starting_is_short_for_a_run_that_asks_for_nothing() -> None:
    assert log_texts.starting(RUN, {}) == f"Starting staged run {RUN}"


@pytest.mark.parametrize(
    ("result", "level", "text"),
    [
        (
            Result(End.FAILED, 3),
            logging.WARNING,
            f"Run {RUN} failed with exit code 3 ('guild cat --output 12345678' shows its output)",
        ),
        (
            Result(End.FAILED, -11),
            logging.WARNING,
            f"Run {RUN} was killed by signal 11, SIGSEGV ('guild cat --output 12345678' shows its output)",
        ),
        (
            Result(End.RETRIED, -11),
            logging.WARNING,
            f"Run {RUN} is staged again for attempt 2 (it was killed by signal 11, SIGSEGV)",
        ),
        (Result(End.COULD_NOT_START, 1), logging.WARNING, f"Run {RUN} could not be started (exit code 1): last words"),
        (Result(End.GONE), logging.INFO, f"Run {RUN} was deleted, or taken over, while it was running"),
        (Result(End.TERMINATED, -15), logging.INFO, f"Run {RUN} was terminated"),
        (Result(End.STAGED_AGAIN), logging.INFO, f"Run {RUN} did not start and is staged again"),
        (Result(End.COMPLETED, 0), logging.DEBUG, f"Run {RUN} completed"),
    ],
)
def test_end_of_a_run_is_a_warning_where_a_user_may_want_to_act(result: Result, level: int, text: str) -> None:
    assert log_texts.ended(RUN, result, "last words") == (level, text)


def test_deleted_run_is_called_deleted() -> None:
    assert log_texts.ended(RUN, Result(End.GONE), "", True)[1] == f"Run {RUN} was deleted while it was running"
    assert "another scheduler" in log_texts.ended(RUN, Result(End.GONE), "", False)[1]


def test_every_end_has_a_text_of_its_own() -> None:
    assert len({log_texts.ended(RUN, Result(end, 1))[1] for end in End}) == len(End)


def test_summary_counts_every_run_that_ended_badly_as_failed() -> None:
    ends = {End.COMPLETED: 5, End.FAILED: 2, End.GONE: 1, End.COULD_NOT_START: 1, End.STAGED_AGAIN: 7}
    assert log_texts.summary(ends, 3, 12.345) == (
        "Processed staged runs in 12.3 seconds: 5 run(s) completed, 3 failed, 1 deleted, 3 left staged"
    )


def test_summary_counts_runs_that_have_no_end() -> None:
    text = log_texts.summary({End.COMPLETED: 91}, 0, 1, unsettled=9)
    assert text.endswith(": 91 run(s) completed, 0 failed, 0 left staged, 9 left to the next scheduler")


def test_summary_of_nothing_says_so() -> None:
    assert log_texts.summary({}, 0, 0) == (
        "Processed staged runs in 0.0 seconds: 0 run(s) completed, 0 failed, 0 left staged"
    )


def test_summary_speaks_of_terminated_runs_only_where_there_are_some() -> None:
    assert log_texts.summary({End.TERMINATED: 2}, 0, 1) == (
        "Processed staged runs in 1.0 seconds: 0 run(s) completed, 0 failed, 2 terminated, 0 left staged"
    )
