"""GPUs, batches and arrays: whole numbers, and ranges of them."""

from __future__ import annotations

import re
from typing import Any

from fairlead.core.errors import InvalidSpec
from fairlead.core.hints import did_you_mean
from fairlead.core.types import LARGEST, Batch
from fairlead.jobfile.forms import Form, gather, is_number, many, placed, problem_at, whole, wrong
from fairlead.jobfile.request import AUTO_MOST, Gpus, InvalidJob
from fairlead.jobfile.values import Kind, Value, shortened

MOST_GPUS_OF_A_JOB = 1_000_000
MOST_ELEMENTS = 10_000
LARGEST_INDEX = 1_000_000

_RANGE = r"([0-9]{1,16})(?: ?- ?([0-9]{1,16}))?"
_RANGE_PATTERN = r"[0-9]{1,16}(?: ?- ?[0-9]{1,16})?"


def _ends(text: str) -> tuple[int, int] | None:
    """Of `4` or `1-8`; None if it is neither, or reversed."""
    match = re.fullmatch(_RANGE, text.strip())
    if match is None:
        return None
    first, last = int(match[1]), int(match[2] or match[1])
    return (first, last) if first <= last else None


# -- GPUs --------------------------------------------------------------------------------------------------------------


def parse_gpus(text: str, *, field: str = "gpus") -> Gpus:
    """From `4`, `1-8` or `auto`. `field` is what a problem calls it."""
    if text.strip() == "auto":
        return Gpus(1, 1, AUTO_MOST, auto=True)
    ends = _ends(text)
    if ends is None or ends[0] < 1 or ends[1] > MOST_GPUS_OF_A_JOB:
        expected = f"a number such as 4, a range such as 1-8 (up to {MOST_GPUS_OF_A_JOB}), or auto"
        raise InvalidJob.at(field, f"{field} is {shortened(text)}; expected {expected}")
    return Gpus(ends[0], *ends)


def gpus() -> Form:
    number = whole(1, MOST_GPUS_OF_A_JOB)

    def read(value: Value, place: str) -> Gpus:
        if is_number(value):
            count = number.read(value, place)
            return Gpus(count, count, count)
        if value.kind in (Kind.PLAIN, Kind.TEXT) and not value.empty:
            found: Gpus = placed(value, lambda text: parse_gpus(text, field=place))
            return found
        raise wrong(value, place, "a number such as 4, a range such as 1-8, or auto")

    def write(gpus: Gpus) -> int | str:
        return str(gpus) if gpus.elastic else gpus.least

    return Form(read, {"anyOf": [number.schema, {"type": "string", "pattern": f"^(?:auto|{_RANGE_PATTERN})$"}]}, write)


# -- arrays ------------------------------------------------------------------------------------------------------------


def parse_array(text: str, *, field: str = "array") -> tuple[int, ...]:
    """The elements of an array, from `10` (0 to 9) or `3-7`. `field` is what a problem calls it."""
    ends = _ends(text)
    if ends is not None and "-" not in text:
        ends = (0, ends[0] - 1)
    if ends is None or not 0 <= ends[1] <= LARGEST_INDEX or ends[1] - ends[0] >= MOST_ELEMENTS:
        expected = f"a number of elements from 1 to {MOST_ELEMENTS}, a range such as 0-9, or a list such as [1, 5, 7]"
        raise InvalidJob.at(field, f"{field} is {shortened(text)}; expected {expected}")
    return tuple(range(ends[0], ends[1] + 1))


def array() -> Form:
    number = whole(1, MOST_ELEMENTS)
    listed = many(whole(0, LARGEST_INDEX), most=MOST_ELEMENTS)

    def read(value: Value, place: str) -> tuple[int, ...]:
        if value.kind is Kind.LIST:
            return tuple(listed.read(value, place))
        if is_number(value):
            return tuple(range(number.read(value, place)))
        if value.kind in (Kind.PLAIN, Kind.TEXT) and not value.empty:
            return tuple(placed(value, lambda text: parse_array(text, field=place)))
        raise wrong(value, place, "a number of elements, a range such as 0-9, or a list such as [1, 5, 7]")

    def write(elements: tuple[int, ...]) -> int | str | list[int]:
        if not elements or elements != tuple(range(elements[0], elements[-1] + 1)):
            return list(elements)
        return len(elements) if elements[0] == 0 else f"{elements[0]}-{elements[-1]}"

    text = {"type": "string", "pattern": f"^{_RANGE_PATTERN}$"}
    return Form(read, {"anyOf": [number.schema, text, listed.schema]}, write)


# -- batches -----------------------------------------------------------------------------------------------------------

_SAMPLES = whole(1, LARGEST)

#: The names of the mapping, and the fields of `Batch` they are.
_BOUNDS = {"initial": "initial", "max": "max_total", "min_per_gpu": "min_per_gpu", "max_per_gpu": "max_per_gpu"}


def batch() -> Form:
    """`64`, `64-4096`, or a mapping with the bounds on one GPU as well."""

    def read(value: Value, place: str) -> Batch:
        try:
            if value.kind is Kind.MAPPING:
                return _bounds(value, place)
            if is_number(value):
                return Batch(_SAMPLES.read(value, place))
            ends = _ends(value.text) if value.kind in (Kind.PLAIN, Kind.TEXT) else None
            if ends is not None and 1 <= ends[0] <= ends[1] <= LARGEST:
                return Batch(ends[0], ends[1] if "-" in value.text else None)
        except InvalidJob:
            raise
        except InvalidSpec as error:
            raise problem_at(value, place, f"{place}: {error}") from None
        raise wrong(value, place, "a size such as 64, a range such as 64-4096, or a mapping with initial and max")

    bounds = {
        "type": "object",
        "properties": dict.fromkeys(_BOUNDS, _SAMPLES.schema),
        "required": ["initial"],
        "additionalProperties": False,
    }
    text = {"type": "string", "pattern": f"^{_RANGE_PATTERN}$"}
    return Form(read, {"anyOf": [_SAMPLES.schema, text, bounds]}, _write_batch)


def _bounds(value: Value, place: str) -> Batch:
    def read_one(key: Value, inner: Value) -> tuple[str, int]:
        if key.text not in _BOUNDS:
            raise problem_at(key, place, f"{place} has no {shortened(key.text)}{did_you_mean(key.text, _BOUNDS)}")
        return _BOUNDS[key.text], _SAMPLES.read(inner, f"{place}.{key.text}")

    found: dict[str, Any] = dict(gather(read_one, value.pairs))
    if "initial" not in found:
        raise problem_at(value, place, f"{place} lacks initial, the size to begin with")
    return Batch(**found)


def _write_batch(batch: Batch) -> Any:
    if (batch.min_per_gpu, batch.max_per_gpu) == (1, None):
        return batch.initial if batch.max_total is None else f"{batch.initial}-{batch.max_total}"
    written = {name: getattr(batch, field) for name, field in _BOUNDS.items()}
    return {name: size for name, size in written.items() if size is not None}
