"""Waiting for a worker, but not for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from fairlead.core.errors import FairleadError

T = TypeVar("T")


class NotSoon(Exception):
    """Nothing was found, and why."""


async def soon(begin: Callable[[], Future[T]], limit_s: float, *, shared: bool = False) -> T:
    """What a worker finds within this time. What is shared is not given up with whoever asked for it."""
    try:
        future = asyncio.wrap_future(begin())
        return await asyncio.wait_for(asyncio.shield(future) if shared else future, limit_s)
    except TimeoutError:
        raise NotSoon(f"the forecast took longer than {limit_s:g} s") from None
    except FairleadError as error:
        raise NotSoon(str(error)) from None
