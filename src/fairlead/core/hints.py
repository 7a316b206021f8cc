"""What to say of a name that nobody knows. It imports next to nothing, so that every command can afford it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The tail of an error about a wrong name."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}? Known are {', '.join(known)}"
    return f"; known are {', '.join(known)}" if known else "; none is known"
