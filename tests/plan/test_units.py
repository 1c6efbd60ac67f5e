"""Text for amounts and sizes, durations as users write them, and walltimes as each job queue reads them."""

import copy
import pickle

import pytest
from dask.utils import byte_sizes, parse_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from guild_dask.plan.units import (
    Amount,
    amount_for_text,
    duration_for_text,
    format_amount,
    format_duration,
    format_size,
    seconds_for_walltime,
    unit_of,
)
from guild_dask.settings.cluster_spec import JOB_QUEUES

checked = settings(deadline=None, max_examples=200)

HOUR = 3600.0
DAY = 24 * HOUR

# What a user types: mostly the characters that mean something here, so that all branches are reached.
TYPED = st.text() | st.text("ab=0123456789.eE+-kKmMiIbB \"'\\\t\n")
NUMBERS = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
SIZES = st.from_regex(r"\+?[0-9]{0,4}\.?[0-9]{0,3}(e[+-]?[0-9]{1,2})? ?([kmgtp]?i?b?)", fullmatch=True)
AMOUNTS = NUMBERS | SIZES.map(amount_for_text).filter(lambda amount: amount is not None)


def test_every_unit_of_dask_is_read() -> None:
    for unit, factor in byte_sizes.items():
        assert amount_for_text(f"3{unit}") == amount_for_text(f"3 {unit.upper()}") == 3 * factor


@checked
@given(TYPED | SIZES)
def test_sizes_agree_with_dask(text: str) -> None:
    # Dask rounds sizes down to whole bytes; here a fraction of a resource is an amount, too.
    ours = amount_for_text(text)
    try:
        theirs = parse_bytes("".join(text.split()))  # Dask takes out spaces only, here any white space is no part of it
    except (ValueError, OverflowError):
        theirs = None
    if ours is not None:
        assert int(ours) == theirs


@pytest.mark.parametrize(("amount", "text"), [(3, "3"), (3.0, "3"), (2.5, "2.5"), (1e300, "1e+300"), (0, "0")])
def test_computed_amount_is_shown_in_its_shortest_exact_form(amount: float, text: str) -> None:
    # An int is accepted, too: callers may write {"gpu": 3}.
    assert format_amount(amount) == text


def test_unit_is_that_in_which_the_amount_was_typed() -> None:
    assert unit_of(Amount(64e9, "64GB")) == (10**9, "GB")
    assert unit_of(3.0) == (1, "")


@checked
@given(AMOUNTS, st.text())
def test_amount_keeps_its_text_when_it_is_pickled_or_copied(value: float, text: str) -> None:
    # Dask pickles the amounts that it sends to workers.
    amount = Amount(value, text)
    for travelled in (pickle.loads(pickle.dumps(amount)), copy.deepcopy(amount)):
        assert (type(travelled), travelled, travelled.text) == (Amount, value, text)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0B"),
        (999, "999B"),
        (1000, "1kB"),
        (8e9, "8GB"),
        (1.234e9, "1.23GB"),
        (2**31, "2.15GB"),
        (3e15, "3PB"),
        (999.6e6, "1000MB"),
        (Amount(8e9, "8000 MB"), "8000 MB"),
        (Amount(8e9, "8000000000"), "8GB"),
    ],
)
def test_sizes_are_shown_with_a_unit(amount: float, text: str) -> None:
    assert format_size(amount) == text


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
        ("lsf", "00:30:00", None),  # LSF accepts hours and minutes only
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
def test_text_that_is_not_a_walltime_is_none(queue: str, text: str) -> None:
    assert seconds_for_walltime(queue, text) is None


@checked
@given(st.sampled_from(JOB_QUEUES), st.text() | st.text("0123456789:-/. dhms"))
def test_no_walltime_raises(queue: str, text: str) -> None:
    seconds = seconds_for_walltime(queue, text)
    assert seconds is None or seconds >= 0
