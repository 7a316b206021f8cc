"""Frozen dataclasses to plain JSON values and back, driven by their type hints. Knows no message by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import LARGEST


def encode(value: Any) -> Any:
    """A JSON value. A dataclass becomes an object without the fields that are at their default."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidSpec(f"{value} has no JSON form; expected a finite number")
        return value
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    cls: Any = type(value)
    return {f.name: encode(v) for f in _fields(cls) if (v := getattr(value, f.name)) != _default(f)}


def encode_slowly(value: Any) -> dict[str, Any]:
    """The same of a large dataclass, but each of its tuples is encoded item by item, as they are asked for."""
    cls: Any = type(value)
    found = {f.name: v for f in _fields(cls) if (v := getattr(value, f.name)) != _default(f)}
    return {name: map(encode, v) if isinstance(v, tuple) else encode(v) for name, v in found.items()}


def decode(hint: Any, value: Any, *, place: str) -> Any:
    """A value of type `hint`. `place` is where we are, for the message of InvalidSpec."""
    if hint is Any:
        return _decode_any(value, place)
    origin, args = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return _decode_optional(args, value, place)
    if origin is tuple:
        return _decode_tuple(args, value, place)
    if origin is not None and issubclass(origin, Mapping):
        return _decode_mapping(args, value, place)
    if is_dataclass(hint):
        return _decode_dataclass(hint, value, place)  # type: ignore[arg-type]  # is_dataclass narrows to instances too
    return _decode_scalar(hint, value, place)


def _decode_optional(args: tuple[Any, ...], value: Any, place: str) -> Any:
    (hint,) = (arg for arg in args if arg is not NoneType)  # "X | None" is the only union the messages use
    return None if value is None else decode(hint, value, place=place)


def _decode_tuple(args: tuple[Any, ...], value: Any, place: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidSpec(f"{place} is {value!r}; expected a list")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(decode(args[0], item, place=f"{place}[{i}]") for i, item in enumerate(value))
    if len(value) != len(args):
        raise InvalidSpec(f"{place} has {len(value)} items; expected {len(args)}")
    return tuple(
        decode(hint, item, place=f"{place}[{i}]") for i, (hint, item) in enumerate(zip(args, value, strict=True))
    )


def _decode_mapping(args: tuple[Any, ...], value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InvalidSpec(f"{place} is {value!r}; expected an object")
    return {key: decode(args[1], item, place=f"{place}.{key}") for key, item in value.items()}


def _decode_any(value: Any, place: str) -> Any:
    """A plain JSON value as it is; numbers are checked like those of a field."""
    if isinstance(value, dict):
        return _decode_mapping((str, Any), value, place)
    if isinstance(value, list):
        return [_decode_any(item, f"{place}[{at}]") for at, item in enumerate(value)]
    return value if value is None else _decode_scalar(type(value), value, place)


def _decode_dataclass(cls: type, value: Any, place: str) -> Any:
    if not isinstance(value, dict):
        raise InvalidSpec(f"{place} is {value!r}; expected an object")
    hints = _hints(cls)
    known = {f.name for f in _fields(cls)}
    if unknown := value.keys() - known:
        raise InvalidSpec(f"{place} has no field {min(map(str, unknown))!r}; expected {', '.join(sorted(known))}")
    missing = [f.name for f in _fields(cls) if f.name not in value and _default(f) is MISSING]
    if missing:
        raise InvalidSpec(f"{place} lacks {', '.join(missing)}")
    try:
        return cls(**{name: decode(hints[name], item, place=f"{place}.{name}") for name, item in value.items()})
    except InvalidSpec as error:
        if str(error).startswith(place):
            raise
        raise InvalidSpec(f"{place}: {error}") from None


_WANTED = {float: "a finite number", int: f"a whole number up to {LARGEST}", bool: "true or false", str: "a string"}


def _decode_scalar(hint: Any, value: Any, place: str) -> Any:
    if hint is float and type(value) in (int, float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    elif isinstance(hint, type) and issubclass(hint, StrEnum):
        if isinstance(value, str) and value in hint._value2member_map_:
            return hint(value)
        raise InvalidSpec(f"{place} is {value!r}; expected one of {', '.join(hint)}")
    elif hint in _WANTED and type(value) is hint and (hint is not int or abs(value) <= LARGEST):
        return value
    raise InvalidSpec(f"{place} is {value!r}; expected {_WANTED.get(hint, str(hint))}")


@cache
def _fields(cls: Any) -> tuple[Field[Any], ...]:
    return tuple(f for f in fields(cls) if f.init)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _default(f: Field[Any]) -> Any:
    return f.default if f.default_factory is MISSING else f.default_factory()
