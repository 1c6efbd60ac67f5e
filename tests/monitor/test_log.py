"""The scheduler's log and the output of runs, with readers that are slow, stop reading, or are not there."""

import logging
import os
import pathlib
import re
import threading
import time
from collections.abc import Iterator

import pytest

from guild_dask.monitor import log
from guild_dask.monitor.log import OutputStream
from tests.support.sandbox import DEADLINE

# More than a pipe and the stream take without a reader.
MUCH = 6_000_000
LEFT_OUT = re.compile(rb"\[(\d+) bytes of output left out\]\n")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def read_all(end: int, until: bytes) -> bytes:
    """Returns what is read from a pipe, up to a text."""
    found = b""
    while until not in found:
        found += os.read(end, 1 << 16)
    return found


def test_nothing_waits_for_a_reader_that_does_not_read_and_what_is_left_out_is_counted(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    stream = OutputStream(writer)
    began = time.monotonic()
    line = "x" * 999 + "\n"
    for _ in range(MUCH // len(line)):
        stream.write(line)
    assert not stream.wait_for_space()
    assert time.monotonic() - began < DEADLINE
    found = b""
    while not stream.wait_for_space():
        found += os.read(reader, 1 << 16)
    stream.write("the end\n")
    found += read_all(reader, b"the end\n")
    stream.close()
    counts = [int(each) for each in LEFT_OUT.findall(found)]
    assert counts
    assert found.count(b"x") // 999 * len(line) + sum(counts) == MUCH // len(line) * len(line)


def test_log_lines_are_written_at_the_end_though_the_output_of_runs_was_not_read(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    stream = OutputStream(writer)
    while stream.wait_for_space():
        stream.write_output(b"x" * 99_999 + b"\n")
    stream.write("last words\n")
    closing = threading.Thread(target=stream.close)
    closing.start()
    closing.join(DEADLINE)
    assert not closing.is_alive(), "the stream waits for its reader"
    assert b"bytes of output left out]\nlast words\n" not in os.read(reader, 1)
    found = read_all(reader, b"last words\n")
    assert found.count(b"x") < 300_000


def test_stream_that_is_closed_drops_what_is_written() -> None:
    reader, writer = os.pipe()
    os.close(writer)
    stream = OutputStream(writer)
    stream.write("into the void\n")
    stream.close()
    assert os.path.realpath(f"/proc/self/fd/{writer}") == os.devnull
    os.close(reader)
    os.close(writer)


@pytest.fixture
def logged(tmp_path: pathlib.Path) -> Iterator[tuple[pathlib.Path, OutputStream]]:
    """A file to which the log is written, by loggers that are restored."""
    names = ("guild", *log._DASK_LOGGERS, *log._WITH_OWN_HANDLER)
    before = {name: (logging.getLogger(name).handlers, logging.getLogger(name).propagate) for name in names}
    raises = logging.raiseExceptions
    with (tmp_path / "log").open("wb") as f:
        stream = OutputStream(f.fileno())
        yield tmp_path / "log", stream
        stream.close()
    logging.captureWarnings(False)
    logging.raiseExceptions = raises
    for handler in logging.getLogger("distributed").handlers:
        handler.close()
    for name, (handlers, propagate) in before.items():
        logging.getLogger(name).handlers, logging.getLogger(name).propagate = handlers, propagate


def test_control_characters_in_names_do_not_reach_the_terminal(
    logged: tuple[pathlib.Path, OutputStream], tmp_path: pathlib.Path
) -> None:
    path, stream = logged
    log.set_up("warn", stream, str(tmp_path / "dask.log"))
    name = "a\x1b[2J\r\nINFO: [guild] all is well\x07\x9b\u202eé 雪"
    logging.getLogger("guild").info("Run %s completed", name)
    stream.close()
    text = path.read_text()
    assert text.endswith("Run a\\x1b[2J\\r\\nINFO: [guild] all is well\\x07\\x9b\\u202eé 雪 completed\n")
    assert text.count("\n") == 1


@pytest.mark.parametrize("loglevel", ["warn", "info"])
def test_control_characters_in_the_log_of_dask_do_not_reach_the_terminal(
    logged: tuple[pathlib.Path, OutputStream], tmp_path: pathlib.Path, loglevel: str
) -> None:
    path, stream = logged
    log.set_up(loglevel, stream, str(tmp_path / "dask.log"))
    try:
        raise ValueError("a\x1b[2J")
    except ValueError:
        logging.getLogger("distributed.worker").exception("Compute failed: %s", "run-\x1b[2J\x07")
    stream.close()
    text = (tmp_path / "dask.log" if loglevel == "warn" else path).read_text()
    assert "Compute failed: run-\\x1b[2J\\x07\n" in text
    assert text.endswith("ValueError: a\\x1b[2J\n")
    assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_log_of_dask_needs_no_new_file_descriptor(
    logged: tuple[pathlib.Path, OutputStream], tmp_path: pathlib.Path
) -> None:
    # Python's handler raises in the thread that logs if it cannot open its file: Dask's event loop would end.
    path = tmp_path / "dask.log"
    remove_if_empty = log.set_up("warn", logged[1], str(path))
    opened = os.listdir("/proc/self/fd")
    logging.getLogger("distributed").warning("something")
    assert os.listdir("/proc/self/fd") == opened
    assert path.read_text().endswith("something\n")
    remove_if_empty()
    assert path.exists()
    path.write_text("")
    remove_if_empty()
    assert not path.exists()
