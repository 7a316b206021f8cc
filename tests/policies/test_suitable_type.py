"""From reports to places: how fast each GPU type is for a job is learned, and the job goes to the type that suits it.

As on a live server, but that the reports are made up: what they say does not depend on what else a machine does.
"""

from __future__ import annotations

import pytest

from fairlead.core.messages import JobReported, Tick
from fairlead.core.state import State
from fairlead.core.types import Observation
from fairlead.plugins import make_policy
from fairlead.policies.middleware import standard
from fairlead.policies.rates import BelievedRates, Configuration, Evidence
from fairlead.testing import GivenJob, job, make_state

FAST, SLOW = "n0[0]", "n1[0]"

POLICIES = ["gavel:objective=max-min", "gavel:objective=finish-time-fairness", "shockwave"]


def trains(name: str, model: str, on: str) -> GivenJob:
    return job(name, 1, on=on, labels={"model": model})


def measured(gpu_type: str, step_s: float) -> Observation:
    return Observation(gpu_type, 1, 1, 32, 0, step_s, 0.0, steps=100)


def told(state: State, name: str, *observations: Observation, progress: float = 0.2) -> None:
    """Two reports, so that the job's progress has a speed."""
    for at, done in ((100.0, progress / 2), (200.0, progress)):
        state.apply(JobReported(at, name, 1, done, batch=32, observations=observations, saved=True))


def types_of(policy: str, state: State) -> dict[str, str]:
    """On which type each job is to be when the next round begins, with what a service puts around the policy."""
    state.apply(Tick(10_000.0))
    view = state.snapshot()
    plan = standard(make_policy(policy), minimum_run_s=30.0).plan(view)
    return {name: view.nodes[where.nodes[0]].gpu_type for name, where in plan.allocations.items()}


def test_two_jobs_of_a_model_teach_how_much_slower_a_type_is() -> None:
    state = make_state("fast=1x1,slow=1x1", [trains("a", "m", FAST), trains("b", "m", SLOW)])
    told(state, "a", measured("fast", 0.010))
    told(state, "b", measured("slow", 0.025))
    view = state.snapshot()
    places = [Configuration("fast", 1), Configuration("slow", 1)]
    found = BelievedRates().rates(view, list(view.jobs.values()), places)
    assert found.rate_JC[:, 0] / found.rate_JC[:, 1] == pytest.approx([2.5, 2.5])
    assert {seen.gpu_type for seen in view.lore["m"].observations} == {"fast", "slow"}
    assert found.evidence_JC[0, 0] == found.evidence_JC[1, 1] == Evidence.MEASURED


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_moves_to_the_type_that_was_measured_to_be_faster(policy: str) -> None:
    state = make_state("fast=1x1,slow=1x1", [trains("a", "m", SLOW)])
    told(state, "a", measured("fast", 0.010), measured("slow", 0.025))
    assert types_of(policy, state) == {"a": "fast"}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_stays_on_a_type_that_was_measured_to_be_as_fast(policy: str) -> None:
    state = make_state("fast=1x1,slow=1x1", [trains("a", "m", SLOW)])
    told(state, "a", measured("fast", 0.010), measured("slow", 0.010))
    assert types_of(policy, state) == {"a": "slow"}


@pytest.mark.parametrize("policy", ["gavel:objective=finish-time-fairness", "gavel:objective=max-sum-throughput"])
def test_jobs_change_places_if_the_fast_type_is_worth_more_to_the_other_one(policy: str) -> None:
    state = make_state("fast=1x1,slow=1x1", [trains("gains", "m", SLOW), trains("gains little", "n", FAST)])
    told(state, "gains", measured("fast", 0.010), measured("slow", 0.100))
    told(state, "gains little", measured("fast", 0.010), measured("slow", 0.012))
    assert types_of(policy, state) == {"gains": "fast", "gains little": "slow"}
