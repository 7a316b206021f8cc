"""GPU types on which a job is equally fast: it is owed where it runs, and does not move for nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job
from fairlead.policies.equivalent_types import owed_where_it_runs
from fairlead.policies.rates import Configuration, Rates
from fairlead.testing import job, make_view

NODES = "fast=1x4,slow=1x4"
OWED = {(("a",), "fast"): 0.25, (("a",), "slow"): 0.5, (("b",), "fast"): 0.25, (("b",), "slow"): 0.5}


class Stated:
    """Rates by GPU type, the same for every job."""

    def __init__(self, **by_type: float) -> None:
        self._by_type = by_type

    def partner(self, view: Snapshot, job: Job) -> str:
        raise AssertionError((view, job))

    def rates(self, view: Snapshot, jobs: Sequence[Job], configurations: Sequence[Configuration]) -> Rates:
        assert all(each.id in view.jobs for each in jobs)
        rate_JC = np.array([[self._by_type[each.gpu_type] for each in configurations] for _ in jobs])
        none_J = np.zeros(len(jobs), dtype=np.int64)
        return Rates(rate_JC, np.zeros(rate_JC.shape, dtype=np.int64), none_J * 1.0, none_J, none_J + 1.0)


def test_a_running_job_is_owed_where_it_runs_what_it_is_owed_on_types_that_are_as_fast() -> None:
    view = make_view(NODES, [job("a", on="n0[0]"), job("b")])
    found = owed_where_it_runs(view, OWED, Stated(fast=2.0, slow=2.0))
    assert found == {**OWED, (("a",), "fast"): 0.75, (("a",), "slow"): 0.0}, "and one that waits is owed as before"


@pytest.mark.parametrize("slow", [1.0, 1.9, 2.1, 0.0])
def test_types_of_another_speed_are_left_apart(slow: float) -> None:
    view = make_view(NODES, [job("a", on="n0[0]"), job("b")])
    assert owed_where_it_runs(view, OWED, Stated(fast=2.0, slow=slow)) == OWED


def test_what_is_owed_in_all_stays_the_same() -> None:
    view = make_view(NODES, [job("a", on="n0[0]"), job("b", on="n1[0]")])
    found = owed_where_it_runs(view, OWED, Stated(fast=1.0, slow=1.0))
    assert sum(found.values()) == pytest.approx(sum(OWED.values()))
    assert found[("b",), "slow"] == 0.75
