"""Long work in the background that leaves room for others.

Python runs one thread at a time. Whoever answers a user must not wait for whoever counts ten thousand jobs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

#: Times as long as the work took that a rest is.
REST = 2.0


def gently(items: Iterable[T], *, at_a_time: int) -> Iterator[T]:
    """The items, with a rest after every few of them. For a thread that nobody is in a hurry for."""
    began = time.monotonic()
    for place, item in enumerate(items, 1):
        yield item
        if place % at_a_time == 0:
            time.sleep(REST * (time.monotonic() - began))
            began = time.monotonic()
