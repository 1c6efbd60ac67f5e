"""TensorBoard's event files, as far as scalars need them: bytes in, points out. Pure.

Guild and most training libraries write scalars in this format. A file is a list of records: the length (8 bytes), its
checksum (4), the data, and its checksum (4). The data is a message `Event` of Protocol Buffers with a step and a
summary. Unknown fields are skipped, and what is not a message has no points.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

# The sizes of what surrounds the data of a record.
HEADER = 12
FOOTER = 4

# The types of fields in a message.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# Fields of the messages Event, Summary, Summary.Value and TensorProto.
_STEP, _SUMMARY = 2, 5
_VALUE = 1
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8
_DTYPE, _CONTENT, _FLOATS, _DOUBLES = 1, 4, 5, 6

# The formats of tensors of one number, by their type.
_FORMATS = {1: "<f", 2: "<d"}

Field = tuple[int, int, "int | bytes"]


class Point(NamedTuple):
    """One value of a scalar."""

    name: str
    value: float
    step: int


def data_length(header: bytes) -> int:
    """Returns the length of a record's data, from the header of the record."""
    return int.from_bytes(header[:8], "little")


def points_in(data: bytes) -> list[Point]:
    """Returns the scalars in the data of a record; none if it has other content, or is damaged."""
    try:
        return list(_points(data))
    except (ValueError, IndexError, struct.error):
        return []


def _points(event: bytes) -> Iterator[Point]:
    step, summaries = 0, []
    for number, kind, value in _fields(event):
        if number == _STEP and isinstance(value, int):
            step = value - (1 << 64) if value >> 63 else value
        elif number == _SUMMARY and kind == _BYTES:
            summaries.append(value)
    for summary in summaries:
        for number, kind, value in _fields(summary):
            if number == _VALUE and kind == _BYTES:
                point = _point(value, step)
                if point:
                    yield point


def _point(message: "int | bytes", step: int) -> Point | None:
    name, found = "", None
    for number, kind, value in _fields(message):
        if number == _TAG and isinstance(value, bytes):
            name = value.decode("utf-8", "replace")
        elif number == _SIMPLE_VALUE and kind == _FIXED32 and isinstance(value, bytes):
            (found,) = struct.unpack("<f", value)
        elif number == _TENSOR and isinstance(value, bytes):
            found = _number(value)
    return Point(name, found, step) if name and found is not None else None


def _number(tensor: bytes) -> float | None:
    """Returns the number in a tensor of one float; None for any other tensor."""
    content: dict[int, bytes] = {}
    dtype = 0
    for number, _, value in _fields(tensor):
        if number == _DTYPE and isinstance(value, int):
            dtype = value
        elif number in (_CONTENT, _FLOATS, _DOUBLES) and isinstance(value, bytes):
            content[number] = content.get(number, b"") + value
    form = _FORMATS.get(dtype)
    found = content.get(_CONTENT) or content.get(_FLOATS if dtype == 1 else _DOUBLES) or b""
    return float(struct.unpack(form, found)[0]) if form and len(found) == struct.calcsize(form) else None


def _fields(message: "int | bytes") -> Iterator[Field]:
    """Yields the number, type and value of each field; raises IndexError or ValueError if a message is damaged."""
    if isinstance(message, int):
        raise ValueError("a number is no message")
    offset = 0
    while offset < len(message):
        key, offset = _varint(message, offset)
        kind = key & 7
        if kind == _VARINT:
            number, offset = _varint(message, offset)
            yield key >> 3, kind, number
            continue
        if kind == _BYTES:
            length, offset = _varint(message, offset)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"no field has type {kind}")
        if offset + length > len(message):
            raise ValueError("the field is longer than the message")
        yield key >> 3, kind, message[offset : offset + length]
        offset += length


def _varint(message: bytes, offset: int) -> tuple[int, int]:
    """Returns the number at an offset, and the offset after it."""
    number, shift = 0, 0
    while True:
        byte = message[offset]
        offset += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, offset
        shift += 7
        if shift > 63:
            raise ValueError("the number has more than 64 bits")
