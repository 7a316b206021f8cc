"""When a job saves its state, and from where it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fairlead.train.checkpoint import Store
from fairlead.train.parts import own


class Keeper:
    """Of checkpoints, if there is a place for them. Who should save is not known here."""

    def __init__(self, store: Store | None, every_s: float, state: Callable[[], tuple[dict[str, Any], int]]) -> None:
        """`state` gives what is to be saved, and its step."""
        self.store, self._every_s, self._state = store, every_s, state
        self._saved_at = time.monotonic()

    @property
    def last_save_s(self) -> float | None:
        """What the last one took: the price of a preemption."""
        return self.store.last_save_s if self.store is not None else None

    def put_off(self) -> None:
        """Others have the state as well: not now."""
        self._saved_at = time.monotonic()

    def save_if_due(self) -> None:
        """In the background, of a copy."""
        if self.store is None or self.store.busy or time.monotonic() - self._saved_at < self._every_s:
            return
        self._saved_at = time.monotonic()
        state, step = self._state()
        self.store.save_async(own(state), step=step)

    def save(self) -> None:
        """Now, and wait for it."""
        if self.store is not None:
            self.store.wait()
            state, step = self._state()
            self.store.save(state, step=step)

    def saved(self) -> dict[str, Any] | None:
        """The last state that was saved whole; None if there is none."""
        loaded = self.store.latest() if self.store is not None else None
        return None if loaded is None else loaded.state
