"""Frozen dataclasses as data for JSON, and back. Pure.

A record is read field by field, by the types that its class declares. A field that is missing in the data gets its
default, and a field that the class does not have is ignored, so that two versions can read each other's records.
"""

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from guild_dask.plan.units import Amount, amount_for_text

T = TypeVar("T")

# The key of a record's class, where it may be one of several.
KIND = "kind"

# The key of a text for people.
TEXT = "text"


def data_for(value: Any) -> Any:
    """Returns a value as data for JSON: an amount as it was typed, a member of an enum as its value."""
    if isinstance(value, Amount):
        return value.text
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [data_for(each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): data_for(each) for name, each in value.items()}
    if dataclasses.is_dataclass(value):
        kinds = _fields(_class_of(value))
        return {name: _field_data(kinds.get(name), each) for name, each in vars(value).items()}
    return value


def _class_of(value: Any) -> Any:
    return type(value)


def _field_data(kind: Any, value: Any) -> Any:
    """Returns a field as data, with the name of the record's class if it may be one of several."""
    return tagged_data_for(value) if value is not None and len(_records_in(kind)) > 1 else data_for(value)


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
    value: T = _value(kind, data)
    return value


def _value(kind: Any, data: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _one_of(kind, data)
    if origin is tuple:
        return tuple(_value(typing.get_args(kind)[0], each) for each in _checked(data, list, tuple))
    if origin is not None and issubclass(origin, Mapping):
        name, value = typing.get_args(kind)
        return {_value(name, each): _value(value, other) for each, other in _checked(data, Mapping).items()}
    return _record(kind, data) if dataclasses.is_dataclass(kind) else _plain(kind, data)


def _records_in(kind: Any) -> list[Any]:
    return [each for each in typing.get_args(kind) if dataclasses.is_dataclass(each)]


def _one_of(union: Any, data: Any) -> Any:
    kinds = typing.get_args(union)
    if len(_records_in(union)) > 1 and isinstance(data, Mapping):
        kinds = tuple(each for each in kinds if getattr(each, "__name__", "") == data.get(KIND))
    for kind in kinds:
        try:
            return _value(kind, data)
        except ValueError:
            continue
    raise ValueError(f"{data!r} is none of {kinds}")


def _record(kind: Any, data: Any) -> Any:
    given = _checked(data, Mapping)
    found = {name: _value(each, given[name]) for name, each in _fields(kind).items() if name in given}
    try:
        return kind(**found)
    except TypeError as e:  # a field without a default is missing
        raise ValueError(str(e)) from e


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _plain(kind: Any, data: Any) -> Any:
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
