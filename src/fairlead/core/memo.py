"""What a policy remembers, as data: the JSON value that a plan leaves behind and the next snapshot brings back.

The journal holds the differences between one memo and the next as JSON merge patches (RFC 7386): objects are merged key
by key, every other value is replaced as a whole, and null takes a key away. So no value in a memo may be None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

#: An object of strings, finite numbers, booleans, lists and objects.
Memo: TypeAlias = Mapping[str, Any]

_SCALARS = (str, int, bool)


def difference(before: Memo, after: Memo) -> dict[str, Any]:
    """The merge patch that leads from one memo to the other; empty if they are equal."""
    if before is after:
        return {}
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        if key not in before:
            patch[key] = value
        elif (old := before[key]) is value:
            continue
        elif isinstance(old, dict) and isinstance(value, dict):
            if inner := difference(old, value):
                patch[key] = inner
        elif old != value or type(old) is not type(value):
            patch[key] = value
    return patch


def patched(memo: Memo, patch: Memo) -> dict[str, Any]:
    """The memo after a patch. Shares with the old one whatever the patch leaves as it is."""
    result = {key: value for key, value in memo.items() if key not in patch}
    for key, value in patch.items():
        if value is None:
            continue
        old = memo.get(key)
        if isinstance(value, dict):
            result[key] = patched(old if isinstance(old, dict) else {}, value)
        else:
            result[key] = value
    return result


def fault(before: Memo, after: Memo, place: str = "memo") -> str:
    """Why a plan's memo cannot be kept, naming the place; empty if it can. Looks only at what has changed."""
    for key, value in after.items():
        here = f"{place}.{key}"
        if type(key) is not str:
            return f"{place} has the key {key!r}; expected a string"
        if (old := before.get(key)) is value:
            continue
        both = type(old) is dict and type(value) is dict
        if found := fault(old, value, here) if both else _value_fault(value, here):  # type: ignore[arg-type]  # both
            return found
    return ""


def _value_fault(value: object, place: str) -> str:
    if type(value) in _SCALARS:
        return ""
    if type(value) is float:
        return "" if math.isfinite(value) else f"{place} is {value}; expected a finite number"
    if type(value) is list:
        return next(filter(None, (_value_fault(item, f"{place}[{at}]") for at, item in enumerate(value))), "")
    if type(value) is dict:
        return fault({}, value, place)
    return (
        f"{place} is {value!r}, a {type(value).__name__}; expected a plain dict, list, str, int, float or bool, "
        "as JSON has them"
    )
