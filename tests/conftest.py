"""For all tests."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings

# How long an example takes says more about the machine than about us.
settings.register_profile("fairlead", deadline=None)
settings.load_profile("fairlead")

_caches = Path(tempfile.gettempdir()) / f"fairlead-tests-{os.getpid()}"
_numbers = itertools.count()


def pytest_runtest_setup() -> None:
    """No test finds what another one, or the user, has simulated before."""
    os.environ["XDG_CACHE_HOME"] = str(_caches / str(next(_numbers)))


def pytest_sessionfinish() -> None:
    shutil.rmtree(_caches, ignore_errors=True)
