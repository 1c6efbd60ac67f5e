"""How documents are checked: what matches, what does not, and what a failure says."""

import pathlib
import sys
import sysconfig
from collections.abc import Iterator

import psutil
import pytest

from tests.support.documents import DocumentFailure, check, check_in_new_home
from tests.support.sandbox import Guild, Sandbox, sandbox, wait_until


@pytest.fixture
def box(tmp_path: pathlib.Path) -> Iterator[Sandbox]:
    with sandbox(tmp_path) as box:
        yield box


def failure_of(text: str, box: Sandbox) -> str:
    path = document(text, box)
    with pytest.raises(DocumentFailure) as failure:
        check(path, box)
    return str(failure.value).replace(str(path), "story.md")


def document(text: str, box: Sandbox) -> pathlib.Path:
    path = box.root / "story.md"
    path.write_text(text)
    return path


def test_dots_are_any_text_and_white_space_is_folded(box: Sandbox) -> None:
    text = """---
front: matter
---

    >>> run("printf 'one   two\\nthree\\nfour\\nfive'; exit 3")
    one two
    ...
    f... <exit 3>

    >>> run("echo last")
    l...
    """
    check(document(text, box), box)


def test_dots_alone_are_any_number_of_lines(box: Sandbox) -> None:
    text = """
    >>> run("seq 5")
    1
    ...
    2
    ...
    5
    ...
    <exit 0>
    """
    check(document(text, box), box)
    assert "5" in failure_of(text.replace("2", "6"), box)


def test_failure_names_place_and_first_line_that_differs(box: Sandbox) -> None:
    text = """---
front: matter
---

    >>> quiet("true")
    >>> run("seq 3")
    1
    ...
    4
    <exit 0>
"""
    assert (
        failure_of(text, box)
        == """story.md:6
    >>> run("seq 3")
Expected:
    1
    ...
    4
    <exit 0>
Got:
    1
    2
    3
    <exit 0>
The first expected line that is not there:
    4"""
    )


def test_document_ends_at_its_first_mismatch(box: Sandbox) -> None:
    assert "first" in failure_of('>>> run("echo first")\n\n>>> run("touch second")\n', box)
    assert not (box.folder / "second").exists()


def test_quiet_command_that_fails_is_a_mismatch(box: Sandbox) -> None:
    assert "no such luck\n    <exit 1>" in failure_of('>>> quiet("echo no such luck; false")\n', box)


def test_command_that_does_not_end_is_killed(box: Sandbox) -> None:
    told = failure_of('>>> run("echo begun; sleep 600", timeout=0.5)\n<exit 0>\n', box)
    assert "begun\n    <killed, it did not end in time>" in told


def test_example_that_raises_is_a_mismatch(box: Sandbox) -> None:
    assert "ZeroDivisionError" in failure_of(">>> 1 / 0\n", box)


def test_document_without_examples_is_a_failure(box: Sandbox) -> None:
    assert "no example" in failure_of("Once upon a time.\n", box)


def test_wait_for_is_silent_when_the_condition_comes_true(box: Sandbox) -> None:
    text = """
    >>> quiet("(sleep 0.3; echo a b a >> late) &")
    >>> wait_for("touch late; cat late", contains=["a", "b"], lacks="c")
    >>> wait_for("cat late", contains="a", times=2)
    >>> wait_for(lambda: True)
    """
    check(document(text, box), box)


def test_wait_for_shows_the_last_thing_seen_at_its_deadline(box: Sandbox) -> None:
    told = failure_of('>>> wait_for("echo seen", contains="seen", times=2, timeout=0)\n', box)
    assert "After 0 seconds, still not as expected:\n    $ echo seen\n    seen\n    <exit 0>" in told


def test_each_document_is_a_user_of_its_own(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASK_GUILD_DASK__WORKERS", "3")
    path = tmp_path / "story.md"
    path.write_text(f"""
    >>> run("env | grep DASK_; ls -A . ~ $GUILD_HOME")
    .: /...: /...: <exit 0>

    >>> run("python -c 'import sys; print(sys.prefix)'; command -v guild")
    {sys.prefix}
    {sysconfig.get_path("scripts")}/guild
    <exit 0>
    """)
    check_in_new_home(path)


def test_processes_left_behind_are_killed_and_told(tmp_path: pathlib.Path) -> None:
    # The shell itself tells that it is there: one that is about to be executed has no environment.
    text = """>>> quiet("sh -c 'echo $$ > pid; sleep 601; :' & until [ -s pid ]; do :; done")\n"""
    with (
        pytest.raises(AssertionError, match=r"(?s)not yet: the end of.*sleep 601"),
        sandbox(tmp_path, patience=0) as box,
    ):
        check(document(text, box), box)
    assert not is_alive(int((tmp_path / "folder" / "pid").read_text()))


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_started_command_is_stopped_at_the_end_of_its_block(guild: Guild, project: pathlib.Path) -> None:
    with guild.started("run op sleep=600 -y") as started:
        started.wait_for_output("Waiting 600 second(s)")
        assert "running" in guild("runs").output
    assert not started.is_running


def test_deadline_that_passes_says_what_there_was() -> None:
    with pytest.raises(AssertionError, match=r"not yet: a miracle \(last value: 0\)"):
        wait_until(lambda: 0, 0, "a miracle")
