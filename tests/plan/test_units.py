"""Times as text: durations as users write them, walltimes as each job queue reads them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guild_dask.plan.units import duration_for_text, format_duration, seconds_for_walltime
from guild_dask.settings.cluster_spec import JOB_QUEUES

checked = settings(deadline=None, max_examples=200)

HOUR = 3600.0
DAY = 24 * HOUR


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", 5400),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1.5h", 5400),
        ("1:30:00", 5400),
        ("2d", 172800),
        ("45s", 45),
        ("45", 45),
        ("0.5", 0.5),
        ("2 days 3 hours", 183600),
        ("10 min", 600),
        ("10minutes", 600),
        ("1H", 3600),
    ],
)
def test_time_is_read(text: str, seconds: float) -> None:
    assert duration_for_text(text) == seconds


@checked
@given(st.integers(1, 10**8))
def test_time_is_written_as_it_is_read(seconds: int) -> None:
    assert duration_for_text(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("queue", "text", "seconds"),
    [
        ("slurm", "90", 90 * 60),
        ("slurm", "30:15", 30 * 60 + 15),
        ("slurm", "02:00:00", 2 * HOUR),
        ("slurm", "1-12", 36 * HOUR),
        ("slurm", "1-12:30", 36.5 * HOUR),
        ("slurm", "1-12:30:00", 36.5 * HOUR),
        ("lsf", "1:30", 1.5 * HOUR),
        ("lsf", "00:30", 0.5 * HOUR),
        ("lsf", "90", 1.5 * HOUR),
        ("lsf", "90/head", 1.5 * HOUR),
        ("lsf", "24:00/head", DAY),
        ("lsf", "00:30:00", None),  # LSF takes hours and minutes only
        ("pbs", "3600", HOUR),
        ("pbs", "30:15", 30 * 60 + 15),
        ("pbs", "72:00:00", 3 * DAY),
        ("sge", "3600", HOUR),
        ("sge", "00:30:00", 0.5 * HOUR),
        ("moab", "3600", HOUR),
        ("moab", "02:00:00", 2 * HOUR),
        ("moab", "1:00:00:00", DAY),
        ("oar", "2", 2 * HOUR),
        ("oar", "2:30", 2.5 * HOUR),
        ("oar", "02:30:00", 2.5 * HOUR),
        ("oar", "1:00:00:00", None),
        ("htcondor", "3600", HOUR),
        ("htcondor", "02:00:00", 2 * HOUR),
    ],
)
def test_walltime_is_read_as_its_queue_reads_it(queue: str, text: str, seconds: float | None) -> None:
    assert seconds_for_walltime(queue, text) == seconds


@pytest.mark.parametrize("queue", JOB_QUEUES)
def test_walltime_with_units_means_the_same_for_every_queue(queue: str) -> None:
    texts = {"30m": 0.5 * HOUR, "1h30m": 1.5 * HOUR, "1h 30m": 1.5 * HOUR, "2 days": 2 * DAY}
    assert {text: seconds_for_walltime(queue, text) for text in texts} == texts


@pytest.mark.parametrize("queue", JOB_QUEUES)
@pytest.mark.parametrize("text", ["", "soon", "-5", "1.5", "1:", "1:2:3:4:5", "1--2"])
def test_text_that_is_no_walltime_is_none(queue: str, text: str) -> None:
    assert seconds_for_walltime(queue, text) is None


@checked
@given(st.sampled_from(JOB_QUEUES), st.text() | st.text("0123456789:-/. dhms"))
def test_nothing_that_is_typed_as_a_walltime_raises(queue: str, text: str) -> None:
    seconds = seconds_for_walltime(queue, text)
    assert seconds is None or seconds >= 0
