"""A job that failed a moment ago, and an elastic neighbour: its GPU is not lent out for the seconds until its retry."""

from __future__ import annotations

import pytest

from fairlead.core.messages import JobExited, JobReported, JobStarted, JobSubmitted, NodeJoined, Start
from fairlead.core.state import State
from fairlead.core.types import Allocation, JobSpec, Node, Observation
from fairlead.plugins import make_policy
from fairlead.policies.middleware.standard import standard

ELASTIC = JobSpec(id="elastic", gpus=1, gpus_min=1, gpus_max=4, in_place=True)
THREE, FOURTH = Allocation.of({"n0": (0, 1, 2)}), Allocation.of({"n0": (3,)})


def after_a_failure(backoff_s: float) -> State:
    """The elastic job trains on three of four GPUs; the one on the fourth has just failed for the first time."""
    state = State()
    state.apply(NodeJoined(0.0, Node("n0", 4)))
    for spec, gpus in ((ELASTIC, THREE), (JobSpec(id="fails", gpus=1, backoff_s=backoff_s), FOURTH)):
        state.apply(JobSubmitted(0.0, spec))
        state.issue(Start(0.0, spec.id, 1, gpus))
        state.apply(JobStarted(5.0, spec.id, 1))
    seen = tuple(Observation("gpu", 1, gpus, 64 // gpus, 0, 0.1 / gpus, 0.001, 50) for gpus in (1, 2, 3))
    state.apply(JobReported(600.0, "elastic", 1, 0.1, 64, 1e6, seen))
    state.apply(JobExited(601.0, "fails", 1, code=1))
    return state


@pytest.mark.parametrize("name", ["pilot", "pollux", "even", "sia", "frugal"])
def test_no_neighbour_grows_for_the_few_seconds_until_the_next_try(name: str) -> None:
    policy = standard(make_policy(name), queues=())
    plan = policy.plan(after_a_failure(backoff_s=4.0).snapshot())
    assert plan.allocations == {"elastic": THREE, "fails": FOURTH}


@pytest.mark.parametrize("name", ["pilot", "even"])
def test_for_a_long_wait_it_does(name: str) -> None:
    policy = standard(make_policy(name), queues=())
    plan = policy.plan(after_a_failure(backoff_s=300.0).snapshot())
    assert plan.allocations == {"elastic": THREE | FOURTH}
