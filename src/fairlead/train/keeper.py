"""When a job saves its state, and from where it goes on."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from fairlead.core.errors import BackendError
from fairlead.train.checkpoint import Loaded, Store
from fairlead.train.directory_lock import Holder
from fairlead.train.parts import own


class Keeper:
    """Of checkpoints, if there is a place for them. Who should save is not known here.

    A state that cannot be saved is no reason to lose it: training goes on, and the next one is tried.
    """

    def __init__(
        self,
        store: Store | None,
        every_s: float,
        state: Callable[[], tuple[dict[str, Any], int]],
        on_failure: Callable[[str], None],
    ) -> None:
        """`state` gives what is to be saved, and its step."""
        self.store, self._every_s, self._state, self._on_failure = store, every_s, state, on_failure
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
        with self._complaining():
            self.store.wait()  # nothing is under way, but the one before may have failed
        state, step = self._state()
        with self._complaining():
            self.store.save_async(own(state), step=step)

    def save(self) -> None:
        """Now, and wait for it."""
        if self.store is None:
            return
        with self._complaining():
            self.store.wait()
        state, step = self._state()
        with self._complaining():
            self.store.save(state, step=step)

    def saved(self, *, within_s: float, on_wait: Callable[[Holder], None]) -> Loaded | None:
        """The last state that was saved whole; None if there is none. From now on no other process may save there.
        See `Store.occupy`."""
        if self.store is None:
            return None
        self.store.occupy(within_s=within_s, on_wait=on_wait)
        return self.store.latest()

    @contextlib.contextmanager
    def _complaining(self) -> Iterator[None]:
        try:
            yield
        except BackendError as error:
            warnings.warn(str(error), stacklevel=4)
            self._on_failure(str(error))
