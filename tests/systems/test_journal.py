"""The journal's check: which journals pass and which fail."""

import pytest

from tests.support.sandbox import Guild, Sandbox
from tests.systems.journal import Journal


def a_journal(user: Sandbox, text: str) -> Journal:
    journal = Journal(user)
    (user.root / "journal").write_text(text)
    return journal


def test_run_that_goes_on_elsewhere_is_sound(user: Sandbox) -> None:
    text = "start a n1 5 1 1.0\nbeat a n1 5 1 2.0\nresume a n2 5 2 3.0\nend a n2 5 2 4.0\n"
    a_journal(user, text).check(["a"])


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "did not end once"),
        ("start a n1 5 1 1.0\n", "did not end once"),
        ("start a n1 5 1 1.0\nend a n1 5 1 2.0\nresume a n2 5 2 3.0\nend a n2 5 2 4.0\n", "did not end once"),
        ("start a n1 5 1 1.0\nresume a n2 5 2 2.0\nbeat a n1 5 1 2.5\nend a n2 5 2 3.0\n", "twice at the same time"),
        ("start a n1 5 1 1.0\nresume a n2 5 1 2.0\nend a n2 5 1 3.0\n", "not numbered"),
        ("start a n1 5 1 1.0\nstart a n2 5 2 2.0\nend a n2 5 2 3.0\n", "stay in its directory"),
    ],
)
def test_what_was_promised_and_is_not_so_is_told(user: Sandbox, text: str, wrong: str) -> None:
    with pytest.raises(AssertionError, match=wrong):
        a_journal(user, text).check(["a"])


def test_operation_writes_the_journal(journal: Journal, guild: Guild) -> None:
    guild("run work seconds=0.3 --run-id aaa -y")
    journal.check(["aaa"])
    (life,) = journal.lives()
    assert life.last - life.begun >= 0.3
