"""The forms that values of the configuration have, whether they come from a file, the environment or a command line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fairlead.core.errors import InvalidSpec
from fairlead.database_url import without_password
from fairlead.jobfile import parse_duration

T = TypeVar("T")

#: So much of a wrong value is repeated.
_SHOWN = 60

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: the key it is about, a sentence, and where it stands: a file and line, a variable or an option."""

    key: str
    text: str
    origin: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.text}"


class InvalidConfig(InvalidSpec):
    """A configuration that cannot be meant. Carries every problem found."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class WrongValue(ValueError):
    """Raised by a form. Says what is expected, if that is more than the form's own words."""


@dataclass(frozen=True)
class Form:
    """What a value may be. `read` takes what a TOML file holds; `parse` makes that of a text from elsewhere."""

    expected: str
    read: Callable[[Any], Any]
    parse: Callable[[str], Any] = str
    #: As it would stand in a file.
    show: Callable[[Any], Any] = lambda value: value
    #: For messages; hides what is secret.
    quote: Callable[[Any], str] = lambda value: shortened(value)


def key(default: T, form: Form) -> T:
    """A field of a section, with its form."""
    made: Any
    if isinstance(default, dict):
        made = field(default_factory=lambda: dict(default), metadata={"form": form})
    else:
        made = field(default=default, metadata={"form": form})
    chosen: T = made
    return chosen


def shortened(value: Any) -> str:
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _refuse(*_: Any) -> Any:
    raise WrongValue


# -- numbers -----------------------------------------------------------------------------------------------------------


def whole(least: int, most: int = 2**31) -> Form:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise WrongValue
        return value

    bounds = f"from {least} to {most}" if most < 2**31 else f"of at least {least}"
    return Form(f"a whole number {bounds}", read, lambda text: _number(text, int))


def number(*, least: float = 0.0, above: float | None = None) -> Form:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise WrongValue
        if value < least or (above is not None and value <= above):
            raise WrongValue
        return float(value)

    expected = f"a number above {above:g}" if above is not None else f"a number of at least {least:g}"
    return Form(expected, read, lambda text: _number(text, float))


def _number(text: str, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(text.strip())
    except ValueError:
        return text  # `read` says what is wrong with it


def flag() -> Form:
    def read(value: Any) -> bool:
        return value if isinstance(value, bool) else _refuse()

    return Form("true or false", read, lambda text: {"true": True, "false": False}.get(text.strip().lower(), text))


def duration(least_s: float = 0.0, most_s: float = 10 * 365 * 86400.0) -> Form:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise WrongValue
        try:
            seconds = parse_duration(value) if isinstance(value, str) else float(value)
        except InvalidSpec:
            raise WrongValue from None
        return seconds if least_s <= seconds <= most_s else _refuse()

    bounds = f"from {span(least_s)} to {span(most_s)}"
    return Form(f'a duration {bounds} such as "90s", "2h30m" or 120 (seconds)', read, show=span)


def span(seconds: float) -> str:
    """As people write it: 90 seconds are 1m30s."""
    if seconds < 60 or seconds != int(seconds):
        return f"{seconds:g}s"
    parts, left = [], int(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def size(least: int, most: int) -> Form:
    def read(value: Any) -> int:
        if isinstance(value, str) and (found := re.fullmatch(r"(\d{1,12})\s*([KMG]?)(?:i?B)?", value.strip())):
            value = int(found[1]) * _UNITS[found[2]]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise WrongValue
        return value

    return Form(f'a number of bytes from {_bytes(least)} to {_bytes(most)}, such as "4M"', read, show=_bytes)


def _bytes(value: int) -> str:
    for unit in "GMK":
        if value and value % _UNITS[unit] == 0:
            return f"{value // _UNITS[unit]}{unit}"
    return str(value)


# -- texts -------------------------------------------------------------------------------------------------------------


def text(pattern: str, expected: str) -> Form:
    def read(value: Any) -> str:
        return value if isinstance(value, str) and re.fullmatch(pattern, value) else _refuse()

    return Form(expected, read)


def checked(check: Callable[[str], object], expected: str) -> Form:
    """A text that another part of Fairlead reads; what that says of it is told."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise WrongValue
        try:
            check(value)
        except InvalidSpec as error:
            raise WrongValue(str(error)) from None
        return value

    return Form(expected, read)


def database_url() -> Form:
    """There may be a password in it. A wrong one is not repeated: nobody knows where the password begins."""
    form = text(
        r"|sqlite:////.+|postgresql(\+psycopg)?://.+",
        "sqlite:////absolute/path.db or postgresql://user@host/name, or nothing for a file in the state directory",
    )
    return replace(form, show=without_password, quote=lambda value: "something else")  # noqa: ARG005


def texts(pattern: str, expected: str) -> Form:
    def read(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise WrongValue
        return tuple(each if isinstance(each, str) and re.fullmatch(pattern, each) else _refuse() for each in value)

    def parse(given: str) -> list[str]:
        return [each.strip() for each in given.split(",") if each.strip()]

    return Form(f"a list of {expected}", read, parse, show=list)


def variables() -> Form:
    def read(value: Any) -> Mapping[str, str]:
        if not isinstance(value, dict):
            raise WrongValue
        for name, given in value.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or not isinstance(given, str) or "\0" in given:
                raise WrongValue
        return dict(value)

    def parse(given: str) -> Any:
        pairs = [each.strip().partition("=") for each in given.split(",") if each.strip()]
        return {name: value for name, _, value in pairs} if all(sign for _, sign, _ in pairs) else given

    return Form('environment variables and their texts, such as { HF_HOME = "/data/hf" }', read, parse, show=dict)


# -- where things stand in a file --------------------------------------------------------------------------------------

_NAME = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_NAMES = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_HEAD = re.compile(rf"\s*\[\s*({_NAMES})\s*\]")
_PAIR = re.compile(rf"\s*({_NAMES})\s*=")


def lines_of(toml: str) -> dict[str, int]:
    """The line of each section and key, by its full name. For messages: it is no reader of TOML, and may miss some."""
    found: dict[str, int] = {}
    section, closing = "", ""
    for number, line in enumerate(toml.splitlines(), 1):
        if closing:  # within a text of several lines
            closing = "" if closing in line else closing
            continue
        if head := _HEAD.match(line):
            section = _joined(head[1])
            found.setdefault(section, number)
        elif pair := _PAIR.match(line):
            found.setdefault(f"{section}.{_joined(pair[1])}".removeprefix("."), number)
            closing = next((quotes for quotes in ('"""', "'''") if line.count(quotes) == 1), "")
    return found


def _joined(names: str) -> str:
    return ".".join(part.strip("\"'") for part in re.findall(_NAME, names))
