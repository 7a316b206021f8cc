"""The forms a field can have: how each is read, how it is written as JSON, and its JSON Schema.

Forms are values that combine: a field is a form with a name. What is read is exactly what the schema allows, but for
what a schema cannot say, such as that a range is not reversed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fairlead.jobfile.request import InvalidJob, Problem
from fairlead.jobfile.values import Kind, Value, shortened

#: Characters of a line that people read: none that controls a terminal, breaks the line or turns its direction.
LINE = r"[^\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
#: Characters of a text of several lines: tabs and line feeds as well.
LINES = r"[^\u0000-\u0008\u000b-\u001f\u007f-\u009f]"
#: The same without blanks.
INK = r"[^\u0000-\u0020\u007f-\u009f]"


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Form:
    """`read` takes a value and what to call it in a problem, and raises InvalidJob; `write` is its inverse."""

    read: Callable[[Value, str], Any]
    schema: Mapping[str, Any]
    write: Callable[[Any], Any] = _same


def wrong(value: Value, place: str, expected: str) -> InvalidJob:
    """This value does not have the form. What could not be read at all has been told already."""
    if value.kind is Kind.UNREADABLE:
        return InvalidJob([])
    return problem_at(value, place, f"{place} is {value.shown()}; expected {expected}")


def problem_at(value: Value, place: str, text: str) -> InvalidJob:
    return InvalidJob.at(place, text, line=value.line, column=value.column)


def gather(read: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> list[Any]:
    """What it reads from each of these, or InvalidJob with the problems of all of them."""
    found, problems = [], []
    for each in arguments:
        try:
            found.append(read(*each))
        except InvalidJob as error:
            problems.append(error)
    if problems:
        raise InvalidJob(problem for error in problems for problem in error.problems)
    return found


def placed(value: Value, parse: Callable[[str], Any]) -> Any:
    """What `parse` makes of the text; its problems get the place of the value."""
    try:
        return parse(value.text)
    except InvalidJob as error:
        raise InvalidJob(Problem(p.field, p.text, value.line, value.column) for p in error.problems) from None


# -- scalars -----------------------------------------------------------------------------------------------------------

_WHOLE = re.compile(r"(?P<whole>[-+]?[0-9]{1,18})(?:\.0+)?")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_UNQUOTED = (Kind.NUMBER, Kind.SWITCH)
_SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def is_number(value: Value) -> bool:
    return value.kind is Kind.NUMBER or (value.kind is Kind.PLAIN and _NUMBER.fullmatch(value.text) is not None)


def whole(least: int, most: int) -> Form:
    def read(value: Value, place: str) -> int:
        match = _WHOLE.fullmatch(value.text) if is_number(value) else None
        if match and least <= int(match["whole"]) <= most:
            return int(match["whole"])
        raise wrong(value, place, f"a whole number from {least} to {most}")

    return Form(read, {"type": "integer", "minimum": least, "maximum": most})


def number(least: float, most: float, *, above: bool = False) -> Form:
    """From `least`, or from just above it, to `most`."""
    expected = f"a number {'above' if above else 'from'} {least:g} {'and up ' if above else ''}to {most:g}"

    def read(value: Value, place: str) -> float:
        found = float(value.text) if is_number(value) else math.nan
        if least <= found <= most and not (above and found == least):
            return found
        raise wrong(value, place, expected)

    schema = {"type": "number", "exclusiveMinimum" if above else "minimum": least, "maximum": most}
    return Form(read, schema, tidy)


def tidy(value: float) -> float:
    """Without a fraction of zero."""
    return int(value) if math.isfinite(value) and value == int(value) else value


def flag() -> Form:
    def read(value: Value, place: str) -> bool:
        if value.kind in (Kind.PLAIN, Kind.SWITCH) and value.text.lower() in _SWITCH:
            return _SWITCH[value.text.lower()]
        raise wrong(value, place, "true or false")

    return Form(read, {"type": "boolean"})


def text(pattern: str, *, most: int, expected: str) -> Form:
    """A text that matches as a whole, of at most so many characters."""
    compiled = re.compile(pattern)

    def read(value: Value, place: str) -> str:
        readable = value.kind in (Kind.PLAIN, Kind.TEXT) and not value.empty
        if readable and len(value.text) <= most and compiled.fullmatch(value.text):
            return value.text
        hint = "; put it in quotes if it is meant as a text" if value.kind in _UNQUOTED or value.empty else ""
        raise wrong(value, place, f"{expected}{hint}")

    return Form(read, {"type": "string", "pattern": f"^(?:{pattern})$", "maxLength": most})


def choice(*words: str) -> Form:
    def read(value: Value, place: str) -> str:
        if value.kind in (Kind.PLAIN, Kind.TEXT) and value.text in words:
            return value.text
        raise wrong(value, place, " or ".join(words))

    return Form(read, {"enum": list(words)})


def as_text(form: Form) -> Form:
    """Numbers and switches are taken for the text that was written."""

    def read(value: Value, place: str) -> Any:
        kind = Kind.TEXT if value.kind in _UNQUOTED else value.kind
        return form.read(replace(value, kind=kind), place)

    return Form(read, {**form.schema, "type": ["string", "number", "boolean"]}, form.write)


def optional(form: Form) -> Form:
    """Nothing is a value, too."""

    def read(value: Value, place: str) -> Any:
        return None if value.empty else form.read(value, place)

    return Form(read, {"anyOf": [form.schema, {"type": "null"}]}, form.write)


# -- lists and mappings ------------------------------------------------------------------------------------------------


def many(item: Form, *, most: int, least: int = 0, repeats: bool = False) -> Form:
    """A list, read as a tuple."""
    expected = f"a list of {least} to {most} values"

    def read(value: Value, place: str) -> tuple[Any, ...]:
        if value.kind is not Kind.LIST or not least <= len(value.items) <= most:
            raise wrong(value, place, expected)
        found = gather(item.read, ((inner, f"{place}[{i}]") for i, inner in enumerate(value.items)))
        if not repeats:
            _refuse_repeats(value, found, place)
        return tuple(found)

    schema = {"type": "array", "items": item.schema, "minItems": least, "maxItems": most, "uniqueItems": not repeats}
    return Form(read, schema, lambda values: [item.write(value) for value in values])


def _refuse_repeats(value: Value, found: list[Any], place: str) -> None:
    seen = set()
    for inner, one in zip(value.items, found, strict=True):
        if one in seen:
            raise problem_at(inner, place, f"{place} has {one!r} twice; once is enough")
        seen.add(one)


def one_or_many(item: Form, *, most: int) -> Form:
    """One value, or a list of them; read as a tuple and written as a list."""
    several = many(item, most=most)

    def read(value: Value, place: str) -> tuple[Any, ...]:
        return several.read(value, place) if value.kind is Kind.LIST else (item.read(value, place),)

    return Form(read, {"anyOf": [item.schema, several.schema]}, several.write)


def mapping(names: str, item: Form, *, most: int, expected: str, refuse: Callable[[str], str] = lambda _: "") -> Form:
    """Names that match, each with a value. `refuse` says what is wrong with a name that does not match, if it knows."""
    compiled = re.compile(names)

    def read_one(key: Value, value: Value, place: str) -> tuple[str, Any]:
        if compiled.fullmatch(key.text):
            return key.text, item.read(value, f"{place}.{key.text}")
        known = refuse(key.text)
        name = "a name that is not shown" if key.hidden and not known else f"the name {shortened(key.text)}"
        raise problem_at(key, place, f"{place} has {name}; {known or f'expected {expected}'}")

    def read(value: Value, place: str) -> dict[str, Any]:
        if value.kind is not Kind.MAPPING or len(value.pairs) > most:
            many = f", of at most {most}" if value.kind is Kind.MAPPING else ""
            raise wrong(value, place, f"a mapping of names to values{many}")
        return dict(gather(read_one, ((key, inner, place) for key, inner in value.pairs)))

    schema = {
        "type": "object",
        "propertyNames": {"pattern": f"^(?:{names})$"},
        "additionalProperties": item.schema,
        "maxProperties": most,
    }
    return Form(read, schema, lambda values: {name: item.write(value) for name, value in values.items()})
