"""The output of runs, forwarded while they run; and the inotify watcher that this uses."""

import itertools
import os
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guild_dask.host.inotify import CREATED, MODIFIED, MOVED_TO, Watcher
from guild_dask.monitor.log import OutputStream
from guild_dask.monitor.output import OutputFollower
from tests.support.sandbox import DEADLINE, wait_until

NOTIFIED = pytest.mark.skipif(sys.platform != "linux", reason="needs inotify")


class Terminal:
    """A receiver of forwarded output, which can wait for a text."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.left_out = 0
        self.space = threading.Event()  # cleared: the reader does not read
        self.space.set()
        self._queue: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def wait_for_space(self, timeout: float = 0.0) -> bool:
        return self.space.wait(timeout)

    def leave_out(self, count: int) -> None:
        self.left_out += count

    def write_output(self, data: bytes) -> None:
        self.pieces.append(data)
        self._queue.put(data)

    @property
    def shown(self) -> bytes:
        return b"".join(self.pieces)

    def wait_for(self, text: bytes) -> None:
        deadline = time.monotonic() + DEADLINE
        while text not in self.shown:
            try:
                self._queue.get(timeout=deadline - time.monotonic())
            except (queue.Empty, ValueError):
                raise AssertionError(f"{text!r} was not forwarded; got {self.shown!r}") from None


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "run-output"


@pytest.fixture
def follower(folder: pathlib.Path, terminal: Terminal) -> Iterator[OutputFollower]:
    follower = OutputFollower(str(folder), terminal)
    yield follower
    terminal.space.set()
    follower.close()


def append(path: str, data: bytes) -> None:
    with open(path, "ab") as f:
        f.write(data)


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
def test_output_that_is_followed_anew_has_one_open_file(follower: OutputFollower) -> None:
    follower.follow("aaa")
    before = len(os.listdir("/proc/self/fd"))
    follower.follow("aaa")
    assert len(os.listdir("/proc/self/fd")) == before


def test_line_is_forwarded_while_the_run_goes_on(follower: OutputFollower, terminal: Terminal) -> None:
    with open(follower.follow("aaa"), "ab") as output:
        run = subprocess.Popen(["sh", "-c", "echo hello; read line; echo $line"], stdin=subprocess.PIPE, stdout=output)
    terminal.wait_for(b"hello\n")
    assert run.poll() is None
    run.communicate(b"bye\n", timeout=DEADLINE)
    terminal.wait_for(b"hello\nbye\n")
    assert follower.finish("aaa") == "bye"
    assert terminal.shown == b"hello\nbye\n"


def test_half_a_line_waits_for_the_other_half(follower: OutputFollower, terminal: Terminal) -> None:
    # Otherwise lines of two runs would be mixed.
    first, second = follower.follow("aaa"), follower.follow("bbb")
    append(first, b"one\nha")
    terminal.wait_for(b"one\n")
    append(second, b"other\n")
    terminal.wait_for(b"other\n")
    append(first, b"lf\n")
    terminal.wait_for(b"half\n")
    assert terminal.shown == b"one\nother\nhalf\n"


def test_progress_bar_is_forwarded_as_it_goes(follower: OutputFollower, terminal: Terminal) -> None:
    path = follower.follow("aaa")
    append(path, b"10%\r20%\r30")
    terminal.wait_for(b"10%\r20%\r")
    follower.finish("aaa")
    assert terminal.shown == b"10%\r20%\r30\n"


def test_each_line_begins_with_its_run_if_runs_are_named(follower: OutputFollower, terminal: Terminal) -> None:
    follower.names_runs = True
    first, second = follower.follow("aaaaaaaabbbb"), follower.follow("ccc")
    append(first, b"one\n\ntwo\n")
    terminal.wait_for(b"two\n")
    append(second, b"10%\r20%\r")
    terminal.wait_for(b"10%")
    append(second, b"\nend\r\nof it")  # the second half of \r\n
    assert (follower.finish("aaaaaaaabbbb"), follower.finish("ccc")) == ("two", "of it")
    named = b"aaaaaaaa | one\naaaaaaaa | \naaaaaaaa | two\n"
    assert terminal.shown == named + b"ccc | 10%\nccc | 20%\nccc | end\nccc | of it\n"


def test_progress_bar_on_a_terminal_is_shown_once_a_second(tmp_path: pathlib.Path, terminal: Terminal) -> None:
    # In place, it would overwrite the live line, and the lines of other runs.
    now = [0.0]
    follower = OutputFollower(str(tmp_path / "outputs"), terminal, clock=lambda: now[0])
    follower.is_on_terminal = True
    path = follower.follow("aaa")
    append(path, b"\r10%\r20%\r")
    terminal.wait_for(b"10%\n")
    now[0] = 1.5
    append(path, b"50%\r60%\r")
    terminal.wait_for(b"50%\n")
    append(path, b"100%\nready\n70%\r")
    assert follower.finish("aaa") == "70%"
    follower.close()
    assert terminal.shown == b"10%\n50%\n100%\nready\n70%\n"


def test_run_whose_name_is_no_text_is_followed(follower: OutputFollower, terminal: Terminal) -> None:
    follower.names_runs = True
    append(follower.follow("a\udcffb"), b"one\n")
    assert follower.finish("a\udcffb") == "one"
    assert terminal.shown == b"a\\udcffb | one\n"


def test_incomplete_last_line_gets_a_line_end(follower: OutputFollower, terminal: Terminal) -> None:
    append(follower.follow("aaa"), b"one\ntwo")
    assert follower.finish("aaa") == "two"
    assert terminal.shown == b"one\ntwo\n"


@pytest.mark.parametrize(
    ("data", "last"),
    [
        (b"", ""),
        (b"one\n", "one"),
        (b"one\n\n  \n", "one"),
        (b"one\r\ntwo\r\n", "two"),
        (b"caf\xc3\xa9\n", "caf\u00e9"),
        (b"\xff\n", "\ufffd"),
    ],
)
def test_finish_returns_the_last_line(follower: OutputFollower, data: bytes, last: str) -> None:
    append(follower.follow("aaa"), data)
    assert follower.finish("aaa") == last


def test_file_of_a_run_that_ended_is_removed(follower: OutputFollower) -> None:
    path = follower.follow("aaa")
    assert os.path.exists(path)
    follower.finish("aaa")
    assert not os.path.exists(path)
    assert follower.finish("aaa") == ""


def test_second_attempt_starts_with_an_empty_file(
    folder: pathlib.Path, follower: OutputFollower, terminal: Terminal
) -> None:
    # A killed scheduler may have left the first file.
    folder.mkdir()
    append(str(folder / "aaa"), b"first\n")
    for line in (b"second\n", b"third\n"):
        append(follower.follow("aaa"), line)
        follower.finish("aaa")
    assert terminal.shown == b"second\nthird\n"


def test_file_that_a_user_deletes_is_followed_all_the_same(follower: OutputFollower, terminal: Terminal) -> None:
    path = follower.follow("aaa")
    with open(path, "ab", buffering=0) as output:
        os.unlink(path)
        output.write(b"still here\n")
        terminal.wait_for(b"still here\n")
    assert follower.finish("aaa") == "still here"


def test_line_without_an_end_is_forwarded_in_parts(follower: OutputFollower, terminal: Terminal) -> None:
    # It would fill the memory, and joining it again for each piece would take minutes.
    path = follower.follow("aaa")
    append(path, b"x" * (5 << 20))
    follower.finish("aaa")
    terminal.wait_for(b"\n")
    assert terminal.shown == b"x" * (5 << 20) + b"\n"
    assert max(len(piece) for piece in terminal.pieces) <= 2 << 20


def test_end_of_a_run_does_not_wait_for_a_reader_that_does_not_read(
    follower: OutputFollower, terminal: Terminal
) -> None:
    terminal.space.clear()
    lines = b"".join(b"line %d\n" % number for number in range(50_000))
    append(follower.follow("aaa"), lines)
    append(follower.follow("bbb"), b"short\n")
    assert follower.finish("aaa") == "line 49999"
    assert follower.finish("bbb") == "short"
    append(follower.follow("aaa"), b"second attempt\n")
    assert terminal.shown == b""
    terminal.space.set()
    follower.finish("aaa")
    for text in (b"line 49999", b"short", b"second attempt"):
        terminal.wait_for(text)
    assert terminal.left_out == 0
    rest = _without(lines, terminal.pieces)
    assert sorted(rest or []) == [b"second attempt\n", b"short\n"]


def test_output_of_many_ended_runs_that_is_not_read_is_left_out(follower: OutputFollower, terminal: Terminal) -> None:
    # Each of them has a file open.
    terminal.space.clear()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(100):
        append(follower.follow(f"run{number}"), b"some output\n")
        follower.finish(f"run{number}")
    assert len(os.listdir("/proc/self/fd")) - before < 20
    assert terminal.left_out
    terminal.space.set()
    wait_until(lambda: len(terminal.shown) + terminal.left_out == 100 * len(b"some output\n"))


def test_closing_does_not_wait_for_a_slow_reader_if_the_scheduler_is_to_stop(
    folder: pathlib.Path, terminal: Terminal
) -> None:
    terminal.space.clear()
    times = itertools.count()  # a second passes between two looks at the clock
    follower = OutputFollower(str(folder), terminal, clock=lambda: next(times))
    append(follower.follow("aaa"), b"some output\n")
    follower.close(lambda: True)
    assert (terminal.shown, terminal.left_out) == (b"", len(b"some output\n"))


def test_closing_forwards_what_was_written_and_leaves_no_folder(folder: pathlib.Path, terminal: Terminal) -> None:
    follower = OutputFollower(str(folder), terminal)
    for run_id in ("aaa", "bbb"):
        append(follower.follow(run_id), run_id.encode())
    follower.close()
    assert sorted(terminal.shown.split()) == [b"aaa", b"bbb"]
    assert not folder.exists()


def test_closing_keeps_files_of_others(folder: pathlib.Path, terminal: Terminal) -> None:
    follower = OutputFollower(str(folder), terminal)
    follower.follow("aaa")
    (folder / "notes").write_text("mine")
    follower.close()
    assert os.listdir(folder) == ["notes"]


def test_closing_needs_no_run(folder: pathlib.Path, terminal: Terminal) -> None:
    before = threading.active_count()
    OutputFollower(str(folder), terminal).close()
    assert threading.active_count() == before
    assert terminal.pieces == []


@NOTIFIED
def test_closing_releases_all_file_descriptors(folder: pathlib.Path, terminal: Terminal) -> None:
    # A user has 128 inotify instances by default, for all programs together.
    before = os.listdir("/proc/self/fd")
    follower = OutputFollower(str(folder), terminal)
    follower.follow("aaa")
    follower.close()
    assert os.listdir("/proc/self/fd") == before


def test_run_goes_on_when_the_scheduler_is_killed(tmp_path: pathlib.Path) -> None:
    # With a pipe to the scheduler, the run would die at its next line.
    code = """
import subprocess, sys
from guild_dask.monitor.log import OutputStream
from guild_dask.monitor.output import OutputFollower

path = OutputFollower(sys.argv[1], OutputStream()).follow("aaa")
with open(path, "ab") as output:
    run = subprocess.Popen(["sh", "-c", "echo up; read line; echo $line; exec >&2; echo done"], stdout=output)
run.wait()
"""
    scheduler = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert scheduler.stdin
    assert scheduler.stderr
    wait_until(lambda: (tmp_path / "aaa").exists() and (tmp_path / "aaa").read_text(), describe="output of the run")
    scheduler.send_signal(signal.SIGKILL)
    scheduler.wait(DEADLINE)
    scheduler.stdin.write("hello\n")
    scheduler.stdin.close()
    assert scheduler.stderr.read() == "done\n"
    scheduler.stderr.close()
    assert (tmp_path / "aaa").read_text() == "up\nhello\n"


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.binary() | st.text("x\n\r", max_size=5).map(str.encode))))
def test_all_that_runs_print_arrives_once_in_order_and_in_whole_lines(writes: list[tuple[str, bytes]]) -> None:
    terminal = Terminal()
    with tempfile.TemporaryDirectory() as folder:
        follower = OutputFollower(folder, terminal)
        paths = {run_id: follower.follow(run_id) for run_id in "ab"}
        for run_id, data in writes:
            append(paths[run_id], data)
        follower.finish("a")
        follower.finish("b")
        follower.close()
    assert all(piece[-1:] in (b"\n", b"\r") for piece in terminal.pieces)
    written = {run_id: b"".join(data for name, data in writes if name == run_id) for run_id in "ab"}
    for data in written.values():
        ended = data if not data or data[-1:] in (b"\n", b"\r") else data + b"\n"
        assert _without(ended, terminal.pieces) is not None
    assert len(terminal.shown) - sum(map(len, written.values())) in (0, 1, 2)


def _without(data: bytes, pieces: list[bytes]) -> list[bytes] | None:
    """Returns the pieces without those that make up the data, in order; None if the data is not among them."""
    if not data:
        return pieces
    for number, piece in enumerate(pieces):
        if data.startswith(piece):
            left = _without(data[len(piece) :], pieces[number + 1 :])
            if left is not None:
                return pieces[:number] + left
    return None


# The watcher


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    watcher = Watcher()
    yield watcher
    watcher.close()


def test_wait_ends_at_its_timeout(watcher: Watcher) -> None:
    assert watcher.wait(0.001) == []


def test_wake_ends_the_present_wait(watcher: Watcher) -> None:
    waiting = threading.Thread(target=watcher.wait, args=(None,))
    waiting.start()
    watcher.wake()
    waiting.join(DEADLINE)
    assert not waiting.is_alive()


def test_wake_before_a_wait_ends_that_one(watcher: Watcher) -> None:
    watcher.wake()
    assert watcher.wait(None) == []


def test_many_wakes_do_not_block(watcher: Watcher) -> None:
    for _ in range(100_000):
        watcher.wake()
    assert watcher.wait(None) == []


@NOTIFIED
def test_changes_are_reported_with_their_folder_and_name(watcher: Watcher, tmp_path: pathlib.Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    one, two = (watcher.add(str(folder), CREATED | MOVED_TO) for folder in folders)
    (folders[0] / "a").touch()
    (folders[0] / "a").rename(folders[1] / "b\u00e4")
    assert watcher.wait(DEADLINE) == [(one, "a"), (two, "b\u00e4")]


@NOTIFIED
def test_change_of_a_watched_file_is_reported_without_a_name(watcher: Watcher, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "file"
    file.touch()
    number = watcher.add(str(file), MODIFIED)
    append(str(file), b"x")
    assert watcher.wait(DEADLINE) == [(number, "")]


@NOTIFIED
def test_removed_watch_reports_nothing(watcher: Watcher, tmp_path: pathlib.Path) -> None:
    number = watcher.add(str(tmp_path), CREATED)
    watcher.remove(number)
    (tmp_path / "a").touch()
    # inotify reports the end of the watch itself, with the same number.
    assert watcher.wait(DEADLINE) == [(number, "")]
    assert watcher.wait(0.001) == []


def test_missing_folder_cannot_be_watched(watcher: Watcher, tmp_path: pathlib.Path) -> None:
    number = watcher.add(str(tmp_path / "nothing"), CREATED)
    assert number is None
    watcher.remove(number)


def test_log_is_waited_for_until_guild_has_recorded_it(tmp_path: pathlib.Path) -> None:
    # An error on standard error that follows must not overtake it: Guild reads both, in two threads.
    record = tmp_path / "output"
    record.touch()
    read, write = os.pipe()

    def guild() -> None:
        for part in (os.read(read, 5), os.read(read, 100)):
            with record.open("ab") as f:
                f.write(part)

    stream = OutputStream(write, str(record))
    stream.write_output(b"first\nlast\n")
    reader = threading.Timer(0.2, guild)
    reader.start()
    stream.wait_until_recorded(DEADLINE)
    assert record.read_bytes() == b"first\nlast\n"
    reader.join()
    os.close(read)
    os.close(write)


def test_log_without_guild_is_not_waited_for(tmp_path: pathlib.Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        stream = OutputStream(log.fileno(), str(tmp_path / "output"))
        stream.write_output(b"first\n")
        begun = time.monotonic()
        stream.wait_until_recorded(DEADLINE)
        assert time.monotonic() - begun < DEADLINE
