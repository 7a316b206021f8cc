"""Durations and deadlines, as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta

from fairlead.jobfile.forms import Form, is_number, placed, text, tidy, wrong
from fairlead.jobfile.request import InvalidJob
from fairlead.jobfile.values import Kind, Value, shortened

_COUNT = r"[0-9]{1,9}(?:\.[0-9]{1,6})?"
_PARTS = "(?=[0-9])" + "".join(rf"(?:({_COUNT}){unit} ?)?" for unit in "dhms")
_CLOCK = r"([0-9]{1,6}):([0-5][0-9]):([0-5][0-9])"


def _silent(pattern: str) -> str:
    """Without its groups, so that it can stand in another."""
    return re.sub(r"\((?!\?)", "(?:", pattern)


_LATER = f"(?:{_silent(_CLOCK)}|{_silent(_PARTS)})"

#: `5400`, `1:30:00`, `2h30m`.
DURATION = f"(?:{_COUNT}|{_LATER})"

_HOUR = r"(?:[01]?[0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9])?"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_ZONE = r"(?:Z|[+-][0-9]{2}:?[0-9]{2})"
_MOMENT = rf"{_DATE}[T ](?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9])?{_ZONE}?"

#: `+6h`, `18:00`, `2026-11-20`, `2026-11-20T18:00+01:00`.
DEADLINE = rf"(?:\+{_LATER}|{_HOUR}|{_DATE}|{_MOMENT})"

_DURATIONS = "a duration such as 90m, 2h30m, 1d12h, 1:30:00 or 5400 (seconds)"
_DEADLINES = 'a time such as "18:00", +6h, 2026-11-20, 2026-11-20T18:00 or 2026-11-20T18:00+01:00'


def parse_duration(text: str, *, field: str = "duration") -> float:
    """Seconds, from `90m`, `2h30m`, `1d`, `1:30:00` or `5400`. `field` is what a problem calls it."""
    text = text.strip()
    if re.fullmatch(_COUNT, text):
        return float(text)
    if clock := re.fullmatch(_CLOCK, text):
        hours, minutes, seconds = map(int, clock.groups())
        return float(hours * 3600 + minutes * 60 + seconds)
    if parts := re.fullmatch(_PARTS, text):
        return sum(float(part or 0) * unit for part, unit in zip(parts.groups(), (86400, 3600, 60, 1), strict=True))
    raise InvalidJob.at(field, f"{field} is {shortened(text)}; expected {_DURATIONS}")


def deadline_at(text: str, now: float, *, field: str = "deadline") -> float:
    """UNIX seconds. Times without a zone are local to this process; a date alone is the end of that day.

    `18:00` is the next time it is that late, and `+6h` counts from `now`.
    """
    try:
        at = _moment(text.strip(), now)
        if at is not None:
            datetime.fromtimestamp(at, UTC)  # or else nobody can show it
            return at
    except (ValueError, OverflowError):
        pass  # the 30th of February, or after the year 9999
    raise InvalidJob.at(field, f"{field} is {shortened(text)}; expected {_DEADLINES}")


def _moment(text: str, now: float) -> float | None:
    if re.fullmatch(rf"\+{_LATER}", text):  # with a unit: nobody means +6 in seconds
        return now + parse_duration(text[1:])
    if re.fullmatch(_HOUR, text):
        return _next(text, now)
    if re.fullmatch(_DATE, text):
        return (datetime.fromisoformat(text) + timedelta(days=1)).timestamp()
    return datetime.fromisoformat(text).timestamp() if re.fullmatch(_MOMENT, text) else None


def _next(text: str, now: float) -> float:
    clock = time.fromisoformat(text if text[2] == ":" else f"0{text}")
    today = datetime.fromtimestamp(now).date()
    at = datetime.combine(today, clock).timestamp()
    return at if at > now else datetime.combine(today + timedelta(days=1), clock).timestamp()


def duration(*, most: float, least: float = 0.0) -> Form:
    """A number of seconds, or a duration with units."""

    def read(value: Value, place: str) -> float:
        if is_number(value):
            seconds = float(value.text)
        elif value.kind in (Kind.PLAIN, Kind.TEXT) and not value.empty:
            seconds = placed(value, lambda text: parse_duration(text, field=place))
        else:
            raise wrong(value, place, _DURATIONS)
        if least <= seconds <= most:
            return seconds
        raise wrong(value, place, f"from {least:g} to {most:g} seconds")

    numbers = {"type": "number", "minimum": least, "maximum": most}
    return Form(read, {"anyOf": [numbers, {"type": "string", "pattern": f"^{DURATION}$"}]}, tidy)


def deadline() -> Form:
    """A text, kept as it was written: what it means depends on when the job is submitted."""
    form = text(DEADLINE, most=40, expected=_DEADLINES)

    def read(value: Value, place: str) -> str:
        written: str = form.read(value, place)
        placed(value, lambda text: deadline_at(text, 0.0, field=place))
        return written

    return Form(read, form.schema)
