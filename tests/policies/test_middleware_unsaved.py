"""Who would lose all its work is not stopped among equals; who has a right to its GPUs gets them."""

from __future__ import annotations

import pytest
from tenants import sizes

from fairlead.core.messages import JobReported
from fairlead.plugins import make_policy
from fairlead.policies.middleware import Queue, standard
from fairlead.testing import job, make_state, make_view

#: So long that any policy that shares time has had enough of whoever ran since the beginning.
LONG_S = 100_000.0


@pytest.mark.parametrize("inner", ["tiresias", "pilot", "even"])
def test_a_command_without_a_checkpoint_runs_to_its_end(inner: str) -> None:
    jobs = [job("a", on="n0[0]"), job("b", on="n0[1]"), job("c"), job("d")]
    view = make_view("1x2", jobs, now=LONG_S)
    assert sizes(standard(make_policy(inner)).plan(view)) == {"a": 1, "b": 1}


def test_one_that_has_saved_may_be_stopped_as_the_policy_likes() -> None:
    state = make_state("1x2", [job("a", on="n0[0]"), job("b", on="n0[1]"), job("c")], now=LONG_S)
    state.apply(JobReported(LONG_S, "a", 1, 0.1, saved=True))
    assert sizes(standard(make_policy("tiresias")).plan(state.snapshot())) == {"b": 1, "c": 1}


def test_a_cluster_may_be_told_otherwise() -> None:
    view = make_view("1x1", [job("a", on="n0[0]"), job("c")], now=LONG_S)
    assert sizes(standard(make_policy("tiresias"), spare_unsaved=False).plan(view)) == {"c": 1}


def test_a_job_that_would_have_to_restart_keeps_the_size_it_has() -> None:
    view = make_view("1x4", [job("a", 1, on="n0[0]", gpus_min=1, gpus_max=4)], now=LONG_S)
    assert sizes(standard(make_policy("pilot")).plan(view)) == {"a": 1}
    assert sizes(standard(make_policy("pilot"), spare_unsaved=False).plan(view)) != {"a": 1}


def test_a_higher_priority_is_a_right() -> None:
    view = make_view("1x2", [job("a", on="n0[0]"), job("b", on="n0[1]"), job("c", 2, priority=1)], now=LONG_S)
    assert sizes(standard(make_policy("tiresias")).plan(view)) == {"c": 2}


def test_a_quota_is_a_right() -> None:
    jobs = [job("a", on="n0[0]"), job("b", on="n0[1]"), job("c", queue="prod")]
    plan = standard(make_policy("tiresias"), (Queue("prod", quota=1),)).plan(make_view("1x2", jobs, now=LONG_S))
    assert plan.allocations["c"].total == 1
