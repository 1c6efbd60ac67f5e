"""The requirements in the tags of a run, and the tags that cannot be read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guild_dask.plan.reasons import UnreadableTag
from guild_dask.plan.resources import Unreadable
from guild_dask.plan.tags import After, BadTag, Requirements, few_bytes, may_be_ours, obstacle_in, requirements_for_tags
from guild_dask.plan.units import ACCEPTED_DURATIONS

checked = settings(deadline=None, max_examples=200)

NAMES = (
    "dask:",
    "dask-priority:",
    "dask-time:",
    "dask-retries:",
    "dask-after:",
    "dask-after-any:",
    "dask-",
    "dask",
    "",
)
# What a user types: mostly the characters that mean something here, so that all branches are reached.
VALUES = st.text() | st.text("ab=0123456789.eE+-:, dhms\"'\\\t\n")
TAGS = st.builds("{}{}".format, st.sampled_from(NAMES), VALUES)


def test_run_without_tags_has_no_requirements() -> None:
    assert requirements_for_tags(()) == Requirements()


@pytest.mark.parametrize(
    ("tag", "hint"),
    [
        ("dask-priority=10", "write it as 'dask-priority:10'"),
        ("dask_time:90m", "write it as 'dask-time:90m'"),
        ("dask-after = aaa,bbb", "write it as 'dask-after:aaa,bbb'"),
        ("dask-retries", "it has no value; write it as 'dask-retries:...'"),
        ("dask-gpu=1", "write it as 'dask:gpu=1'"),
        ("dask-mem:8GB", "write it as 'dask:mem=8GB'"),
        ("dask=gpu=1 mem=8GB", "write it as 'dask:gpu=1 mem=8GB'"),
        ("Dask:gpu=1", "write it as 'dask:gpu=1'"),
        ("DASK-Time:90m", "write it as 'dask-time:90m'"),
        ("dask_gpu=1", "write it as 'dask:gpu=1'"),
        ("dask gpu=1", "write it as 'dask:gpu=1'"),
        ("dask gpu=1 mem=8GB", "write it as 'dask:gpu=1 mem=8GB'"),
        ("dask time=90m", "write it as 'dask-time:90m'"),
        ("dask-prio:3", "write it as 'dask-priority:3'"),
        ("dask-afterany:aaa", "write it as 'dask-after-any:aaa'"),
        ("dask-aftr:aaa", "write it as 'dask-after:aaa'"),
        ("dask-retry:3", "write it as 'dask-retries:3'"),
        ("dask-timeout: 1h", "write it as 'dask-time:1h'"),
        ("dask-memory:8GB", "write it as 'dask:mem=8GB'"),
        ("dask-own:3", "there is no such tag; use dask:, dask-priority:"),
    ],
)
def test_misspelt_tag_is_reported_with_a_hint(tag: str, hint: str) -> None:
    (bad,) = requirements_for_tags((tag,)).unreadable
    assert str(bad).startswith(f"Ignoring tag {tag!r}: {hint}")


@pytest.mark.parametrize("tag", ["dask", "dask-experiment", "daskboard=1", "dask-time-series", "best"])
def test_other_tag_of_the_user_is_ignored(tag: str) -> None:
    assert requirements_for_tags((tag,)) == Requirements()


def test_tags_of_all_kinds_are_combined() -> None:
    tags = (
        "dask:gpu=1 mem=8GB",
        "dask:foo=2",
        "dask-priority:-3",
        "dask-time:1h30m",
        "dask-retries:2",
        "dask-after:aaa,bbb",
        "dask-after:ccc",
        "dask-after-any:ddd",
    )
    after = (After("aaa"), After("bbb"), After("ccc"), After("ddd", however_it_ends=True))
    assert requirements_for_tags(tags) == Requirements({"gpu": 1, "mem": 8e9, "foo": 2}, -3, 5400, 2, after)


def test_last_of_two_tags_wins() -> None:
    # As for amounts, so that `guild tag --add` can change a requirement.
    assert requirements_for_tags(("dask-priority:1", "dask-priority:2", "dask-priority:x")).priority == 2


@pytest.mark.parametrize(
    ("tag", "accepted"),
    [
        ("dask-priority:high", "use a whole number from -1000 to 1000"),
        ("dask-priority:1.5", "use a whole number from -1000 to 1000"),
        ("dask-priority:", "use a whole number from -1000 to 1000"),
        ("dask-priority:1001", "use a whole number from -1000 to 1000"),
        ("dask-time:soon", ACCEPTED_DURATIONS),
        ("dask-time:0", ACCEPTED_DURATIONS),
        ("dask-time:-5", ACCEPTED_DURATIONS),
        ("dask-time:", ACCEPTED_DURATIONS),
        ("dask-time:90 months", ACCEPTED_DURATIONS),
        ("dask-time:1e5", ACCEPTED_DURATIONS),
        ("dask-retries:-1", "use a whole number of at least 0"),
        ("dask-retries:many", "use a whole number of at least 0"),
        ("dask-after:", "use the id of a run or the beginning of one"),
        ("dask-after:aaa,,bbb", "use the id of a run or the beginning of one"),
        ("dask-after-any:aaa bbb", "use the id of a run or the beginning of one"),
        ("dask-team:3", "there is no such tag; use dask:, dask-priority:, dask-time:"),
    ],
)
def test_bad_tag_is_reported_with_what_is_accepted_and_the_others_apply(tag: str, accepted: str) -> None:
    requirements = requirements_for_tags((tag, "dask:gpu=1", "dask-priority:7", "dask-after:zzz"))
    (bad,) = requirements.unreadable
    assert isinstance(bad, BadTag)
    assert repr(tag) in str(bad)
    assert accepted in str(bad)
    assert (requirements.amounts, requirements.priority, requirements.after) == ({"gpu": 1}, 7, (After("zzz"),))


@pytest.mark.parametrize(
    ("tag", "example"),
    [
        ("dask-time:1x", "dask-time:90m"),
        ("dask-retries:often", "dask-retries:3"),
        ("dask-after:", "dask-after:RUN"),
        ("dask-after-any:a b", "dask-after-any:RUN"),
        ("dask-time=2h", "dask-time:2h"),
        ("dask_after:aaa", "dask-after:aaa"),
        ("Dask:gpu=1", "dask:gpu=1"),
        ("dask gpu=1", "dask:gpu=1"),
        ("dask-mem:8GB", "dask:mem=8GB"),
        ("dask-time", "dask-time:90m"),
        ("dask:gpu=l", "dask:gpu=1"),
        ("dask:foo=1 mem=lots", "dask:mem=8GB"),
        ("dask:mem", "dask:mem=8GB"),
        ("dask:mem=8 GB", "dask:mem=8GB"),
        ("dask:gpu=1 mem=8 GiB", "dask:mem=8GB"),
        ("dask-afterany:aaa", "dask-after-any:aaa"),
        ("dask-retry:2", "dask-retries:2"),
    ],
)
def test_run_does_not_start_without_what_an_unreadable_tag_requests(tag: str, example: str) -> None:
    obstacle = obstacle_in(requirements_for_tags((tag, "dask-priority:1")), has_devices=False)
    assert obstacle is not None
    assert (obstacle.tag, obstacle.example) == (tag, example)
    assert obstacle_in(requirements_for_tags((example,)), has_devices=True) is None


@pytest.mark.parametrize(
    "tag", ["dask:bar", "dask:", "dask:=3", "dask:'", "dask-priority:high", "dask-own:7", "dask:gpu"]
)
def test_run_starts_though_a_tag_that_changes_little_cannot_be_read(tag: str) -> None:
    requirements = requirements_for_tags((tag,))
    assert requirements.unreadable
    assert obstacle_in(requirements, has_devices=False) is None


def test_gpu_without_an_amount_holds_a_run_where_gpus_are_devices() -> None:
    # It would run without a GPU, all night, on the CPU.
    obstacle = obstacle_in(requirements_for_tags(("dask:gpu",)), has_devices=True)
    assert obstacle == UnreadableTag("dask:gpu", "parts must be in format KEY=VAL", "dask:gpu=1")


@pytest.mark.parametrize("tag", ["dask", "dasks", "dask-notes", "dask2:gpu=1", "a dask:gpu=1", "other"])
def test_tag_that_only_looks_similar_is_ignored(tag: str) -> None:
    assert requirements_for_tags((tag,)) == Requirements()


@checked
@given(st.lists(TAGS | st.text(), max_size=6))
def test_no_tag_raises(tags: list[str]) -> None:
    requirements = requirements_for_tags(tuple(tags))
    assert -1000 <= requirements.priority <= 1000
    assert requirements.retries is None or requirements.retries >= 0
    assert requirements.time_limit is None or requirements.time_limit > 0
    assert all(after.run and "," not in after.run for after in requirements.after)
    assert all(amount >= 0 for amount in requirements.amounts.values())
    assert all(isinstance(part, (BadTag, Unreadable)) and str(part) for part in requirements.unreadable)


@checked
@given(st.lists(TAGS, max_size=6), st.lists(st.sampled_from(NAMES[1:6]).map(lambda name: f"{name}?,"), max_size=3))
def test_bad_tags_do_not_change_the_others(good: list[str], bad: list[str]) -> None:
    without, with_bad = requirements_for_tags(tuple(good)), requirements_for_tags((*good, *bad))
    assert len(with_bad.unreadable) == len(without.unreadable) + len(bad)
    assert (with_bad.amounts, with_bad.after, with_bad.time_limit) == (
        without.amounts,
        without.after,
        without.time_limit,
    )


@pytest.mark.parametrize("tag", ["dask", "Dask", "daskboard", "daskboard:1", "dask is nice", "dask board=great"])
def test_tag_that_only_begins_like_ours_is_ignored(tag: str) -> None:
    assert not requirements_for_tags((tag,)).unreadable


@pytest.mark.parametrize(("tag", "may_be"), [("Dask:gpu=1", True), ("dask", True), ("my-dask:test", False)])
def test_tag_may_be_ours_if_it_begins_like_ours(tag: str, may_be: bool) -> None:
    assert may_be_ours(tag) is may_be


@pytest.mark.parametrize(
    ("tags", "counted", "meant"),
    [
        (("dask:mem=8",), 64e9, "mem=8GB"),
        (("dask:mem=8GB", "dask:gpu=1 mem=16000"), 64e9, "mem=16000MB"),
        (("dask:mem=8",), 64, ""),  # the user counts gigabytes
        (("dask:mem=8",), 0, ""),  # the unit of the user is unknown
        (("dask:mem=8", "dask:mem=8GB"), 64e9, ""),
        (("dask:mem=0",), 64e9, ""),
        (("dask:mem=900kB",), 64e9, ""),
    ],
)
def test_memory_without_a_unit_is_reported_if_it_must_be_missing(
    tags: tuple[str, ...], counted: float, meant: str
) -> None:
    text = few_bytes(tags, requirements_for_tags(tags), counted)
    assert text.endswith(f"amounts of mem are bytes; write {meant}") if meant else not text
    assert not meant or repr(tags[-1]) in text
