"""What the tests of the training library share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def own_sigterm() -> Iterator[None]:
    """For tests with a session in their own process, as it takes SIGTERM for itself."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
