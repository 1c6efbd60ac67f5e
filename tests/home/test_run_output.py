"""The output of a run: its last line."""

import pathlib
import struct

from guild_dask.home.run_output import last_line


def written(tmp_path: pathlib.Path, *lines: tuple[str, int, int]) -> str:
    """Writes an output with its index, of lines given with a time and a stream; returns its path."""
    (tmp_path / "output").write_text("".join(f"{text}\n" for text, _, _ in lines))
    (tmp_path / "output.index").write_bytes(b"".join(struct.pack("!QB", at, stream) for _, at, stream in lines))
    return str(tmp_path / "output")


def test_last_line_is_that_of_the_error_stream_if_both_were_written_at_the_same_time(tmp_path: pathlib.Path) -> None:
    # Guild reads the streams in two threads: the last lines of both may be in any order.
    path = written(
        tmp_path, ("step: 1", 1000, 0), ("ValueError: no data", 5000, 1), ("step: 2", 5003, 0), (" ", 5003, 0)
    )
    assert last_line(path) == "ValueError: no data"


def test_old_warning_is_not_the_last_line(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path, ("a warning", 1000, 1), ("no data: giving up", 60_000, 0))
    assert last_line(path) == "no data: giving up"


def test_last_line_of_an_output_without_index(tmp_path: pathlib.Path) -> None:
    (tmp_path / "output").write_bytes(b"first\n 10%\r 90%\r\n\n")
    assert last_line(str(tmp_path / "output")) == "90%"
    (tmp_path / "output.index").write_bytes(b"torn")
    assert last_line(str(tmp_path / "output")) == "90%"
    assert not last_line(str(tmp_path / "none"))
