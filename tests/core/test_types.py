"""The nouns: what they refuse, and the arithmetic of allocations."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import (
    FINAL,
    NOTHING,
    Allocation,
    Batch,
    Job,
    JobSpec,
    Node,
    Observation,
    Phase,
)

gpus_by_node = st.dictionaries(
    st.sampled_from(["n0", "n1", "n2", "n10"]), st.sets(st.integers(0, 9), min_size=1, max_size=6), max_size=4
)


def as_set(allocation: Allocation) -> set[tuple[str, int]]:
    return {(node, gpu) for node, gpus in allocation for gpu in gpus}


def test_the_last_three_phases_are_final_and_no_other_is() -> None:
    assert [phase for phase in Phase if phase.final] == list(Phase)[-3:]
    assert frozenset(list(Phase)[-3:]) == FINAL


# -- specs -----------------------------------------------------------------------------------------------------------


def test_a_spec_without_bounds_runs_on_exactly_what_it_asked_for() -> None:
    spec = JobSpec(id="a", gpus=4)
    assert (spec.least, spec.gpus, spec.most) == (4, 4, 4)
    assert (spec.gpus_min, spec.gpus_max) == (4, 4)


def test_a_spec_keeps_the_bounds_it_was_given() -> None:
    spec = JobSpec(id="a", gpus=4, gpus_min=2, gpus_max=16)
    assert (spec.least, spec.gpus, spec.most) == (2, 4, 16)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"id": ""}, "a job needs an id"),
        ({"gpus": 0}, "job a: GPUs are min 0, requested 0, max 0"),
        ({"gpus": -1}, "expected 1 <= min <= requested <= max"),
        ({"gpus": 2, "gpus_min": 0}, "min 0, requested 2, max 2"),
        ({"gpus": 2, "gpus_min": 3}, "min 3, requested 2, max 2"),
        ({"gpus": 2, "gpus_max": 1}, "min 2, requested 2, max 1"),
        ({"gpus_max": 10**400}, "GPUs"),
        ({"weight": 0.0}, "weight is 0.0"),
        ({"weight": -1.0}, "weight is -1.0"),
        ({"weight": math.nan}, "weight is nan"),
        ({"weight": math.inf}, "weight is inf"),
        ({"estimate_s": -1.0}, "estimate_s is -1.0"),
        ({"deadline": math.nan}, "deadline is nan"),
        ({"budget": math.inf}, "budget is inf"),
        ({"max_restarts": -1}, "max_restarts is -1"),
        ({"priority": 10**400}, "priority"),
        ({"priority": -(10**400)}, "priority"),
    ],
)
def test_a_spec_that_cannot_be_meant_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        JobSpec(**{"id": "a", **fields})
    assert words in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"initial": 0}, "at least 1"),
        ({"initial": 8, "min_per_gpu": 0}, "at least 1"),
        ({"initial": 8, "max_total": 7}, "the largest batch (7) is below the initial one (8)"),
        ({"initial": 8, "min_per_gpu": 4, "max_per_gpu": 3}, "reversed: 4 to 3"),
    ],
)
def test_batch_bounds_that_exclude_each_other_are_refused(fields: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        Batch(**fields)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "", "gpus": 1},
        {"id": "n0", "gpus": 0},
        {"id": "n0", "gpus": 10**30},
        {"id": "n0", "gpus": 1, "price_per_hour": -0.5},
        {"id": "n0", "gpus": 1, "price_per_hour": math.nan},
    ],
)
def test_a_node_that_cannot_exist_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec, match="node"):
        Node(**fields)


@pytest.mark.parametrize(
    ("healthy", "draining", "is_open"),
    [(True, False, True), (True, True, False), (False, False, False), (False, True, False)],
)
def test_only_a_healthy_node_that_is_not_draining_is_open(healthy: bool, draining: bool, is_open: bool) -> None:
    assert Node("n0", 4, healthy=healthy, draining=draining).open is is_open


@pytest.mark.parametrize(
    ("step_s", "sync_s", "steps"),
    [(-1.0, 0.0, 1), (1.0, -1.0, 1), (math.inf, 0.0, 1), (1.0, math.nan, 1), (1.0, 0.0, 0)],
)
def test_a_measurement_is_finite_and_over_at_least_one_step(step_s: float, sync_s: float, steps: int) -> None:
    with pytest.raises(InvalidSpec, match="is no measurement"):
        Observation("gpu", 1, 1, 32, 0, step_s, sync_s, steps)


# -- allocations -----------------------------------------------------------------------------------------------------


@given(gpus_by_node)
def test_an_allocation_is_sorted_whatever_the_order_it_was_given_in(gpus: dict[str, set[int]]) -> None:
    forward = Allocation.of(gpus)
    backward = Allocation.of({node: sorted(gpus[node], reverse=True) for node in reversed(gpus)})
    assert forward == backward
    assert hash(forward) == hash(backward)
    assert list(forward.nodes) == sorted(gpus)
    assert forward.total == sum(map(len, gpus.values()))
    assert bool(forward) == bool(gpus)
    assert forward.masks == tuple((node, sum(1 << gpu for gpu in gpus[node])) for node in sorted(gpus))


@given(gpus_by_node, gpus_by_node)
def test_union_and_difference_are_those_of_sets_of_gpus(one: dict[str, set[int]], two: dict[str, set[int]]) -> None:
    a, b = Allocation.of(one), Allocation.of(two)
    assert as_set(a | b) == as_set(a) | as_set(b)
    assert as_set(a - b) == as_set(a) - as_set(b)
    assert (a | b).total == len(as_set(a) | as_set(b))
    assert a | NOTHING == a == NOTHING | a
    assert a - NOTHING == a
    assert NOTHING - a == NOTHING == a - a


@pytest.mark.parametrize(
    "shares",
    [
        (("n0", ()),),
        (("n0", (1, 0)),),
        (("n0", (0, 0)),),
        (("n0", (-1,)),),
        (("n1", (0,)), ("n0", (0,))),
        (("n0", (0,)), ("n0", (1,))),
        (("", (0,)),),
        (("n0", (10**12,)),),  # as a bit mask it would not fit into memory
    ],
)
def test_shares_that_are_empty_unsorted_repeated_or_absurd_are_no_allocation(shares: Any) -> None:
    with pytest.raises(InvalidSpec, match="is no allocation"):
        Allocation(shares)


def test_an_allocation_reads_well() -> None:
    assert str(Allocation.of({"n1": [3], "n0": [1, 0]})) == "n0[0,1] n1[3]"
    assert str(NOTHING) == "nothing"


# -- jobs ------------------------------------------------------------------------------------------------------------


def test_service_is_gpus_times_the_seconds_it_runs() -> None:
    where, leaving = Allocation.of({"n0": [0, 2]}), Allocation.of({"n0": [1]})
    spec = JobSpec(id="a", gpus=2)
    running = Job(spec, 0.0, phase=Phase.RUNNING, allocation=where, service_gpu_s=10.0, accounted_at=100.0)
    rescaling = replace(running, phase=Phase.RESCALING, releasing=leaving)
    assert (running.service_at(105.0), rescaling.service_at(105.0)) == (20.0, 10.0)
    assert rescaling.held == Allocation.of({"n0": [0, 1, 2]})


def test_run_time_grows_only_while_the_job_runs() -> None:
    spec, where = JobSpec(id="a"), Allocation.of({"n0": [0]})
    for phase in (Phase.STARTING, Phase.RUNNING, Phase.RESCALING):
        job = Job(spec, 0.0, phase=phase, allocation=where, run_s=3.0, accounted_at=10.0)
        assert job.run_at(12.0) == (5.0 if phase is Phase.RUNNING else 3.0)


def test_a_moment_before_the_last_account_adds_nothing() -> None:
    job = Job(JobSpec(id="a"), 0.0, phase=Phase.RUNNING, allocation=Allocation.of({"n0": [0]}), accounted_at=10.0)
    assert (job.service_at(5.0), job.run_at(5.0)) == (0.0, 0.0)
