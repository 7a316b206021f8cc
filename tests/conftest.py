"""For all tests."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says more about the machine than about us. What is drawn is new in each run of a developer,
# and the same in each run of the CI: chance finds faults, and must not decide whether a change is taken.
settings.register_profile("fairlead", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("fairlead")

# In the background of a script SIGINT is ignored, and so it would be in all programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Small matrices, and as many tests at once as there are processors: more threads only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_caches = Path(tempfile.gettempdir()) / f"fairlead-tests-{os.getpid()}"
_numbers = itertools.count()


def pytest_runtest_setup() -> None:
    """No test finds what another one, or the user, has simulated before."""
    os.environ["XDG_CACHE_HOME"] = str(_caches / str(next(_numbers)))


def pytest_sessionfinish() -> None:
    shutil.rmtree(_caches, ignore_errors=True)


#: Files that take many seconds as a whole, mostly because real jobs train in real processes.
SLOW = {
    "cli/test_reproduce_elasticity.py",
    "cli/test_train.py",
    "cli/test_cli_kept_runs.py",
    "golden/test_shockwave_artifact.py",
    "golden/test_sia_artifact.py",
    "goodput/test_curves.py",
    "policies/test_builtin_contract.py",
    "policies/test_contract_catches.py",
    "policies/test_middleware_standard.py",
    "policies/test_pilot_guarantees.py",
    "policies/test_shockwave_published.py",
    "server/test_launch.py",
    "server/test_live_trace.py",
    "sim/test_gavel_shockwave.py",
    "sim/test_step_oracle.py",
    "test_benchmarks.py",
    "train/test_elastic.py",
    "train/test_endings.py",
    "train/test_steering.py",
    "traces/test_trace_fuzz.py",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(Path(__file__).parent).as_posix() in SLOW:
            item.add_marker(pytest.mark.slow)
