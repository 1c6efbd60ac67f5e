"""Frozen dataclasses as data for JSON, and back. Pure.

A record is read field by field, by the types that its class declares. A field that is missing in the data gets its
default, and a field that the class does not have is ignored, so that two versions can read each other's records.
"""

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from guild_dask.plan.units import Amount, amount_for_text

T = TypeVar("T")

# Most values of records.
_AS_THEY_ARE = frozenset({type(None), bool, int, float, str})

# The key of a record's class, where it may be one of several.
KIND = "kind"

# The key of a text for people.
TEXT = "text"


def data_for(value: Any) -> Any:
    """Returns a value as data for JSON: an amount as it was typed, a member of an enum as its value."""
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, (Amount, enum.Enum)):
        return value.text if isinstance(value, Amount) else value.value
    if isinstance(value, (list, tuple)):
        return [data_for(each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): data_for(each) for name, each in value.items()}
    if dataclasses.is_dataclass(value):
        tagged = _tagged(_class_of(value))
        return {
            name: tagged_data_for(each) if name in tagged and each is not None else data_for(each)
            for name, each in vars(value).items()
        }
    return value


def _class_of(value: Any) -> Any:
    return type(value)


@functools.cache
def _tagged(kind: Any) -> frozenset[str]:
    """Returns the fields of a record that may be records of several classes: their data has the name of the class."""
    return frozenset(name for name, each in _fields(kind).items() if len(_records_in(each)) > 1)


def tagged_data_for(value: Any) -> dict[str, Any]:
    """Returns a record as data, with the name of its class."""
    return {KIND: type(value).__name__, **data_for(value)}


def tagged_value_for(classes: Iterable[type], data: Any) -> Any:
    """Returns the record that tagged_data_for() wrote, or None if the data is of none of these classes."""
    name = data.get(KIND) if isinstance(data, Mapping) else None
    found = next((each for each in classes if each.__name__ == name), None)
    try:
        return None if found is None else value_for(found, data)
    except ValueError:
        return None


def text_for_unknown(data: Any) -> str:
    """Returns data that this version does not know as text for people: its own text if it has one, or all fields."""
    if not isinstance(data, Mapping):
        return str(data)
    if TEXT in data:
        return str(data[TEXT])
    kind = str(data.get(KIND, ""))
    facts = ", ".join(f"{name}={text_for_unknown(each)}" for name, each in data.items() if name != KIND)
    return f"{kind} ({facts})".strip() if facts else kind


def value_for(kind: type[T], data: Any) -> T:
    """Returns the value that data_for() wrote; raises ValueError if the data is not of that class."""
    declared: Any = kind
    value: T = _reader(declared)(data)
    return value


# Returns the value of a declared type that data stands for; raises ValueError if it stands for none.
Reader = Callable[[Any], Any]


@functools.cache
def _reader(kind: Any) -> Reader:
    """Returns the reader of a type. Types are taken apart once: claims are read several times for each run."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return functools.partial(_one_of, kind, {each: _reader(each) for each in typing.get_args(kind)})
    if origin is tuple:
        return functools.partial(_sequence, _reader(typing.get_args(kind)[0]))
    if origin is not None and issubclass(origin, Mapping):
        return functools.partial(_mapping, *map(_reader, typing.get_args(kind)))
    return functools.partial(_record if dataclasses.is_dataclass(kind) else _plain, kind)


def _sequence(read: Reader, data: Any) -> tuple[Any, ...]:
    return tuple(map(read, _checked(data, list, tuple)))


def _mapping(read_name: Reader, read_value: Reader, data: Any) -> dict[Any, Any]:
    return {read_name(name): read_value(value) for name, value in _checked(data, Mapping).items()}


def _records_in(kind: Any) -> list[Any]:
    return [each for each in typing.get_args(kind) if dataclasses.is_dataclass(each)]


def _one_of(union: Any, readers: Mapping[Any, Reader], data: Any) -> Any:
    if isinstance(data, Mapping) and len(_records_in(union)) > 1:
        readers = {each: read for each, read in readers.items() if getattr(each, "__name__", "") == data.get(KIND)}
    for read in readers.values():
        try:
            return read(data)
        except ValueError:
            continue
    raise ValueError(f"{data!r} is none of {tuple(readers)}")


def _record(kind: Any, data: Any) -> Any:
    given = _checked(data, Mapping)
    found = {name: read(given[name]) for name, read in _field_readers(kind).items() if name in given}
    try:
        return kind(**found)
    except TypeError as e:  # a field without a default is missing
        raise ValueError(str(e)) from e


@functools.cache
def _field_readers(kind: Any) -> dict[str, Reader]:
    return {name: _reader(each) for name, each in _fields(kind).items()}


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _plain(kind: Any, data: Any) -> Any:
    if type(data) is kind:
        return data
    if issubclass(kind, enum.Enum):
        return kind(data)  # raises ValueError itself
    if kind is float and isinstance(data, str):
        amount = amount_for_text(data)
        return float(data) if amount is None else amount
    if isinstance(data, bool) and kind is not bool:
        raise ValueError(f"{data!r} is of another type")
    try:
        return kind(_checked(data, int, float)) if kind in (int, float) else _checked(data, kind)
    except OverflowError as e:  # infinity is not a whole number
        raise ValueError(str(e)) from e


def _checked(data: Any, *kinds: type) -> Any:
    if not isinstance(data, kinds):
        raise ValueError(f"{data!r} is of another type")
    return data
