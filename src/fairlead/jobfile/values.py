"""What stands in a file, and where, before anyone asks what it means.

YAML is read by its events, and a word without quotes stays the text that was written: it is the field that decides
whether `8080`, `18:00` or `no` is a number, a time or a word. JSON values become the same tree, without places.
Anything that could be made to grow without bound (aliases, nesting, size) is refused here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import yaml

from fairlead.jobfile.request import InvalidJob, Problem

MOST_BYTES = 2**20
MOST_DEPTH = 16
#: More than an array of 10,000 elements needs, and few enough to read in a second.
MOST_VALUES = 25_000

#: Fields, known or not, and mistakes that are told. A file with more of them is no job, and is read no further.
MOST_KEYS = 200
MOST_PROBLEMS = 200

#: Characters that are read by the parser in Python, whose words about mistakes are better. It takes up to a second for
#: each million of them, so that what is longer is read by libyaml, where that is installed.
MOST_SLOWLY = 2**13
#: Where it is not, or the text has escapes that libyaml does not know, nothing longer than this is read.
MOST_WITHOUT_LIBYAML = 2**17

#: What stands in this field is in no message, whatever it is: it may be a secret where a mapping of them was meant.
HIDDEN = "secrets"


class Kind(StrEnum):
    """What a value is. The text is what a message calls it."""

    PLAIN = "a word"  # YAML without quotes: a text, a number, a switch or nothing, as the field reads it
    TEXT = "a text"  # in quotes or a block, or a string of JSON
    NUMBER = "a number"  # the next three are of JSON only
    SWITCH = "true or false"
    NULL = "null"
    LIST = "a list"
    MAPPING = "a mapping"
    UNREADABLE = "unreadable"  # a problem has been told already


@dataclass(frozen=True, slots=True)
class Value:
    """One value and its place. `text` is of scalars, `items` of lists, `pairs` of mappings."""

    kind: Kind
    text: str = ""
    items: tuple[Value, ...] = ()
    pairs: tuple[tuple[Value, Value], ...] = ()
    line: int | None = None
    column: int | None = None
    #: It is in no message.
    hidden: bool = False

    @property
    def empty(self) -> bool:
        """Is it YAML's or JSON's way to say nothing?"""
        return self.kind is Kind.NULL or (self.kind is Kind.PLAIN and self.text in ("", "~", "null", "Null", "NULL"))

    def shown(self) -> str:
        """For a message: short, and safe to print."""
        if self.empty:
            return "empty"
        if self.hidden:
            return "something that is not shown"
        if self.kind is Kind.LIST:
            return f"a list of {len(self.items)}"
        if self.kind is Kind.MAPPING:
            return "a mapping"
        return f"the text {shortened(self.text)}" if self.kind is Kind.TEXT else shortened(self.text)


def shortened(text: str) -> str:
    """In quotes, without line breaks, and not too long."""
    quoted = repr(text[:200])
    return quoted if len(quoted) <= 60 else f"{quoted[:57]}..."


# -- YAML --------------------------------------------------------------------------------------------------------------

#: What to do about the parser's words, which are about YAML and not about jobs.
_ADVICE = {
    r"found character '\t'": "a tab; indent by spaces",
    "found a tab character": "indent by spaces",
    "that cannot start any token": "quote a text that begins with this character",
    "while scanning an alias": "quote a text that begins with *",
    "while scanning an anchor": "quote a text that begins with &",
    "while scanning a tag": "quote a text that begins with !",
    "undefined tag handle": "quote a text that begins with !",
    "mapping values are not allowed here": "quote a text that holds a colon and a space, or check the indentation",
    "could not find expected ':'": "every line of a mapping is `field: value`",
    "unexpected end of stream": "a quote or bracket is not closed",
}


def from_yaml(text: str) -> tuple[Value, list[Problem]]:
    """The one document in a text, and what was wrong in it that does not keep the rest from being read."""
    check_size(len(text) if len(text) > MOST_BYTES else len(text.encode("utf-8", "surrogatepass")))
    if found := yaml.reader.Reader.NON_PRINTABLE.search(text):
        before = text[: found.start()]
        line, column = before.count("\n") + 1, found.start() - (before.rfind("\n") + 1) + 1
        raise InvalidJob.at("", f"the character U+{ord(found[0]):04X} is not allowed in YAML", line=line, column=column)
    tree = None
    try:
        tree = _Tree(text)
        return tree.document(), tree.problems
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _syntax(": ".join(filter(None, (error.context, error.problem))), mark) from None
    except (ValueError, OverflowError):  # the parser lets these out for \UFFFFFFFF and the like
        raise _syntax("an escape or a number that is too large", tree and tree.mark()) from None


def check_size(size: int) -> None:
    """Raise InvalidJob if a file is too large to be read. What reads it need read no more than a byte beyond."""
    if size > MOST_BYTES:
        raise InvalidJob.at("", f"the file is larger than {MOST_BYTES} bytes; a job file is a page of text")


#: Half a character, as JSON writes it; YAML does not, and libyaml refuses it.
_HALF_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def _loader(text: str) -> Any:
    """The parser for a text of this length."""
    fast = getattr(yaml, "CSafeLoader", None)
    if len(text) <= MOST_SLOWLY:
        return yaml.SafeLoader(text)
    if fast is not None and not _HALF_ESCAPE.search(text):
        return fast(text)
    if len(text) > MOST_WITHOUT_LIBYAML:
        told = f"more than {MOST_WITHOUT_LIBYAML} characters are read only"
        if fast is None:
            raise InvalidJob.at("", f"{told} where PyYAML has libyaml; send the job as JSON, or put texts into files")
        raise InvalidJob.at("", f"{told} without escapes like \\ud83d; write the character itself")
    return yaml.SafeLoader(text)


def _syntax(found: str, mark: Any) -> InvalidJob:
    found = re.sub("(undefined tag handle) .*", r"\1", found)  # it may be the beginning of a secret
    advice = next((advice for words, advice in _ADVICE.items() if words in found), "see the examples in docs/jobs.md")
    line, column = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
    return InvalidJob.at("", f"this is not YAML: {found}: {advice}", line=line, column=column)


class _Tree:
    """Builds the tree of one document from the parser's events."""

    def __init__(self, text: str) -> None:
        self.problems: list[Problem] = []
        self._values = 0
        self._loader = _loader(_without_tabs(text))

    def mark(self) -> Any:
        """Where reading has come to."""
        return self._loader.get_mark() if isinstance(self._loader, yaml.SafeLoader) else None

    def document(self) -> Value:
        self._next()  # the stream's start
        if isinstance(self._next(), yaml.StreamEndEvent):
            raise InvalidJob.at("run", "the file is empty; the least it can hold is `run: COMMAND`")
        value = self._value(self._next(), 0)
        self._next()  # the document's end
        if not isinstance(event := self._next(), yaml.StreamEndEvent):
            line, column = event.start_mark.line + 1, event.start_mark.column + 1
            raise InvalidJob.at("", "a second document begins here; one file holds one job", line=line, column=column)
        return value

    def _next(self) -> Any:
        return self._loader.get_event()

    def _value(self, event: Any, depth: int, *, hidden: bool = False) -> Value:
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        self._values += 1
        _bounded(depth, self._values, line=line, column=column)
        if isinstance(event, yaml.AliasEvent):
            return self._unreadable("aliases (*name) are not read; write it out, or quote the text", line, column)
        if isinstance(event, yaml.ScalarEvent):
            text, whole = mended(event.value)
            kind = Kind.TEXT if event.style else Kind.PLAIN  # None of one parser, empty of the other
            value = Value(kind, text, line=line, column=column, hidden=hidden)
            if not whole:
                value = self._unreadable("half a character (a lone surrogate) is no text", line, column, text)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = Value(Kind.LIST, items=tuple(self._items(depth, hidden)), line=line, column=column, hidden=hidden)
        else:
            pairs = tuple(self._pairs(depth, hidden))
            value = Value(Kind.MAPPING, pairs=pairs, line=line, column=column, hidden=hidden)
        if event.tag is not None:
            return self._unreadable("tags (!name) are not read; take it away, or quote the text", line, column)
        return value

    def _items(self, depth: int, hidden: bool) -> Iterator[Value]:
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            yield self._value(event, depth + 1, hidden=hidden)

    def _pairs(self, depth: int, hidden: bool) -> Iterator[tuple[Value, Value]]:
        seen: dict[str, Value] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            if depth == 0 and len(seen) >= MOST_KEYS:
                raise _too_many_keys(event.start_mark.line + 1, event.start_mark.column + 1)
            key = self._value(event, depth + 1, hidden=hidden)
            below = hidden or (depth == 0 and key.text == HIDDEN)
            value = self._value(self._next(), depth + 1, hidden=below)
            if key.kind is Kind.UNREADABLE:
                continue
            if key.kind not in (Kind.PLAIN, Kind.TEXT):
                self._tell(Problem("", f"a name is expected here, and this is {key.kind}", key.line, key.column))
            elif (first := seen.setdefault(key.text, key)) is not key:
                field, name = (HIDDEN, "a name") if hidden else (key.text[:100], shortened(key.text))
                twice = f"{name} is given twice; it stands on line {first.line} already"
                self._tell(Problem(field, twice, key.line, key.column))
            else:
                yield key, value

    def _unreadable(self, text: str, line: int, column: int, value: str = "") -> Value:
        self._tell(Problem("", text, line, column))
        return Value(Kind.UNREADABLE, value, line=line, column=column)

    def _tell(self, problem: Problem) -> None:
        self.problems.append(problem)
        if len(self.problems) >= MOST_PROBLEMS:
            raise InvalidJob(self.problems)


def _without_tabs(text: str) -> str:
    """JSON may be indented by tabs, and YAML may not. In JSON none stands within a text, so none is lost."""
    if "\t" not in text or not text.lstrip().startswith("{"):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text.replace("\t", " ")


# -- JSON --------------------------------------------------------------------------------------------------------------


def from_json(data: object) -> tuple[Value, list[Problem]]:
    """The same tree of what a JSON reader gave."""
    reader = _Json()
    value = reader.value(data, "", 0)
    return value, reader.problems


class _Json:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._values = 0
        self._bytes = 0

    def value(self, data: object, field: str, depth: int) -> Value:
        self._values += 1
        _bounded(depth, self._values)
        hidden = _is_hidden(field)
        if data is None:
            return Value(Kind.NULL, "null")
        if isinstance(data, bool):
            return Value(Kind.SWITCH, "true" if data else "false", hidden=hidden)
        if isinstance(data, int | float):
            return self._number(data, field)
        if isinstance(data, str):
            return Value(Kind.TEXT, self._text(data, field), hidden=hidden)
        if isinstance(data, list | tuple):
            return Value(Kind.LIST, items=tuple(self.value(item, field, depth + 1) for item in data), hidden=hidden)
        if isinstance(data, Mapping):
            return Value(Kind.MAPPING, pairs=tuple(self._pairs(data, field, depth)), hidden=hidden)
        return self._unreadable(field, f"is a {type(data).__name__}, which JSON does not have")

    def _number(self, data: float, field: str) -> Value:
        if isinstance(data, int) and data.bit_length() > 1024:
            return self._unreadable(field, "is a number of more than 300 digits")
        if not math.isfinite(data):
            return self._unreadable(field, f"is {data}; expected a finite number")
        return Value(Kind.NUMBER, repr(data), hidden=_is_hidden(field))

    def _text(self, data: str, field: str) -> str:
        text, whole = mended(data)
        self._bytes += len(text.encode("utf-8"))
        if self._bytes > MOST_BYTES:
            raise InvalidJob.at("", f"its texts are larger than {MOST_BYTES} bytes in all; put large ones into files")
        if not whole:
            self._unreadable(field, "holds half a character (a lone surrogate), which is no text")
        return text

    def _pairs(self, data: Mapping[Any, Any], field: str, depth: int) -> Iterator[tuple[Value, Value]]:
        if depth == 0 and len(data) > MOST_KEYS:
            raise _too_many_keys()
        for key, item in data.items():
            if isinstance(key, str):
                text = self._text(key, field)
                key = Value(Kind.TEXT, text, hidden=_is_hidden(field))
                yield key, self.value(item, _below(field, text), depth + 1)
            else:
                self._unreadable(field, f"has a key that is a {type(key).__name__}; expected a name")

    def _unreadable(self, field: str, text: str) -> Value:
        self.problems.append(Problem(field, f"{shortened(field) if field else 'the job'} {text}"))
        if len(self.problems) >= MOST_PROBLEMS:
            raise InvalidJob(self.problems)
        return Value(Kind.UNREADABLE)


def _is_hidden(field: str) -> bool:
    return field == HIDDEN or field.startswith(f"{HIDDEN}.")


def _below(field: str, name: str) -> str:
    """What to call a value in a mapping. Of a secret its name is told, if it can be one, and nothing below that."""
    if _is_hidden(field) and (field != HIDDEN or not name.isidentifier()):
        return field
    return f"{field}.{name[:100]}".lstrip(".")


def _bounded(depth: int, values: int, *, line: int | None = None, column: int | None = None) -> None:
    if depth > MOST_DEPTH:
        text = f"this is nested more than {MOST_DEPTH} deep; no field of a job is"
        raise InvalidJob.at("", text, line=line, column=column)
    if values > MOST_VALUES:
        text = f"there are more than {MOST_VALUES} values; a job needs fewer"
        raise InvalidJob.at("", text, line=line, column=column)


def _too_many_keys(line: int | None = None, column: int | None = None) -> InvalidJob:
    return InvalidJob.at("", f"there are more than {MOST_KEYS} fields; see docs/jobs.md", line=line, column=column)


_SURROGATE = re.compile("[\ud800-\udfff]")


def mended(text: str) -> tuple[str, bool]:
    """With halves of characters joined, as JSON writes them; and was nothing left over?"""
    if not _SURROGATE.search(text):
        return text, True
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return joined, "\ufffd" not in joined or joined.count("\ufffd") == text.count("\ufffd")
