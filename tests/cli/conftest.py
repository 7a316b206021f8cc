"""A small trace, a policy of the user's own, and the command as a user types it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from fairlead.cli.main import main

if TYPE_CHECKING:
    from live_plane import Live

sys.path.append(str(Path(__file__).parent))

HEADER = "id,submit_s,gpus,duration_s,gpu_types\n"

#: Six jobs that 4 GPUs cannot serve at once: a long one, short ones, and a wide one.
JOBS = HEADER + "a,0,2,1000,\nb,10,2,3000,\nc,20,4,500,\nd,30,1,60,\ne,40,1,60,\nf,900,2,600,\n"

OWN_POLICY = '''
from dataclasses import dataclass, replace
from fairlead.core.types import Plan
from fairlead.policies.fifo import Backfill, Fifo

@dataclass(frozen=True)
class Own:
    """Strict or not."""
    strict: bool = True

    def plan(self, view):
        return (Fifo() if self.strict else Backfill()).plan(view)

class Lazy:
    def plan(self, view):
        return Plan()

class Reckless:
    def plan(self, view):
        plan = Backfill().plan(view)
        twice = {job_id: next(iter(plan.allocations.values())) for job_id in view.jobs} if len(view.jobs) > 1 else {}
        return replace(plan, allocations=twice or plan.allocations)

class Broken:
    def plan(self, view):
        return view.nonsense
'''

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    def invoke(*args: object) -> Result:
        result = CliRunner().invoke(main, [str(arg) for arg in args], prog_name="fairlead")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


@pytest.fixture
def figures(run: Run) -> Callable[..., Any]:
    """The JSON that a command prints when it succeeds."""

    def read(*args: object) -> Any:
        result = run(*args, "-o", "json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout, parse_constant=pytest.fail)  # NaN is no JSON

    return read


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return path


@pytest.fixture
def own_policy(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN_POLICY)
    return path


@pytest.fixture
def write_trace(tmp_path: Path) -> Callable[[str], Path]:
    """A trace of these lines below the header."""

    def write(rows: str) -> Path:
        path = tmp_path / "other.csv"
        path.write_text(HEADER + rows)
        return path

    return write


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """A control plane whose jobs do nothing, behind a socket."""
    from live_plane import serving

    for name in ("FAIRLEAD_URL", "FAIRLEAD_TOKEN", "FAIRLEAD_STATE", "XDG_STATE_HOME", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with serving(tmp_path) as found:
        yield found
