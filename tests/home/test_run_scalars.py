"""The scalars of runs: compared with TensorBoard's reader, only what was appended, and bounded."""

import math
import os
import pathlib
import random
import struct

import pytest
from guild import tfevent
from guild.summary import SummaryWriter
from hypothesis import given
from hypothesis import strategies as st

from guild_dask.home import event_files
from guild_dask.home.event_files import Point, points_in
from guild_dask.home.run_scalars import MOST_POINTS, Scalar, ScalarReader, read_scalars, shortest, with_32_bits
from tests.support.failing_files import Files
from tests.support.sandbox import Guild, Sandbox
from tests.support.scheduling import a_project


def write(folder: pathlib.Path, *points: Point, base: str | None = None) -> None:
    with SummaryWriter(str(folder), filename_base=base) as writer:
        for point in points:
            writer.add_scalar(point.name, point.value, point.step)


def losses(*values: float, first: int = 0) -> list[Point]:
    return [Point("loss", value, first + step) for step, value in enumerate(values)]


def last(scalars: dict[str, Scalar]) -> dict[str, float]:
    return {name: scalar.last for name, scalar in scalars.items()}


def record(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + b"\0" * 4 + data + b"\0" * 4


def test_scalars_are_those_that_tensorboard_reads(tmp_path: pathlib.Path) -> None:
    numbers = random.Random(1)
    points = [Point(f"metric/{n % 7}", numbers.uniform(-1e6, 1e6), numbers.randrange(-5, 2**40)) for n in range(300)]
    write(tmp_path, *points, Point("ünicode", math.inf, 0))
    theirs = [Point(*each) for each in tfevent.ScalarReader(str(tmp_path))]
    (file,) = tmp_path.glob("*tfevents*")
    data, ours = file.read_bytes(), []
    while data:
        end = event_files.HEADER + event_files.data_length(data[: event_files.HEADER])
        ours += points_in(data[event_files.HEADER : end])
        data = data[end + event_files.FOOTER :]
    assert ours == theirs
    assert len(ours) == 301


def test_tensors_of_one_number_are_scalars_as_for_tensorboard(tmp_path: pathlib.Path) -> None:
    # TensorFlow 2 and newer writers store scalars as tensors; histograms and texts are tensors, too.
    from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2

    tensors = {
        "content": tensor_pb2.TensorProto(dtype=1, tensor_content=struct.pack("<f", 0.5)),
        "float": tensor_pb2.TensorProto(dtype=1, float_val=[1.5]),
        "double": tensor_pb2.TensorProto(dtype=2, double_val=[2.5]),
        "text": tensor_pb2.TensorProto(dtype=7, string_val=[b"four"]),
        "several": tensor_pb2.TensorProto(
            dtype=1, float_val=[1.0, 2.0], tensor_shape=tensor_shape_pb2.TensorShapeProto()
        ),
    }
    values = [summary_pb2.Summary.Value(tag=name, tensor=tensor) for name, tensor in tensors.items()]
    event = event_pb2.Event(step=3, wall_time=1.0, summary=summary_pb2.Summary(value=values))
    assert points_in(event.SerializeToString()) == [
        Point("content", 0.5, 3),
        Point("float", 1.5, 3),
        Point("double", 2.5, 3),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_damaged_records_have_no_points_and_raise_nothing(seed: int) -> None:
    points_in(random.Random(seed).randbytes(500))


def test_only_what_was_appended_is_read(tmp_path: pathlib.Path) -> None:
    write(tmp_path, *losses(0.9, 0.5), base="1")
    reader = ScalarReader(str(tmp_path))
    assert not reader.update()
    (file,) = tmp_path.glob("*tfevents*")
    before = file.read_bytes()
    write(tmp_path / "more", *losses(0.4, first=2), base="1")
    (more,) = (tmp_path / "more").glob("*tfevents*")
    # The beginning is unreadable now, and the last record is incomplete at first.
    appended = more.read_bytes()
    more.unlink()
    file.write_bytes(b"\xff" * len(before) + appended[:-1])
    reader.update()
    assert reader.scalars["loss"].last == 0.5
    file.write_bytes(b"\xff" * len(before) + appended)
    reader.update()
    scalar = reader.scalars["loss"]
    assert [round(value, 5) for value in scalar.points] == [0.9, 0.5, 0.4]
    assert (scalar.step, scalar.count, round(scalar.low, 5), round(scalar.high, 5)) == (2, 3, 0.4, 0.9)


def test_one_update_reads_a_bounded_part(tmp_path: pathlib.Path) -> None:
    write(tmp_path, *losses(*map(float, range(5000))))
    reader = ScalarReader(str(tmp_path))
    updates = 1
    while reader.update(most=10_000):
        updates += 1
    assert updates > 10
    assert reader.scalars["loss"].last == 4999.0
    assert len(reader.scalars["loss"].points) <= MOST_POINTS + 1
    assert reader.scalars["loss"].points[-1] == 4999.0


def test_records_that_are_never_complete_do_not_count_as_progress(tmp_path: pathlib.Path) -> None:
    # A reader that reads until nothing is left must come to an end.
    write(tmp_path, *losses(0.5), base="zzz")
    for number in range(12):
        text = struct.pack("<Q", 10**9) + b"\0" * 500_000
        (tmp_path / f"broken{number}.tfevents.1").write_bytes(text)
    reader = ScalarReader(str(tmp_path))
    assert not reader.update()
    assert reader.scalars["loss"].last == 0.5


def test_scalar_is_found_by_its_folder_or_as_it_is_shown(tmp_path: pathlib.Path) -> None:
    reader = ScalarReader(str(tmp_path), followed=["loss"], with_curves=True)
    (tmp_path / "train").mkdir()
    write(tmp_path / "train", *losses(0.5))
    reader.update()
    assert reader.find("loss") is reader.find("train#loss") is not None
    assert reader.find("val#loss") is None, "the loss of another folder is another scalar"
    (tmp_path / "val").mkdir()
    write(tmp_path / "val", *losses(0.7, 0.6))
    reader.update()
    assert reader.find("loss") is None, "which of the two is not said"
    assert [round(each, 5) for each in reader.curve("val#loss").values()] == [0.7, 0.6]
    assert [round(each, 5) for each in reader.curve("train#loss").values()] == [0.5]


def test_followed_scalar_is_read_after_however_many_others(tmp_path: pathlib.Path) -> None:
    write(tmp_path, *(Point(f"layer/{number}", 1.0, 1) for number in range(300)), *losses(0.5))
    reader = ScalarReader(str(tmp_path), followed=["loss"])
    reader.update()
    found = reader.find("loss")
    assert found is not None
    assert found.last == 0.5
    assert len(reader.scalars) < 200


def test_large_records_are_skipped_unread(tmp_path: pathlib.Path) -> None:
    write(tmp_path, *losses(0.5), base="1")
    (file,) = tmp_path.glob("*tfevents*")
    small = file.read_bytes()
    with open(file, "r+b") as f:
        f.write(small + struct.pack("<Q", 10**9) + b"\0" * 4)
        f.seek(10**9 + 4, os.SEEK_CUR)  # a hole
        f.write(small)
    reader = ScalarReader(str(tmp_path))
    assert not reader.update(most=2_000_000), "the gigabyte in between was not read"
    assert reader.scalars["loss"].count == 2


def test_file_with_a_hole_is_read_up_to_it_until_the_hole_is_filled(tmp_path: pathlib.Path) -> None:
    # As a power failure leaves it, or NFS shows it before the data has come.
    write(tmp_path, *losses(0.5), base="1")
    (file,) = tmp_path.glob("*tfevents*")
    begin = file.read_bytes()
    write(tmp_path / "more", *losses(0.4, first=1), base="1")
    (more,) = (tmp_path / "more").glob("*tfevents*")
    rest = more.read_bytes()
    more.unlink()
    os.truncate(file, len(begin) + len(rest))
    reader = ScalarReader(str(tmp_path))
    assert not reader.update()
    assert reader.scalars["loss"].last == 0.5
    file.write_bytes(begin + rest)
    reader.update()
    assert round(reader.scalars["loss"].last, 5) == 0.4


def test_values_of_a_later_attempt_replace_those_before(tmp_path: pathlib.Path) -> None:
    write(tmp_path, *losses(0.9, 0.5, 0.1), base="1")
    write(tmp_path, *losses(0.8, 0.6), base="2")
    assert [round(value, 5) for value in read_scalars(str(tmp_path))["loss"].points] == [0.8, 0.6]
    write(tmp_path, *losses(0.5, 0.4, first=2), base="3")
    assert [round(value, 5) for value in read_scalars(str(tmp_path))["loss"].points] == [0.8, 0.6, 0.5, 0.4]


def test_names_are_those_of_guild(tmp_path: pathlib.Path) -> None:
    write(tmp_path / ".guild", *losses(0.1))
    write(tmp_path / "train", *losses(0.2), Point("lr", 0.01, 1))
    write(tmp_path / "a" / "b" / "c" / "d" / "e", Point("deep", 1.0, 1))
    (tmp_path / "linked").symlink_to(tmp_path / "train")
    found = {name: round(value, 5) for name, value in last(read_scalars(str(tmp_path))).items()}
    assert found == {"loss": 0.1, "train#loss": 0.2, "lr": 0.01}


def test_what_is_no_event_file_is_harmless(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "x.tfevents.1")
    (tmp_path / "x.tfevents.2").mkdir()
    (tmp_path / "x.tfevents.3").write_bytes(b"\xff" * 1000)
    (tmp_path / "x.tfevents.4").write_bytes(record(b"\xff" * 100) * 10)
    (tmp_path / "x.tfevents.5").symlink_to("x.tfevents.5")
    assert read_scalars(str(tmp_path)) == {}
    assert read_scalars(str(tmp_path / "missing")) == {}


def test_scalars_of_a_folder_that_cannot_be_read_are_unavailable_and_not_missing(
    tmp_path: pathlib.Path, failing: Files
) -> None:
    for folder in ("train", "val"):
        write(tmp_path / folder, *losses(1.0))
    chosen = 0
    while chosen == 0 or failing.count >= chosen:
        chosen += 1
        reader = ScalarReader(str(tmp_path))
        with failing.failing(chosen):
            reader.update()
        assert len(reader.scalars) == 2 or reader.is_unavailable, f"file {chosen} could not be read"
        reader.update()
        assert (set(reader.scalars), reader.is_unavailable) == ({"train#loss", "val#loss"}, False)
    assert chosen > 4


def test_not_a_number_is_neither_the_lowest_nor_the_highest(tmp_path: pathlib.Path) -> None:
    write(tmp_path, *losses(math.nan, 1.0, math.nan, 3.0))
    scalar = read_scalars(str(tmp_path))["loss"]
    assert (scalar.low, scalar.high) == (1.0, 3.0)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_shortest_number_for_a_value_with_32_bits_is_stored_as_that_value(value: float) -> None:
    assert with_32_bits(shortest(value)) == value


def test_shortest_number_is_the_one_that_was_printed() -> None:
    for printed in (0.9, 0.1, -1e-7, 123456.0):
        assert shortest(with_32_bits(printed)) == printed
    for with_64_bits in (1 / 3, math.pi):
        assert shortest(with_64_bits) == with_64_bits


def test_printed_scalars_of_a_real_run_are_read(user: Sandbox, guild: Guild) -> None:
    a_project(user, "train: {exec: 'python train.py'}", {"train.py": "print('step: 7\\nloss: 0.25\\nacc: 0.5')"})
    guild("run train --run-id aaa -y")
    found = read_scalars(str(user.guild_home / "runs" / "aaa"))
    assert last(found) == {"loss": 0.25, "acc": 0.5}
    assert found["loss"].step == 7
