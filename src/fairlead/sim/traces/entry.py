"""Typed fields out of JSON objects, with errors that name file, object and field. Knows nothing of any trace format."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from fairlead.sim.traces.record import InvalidTrace
from fairlead.sim.traces.table import BLANKS, LARGEST, shown


def parse_json(text: str, *, source: str, line: int | None = None) -> Any:
    """A JSON value; NaN and Infinity, which Python would read, are refused."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise InvalidTrace(
            f"is not JSON: {error.msg} at character {error.colno}", source=source, line=line or error.lineno
        ) from None
    except (ValueError, RecursionError) as error:
        raise InvalidTrace(f"is not usable JSON: {error}", source=source, line=line) from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"found {constant}; expected a finite number")


class Entry:
    """One JSON object. Fields are checked when asked for; a field that is absent counts as null."""

    __slots__ = ("_fields", "line", "source", "what")

    def __init__(self, value: object, *, source: str, what: str, line: int | None = None) -> None:
        self.source, self.what, self.line = source, what, line
        if not isinstance(value, Mapping):
            raise InvalidTrace(f"{what}: found {shown(value)}; expected a JSON object", source=source, line=line)
        self._fields: Mapping[str, Any] = value

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._fields)

    def get(self, field: str) -> Any:
        return self._fields.get(field)

    def is_blank(self, field: str) -> bool:
        value = self.get(field)
        return value is None or (isinstance(value, str) and value.strip().lower() in BLANKS)

    def text(self, field: str, *, default: str | None = None) -> str:
        value = self.get(field)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.error(field, value, "some text")
        return value

    def number(self, field: str, *, at_least: float = 0.0) -> float:
        value = self.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not at_least <= value <= LARGEST:
            raise self.error(field, value, f"a number from {at_least:g} to {LARGEST:g}")
        if not math.isfinite(value):
            raise self.error(field, value, "a finite number")
        return float(value)

    def whole(self, field: str, *, at_least: int = 1) -> int:
        value = self.get(field)
        if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= LARGEST:
            raise self.error(field, value, f"a whole number of at least {at_least}")
        return value

    def flag(self, field: str) -> bool:
        value = self.get(field)
        if not isinstance(value, bool):
            raise self.error(field, value, "true or false")
        return value

    def moment(self, field: str) -> float:
        """UNIX time of a date; one without a time zone is taken as UTC."""
        try:
            moment = datetime.fromisoformat(self.text(field))
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise self.error(field, self.get(field), "a date and time like 2017-10-07 01:06:39") from None

    def items(self, field: str) -> list[Any]:
        value = self.get(field)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(field, value, "a JSON list")
        return value

    def entry(self, field: str) -> Entry:
        return Entry(self.get(field), source=self.source, what=f"{self.what}, {field}", line=self.line)

    def entries(self, field: str) -> list[Entry]:
        return [
            Entry(value, source=self.source, what=f"{self.what}, {field}[{number}]", line=self.line)
            for number, value in enumerate(self.items(field))
        ]

    def error(self, field: str, found: object, expected: str) -> InvalidTrace:
        value = "nothing" if found is None else shown(found)
        problem = f"{self.what}, field {field!r}: found {value}; expected {expected}"
        return InvalidTrace(problem, source=self.source, line=self.line)
