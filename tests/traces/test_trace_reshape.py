"""Traces made from traces."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.sim.traces import NodeFailure, Trace, TraceJob, reshape
from fairlead.sim.traces.generate import Workload, generate


def job(id: str, submit_s: float, **fields) -> TraceJob:
    gpus = fields.pop("gpus", 2)
    return TraceJob(**{"id": id, "submit_s": submit_s, "gpus": gpus, "gpus_min": gpus, "gpus_max": gpus, **fields})


TRACE = Trace(
    jobs=(
        job("a", 0, duration_s=100, tenant="red"),
        job("b", 50, duration_s=200, tenant="blue", deadline_s=150),
        job("c", 200, estimate_s=400, tenant="red", gpus=8),
    ),
    format="tiresias",
    source="trace.csv",
    origin=1000.0,
    failures=(NodeFailure(0, 10, 5), NodeFailure(1, 60, 5)),
)


def test_a_window_becomes_second_zero_and_moves_deadlines_and_failures():
    cut = reshape.between(TRACE, from_s=50, until_s=200)
    assert [(job.id, job.submit_s, job.deadline_s) for job in cut.jobs] == [("b", 0, 100)]
    assert cut.origin == 1050
    assert cut.failures == (NodeFailure(1, 10, 5),)


@pytest.mark.parametrize(("from_s", "until_s"), [(-1, 5), (5, 5), (math.nan, 5)])
def test_a_window_that_cannot_be_meant_is_refused(from_s, until_s):
    with pytest.raises(InvalidSpec, match="expected 0 <= from < until"):
        reshape.between(TRACE, from_s=from_s, until_s=until_s)


def test_a_window_without_jobs_is_refused():
    with pytest.raises(InvalidSpec, match="has no jobs between 201 s and inf s; its jobs arrive from 0 s to 200 s"):
        reshape.between(TRACE, from_s=201)


def test_a_window_keeps_an_unknown_origin_unknown():
    assert reshape.between(replace(TRACE, origin=None), from_s=50).origin is None


def test_tenants_are_kept_by_name():
    assert [job.id for job in reshape.of_tenants(TRACE, ["red"]).jobs] == ["a", "c"]


def test_an_unknown_tenant_suggests_a_near_one():
    with pytest.raises(InvalidSpec, match=r"no tenant 'bleu'; did you mean 'blue'\? Tenants: blue, red"):
        reshape.of_tenants(TRACE, ["bleu"])
    with pytest.raises(InvalidSpec, match="has no jobs of no tenant"):
        reshape.of_tenants(TRACE, [])


def test_the_first_jobs_are_the_earliest():
    assert [job.id for job in reshape.first(TRACE, 2).jobs] == ["a", "b"]
    with pytest.raises(InvalidSpec, match="jobs is 0; expected a number of at least 1"):
        reshape.first(TRACE, 0)


def test_scaling_arrivals_compresses_them_and_keeps_slack():
    scaled = reshape.scale_arrivals(TRACE, 2)
    assert [job.submit_s for job in scaled.jobs] == [0, 25, 100]
    assert scaled.jobs[1].deadline_s == 125
    for factor in (0, -1, math.nan, math.inf):
        with pytest.raises(InvalidSpec, match="the arrival factor is"):
            reshape.scale_arrivals(TRACE, factor)


def test_resampling_gives_new_ids_and_repeats_with_its_seed():
    drawn = reshape.resample(TRACE, 50, seed=3)
    assert [job.id for job in drawn.jobs] == [str(number) for number in range(50)]
    assert {job.labels["resampled_from"] for job in drawn.jobs} <= {"a", "b", "c"}
    assert [job.submit_s for job in drawn.jobs] == sorted(job.submit_s for job in drawn.jobs)
    assert all(0 <= job.submit_s <= 200 for job in drawn.jobs)
    assert drawn == reshape.resample(TRACE, 50, seed=3)
    assert drawn != reshape.resample(TRACE, 50, seed=4)
    assert len(TRACE.jobs) == 3


def test_resampling_preserves_the_hours_at_which_jobs_arrive():
    made = generate(Workload(jobs=5000, load=1, gpus=64, daily_swing=1, session_jobs=1))
    drawn = reshape.resample(made, 5000, seed=1)
    hours = [np.bincount([int(job.submit_s // 3600 % 24) for job in t.jobs], minlength=24) for t in (made, drawn)]
    assert np.corrcoef(hours[0], hours[1])[0, 1] > 0.95


def test_a_negative_seed_is_refused():
    with pytest.raises(InvalidSpec, match="seed is -1"):
        reshape.resample(TRACE, 5, seed=-1)


def test_jobs_become_applications_of_about_their_gpu_time():
    made = replace(
        TRACE, jobs=(job("s", 0, duration_s=60), job("l", 1, duration_s=50_000), job("x", 2, duration_s=1e6))
    )
    mapped = reshape.map_applications(made, {"ncf": 500, "imagenet": 350_000, "yolo": 90_000}, seed=0)
    assert [job.model for job in mapped.jobs[::2]] == ["ncf", "imagenet"]
    assert mapped.jobs[1].model in {"imagenet", "yolo"}
    assert all(job.duration_s is None and job.steps is None for job in mapped.jobs)
    assert mapped.jobs[0].labels["gpu_s"] == "120"


def test_applications_need_names_and_positive_work():
    with pytest.raises(InvalidSpec, match="no applications were given"):
        reshape.map_applications(TRACE, {}, seed=0)
    with pytest.raises(InvalidSpec, match="GPU-seconds of 'x' is 0"):
        reshape.map_applications(TRACE, {"x": 0}, seed=0)


def test_deadlines_are_a_factor_of_the_duration_or_estimate_after_submission():
    made = reshape.add_deadlines(TRACE, [2.0], seed=0)
    assert [job.deadline_s for job in made.jobs] == [200, 450, 1000]
    several = reshape.add_deadlines(TRACE, [1.5, 3], seed=0)
    assert several == reshape.add_deadlines(TRACE, [1.5, 3], seed=0)


def test_deadlines_need_factors_and_lengths():
    with pytest.raises(InvalidSpec, match="no deadline factors were given"):
        reshape.add_deadlines(TRACE, [], seed=0)
    with pytest.raises(InvalidSpec, match="a deadline factor is -1"):
        reshape.add_deadlines(TRACE, [-1], seed=0)
    with pytest.raises(InvalidSpec, match="job 'x' has neither a duration nor an estimate"):
        reshape.add_deadlines(replace(TRACE, jobs=(job("x", 0),)), [2], seed=0)


def test_elasticity_rounds_outwards():
    made = reshape.add_elasticity(replace(TRACE, jobs=(job("a", 0, gpus=1), job("b", 0, gpus=5))), shrink=0.5, grow=1.5)
    assert [(job.gpus_min, job.gpus, job.gpus_max) for job in made.jobs] == [(1, 1, 2), (2, 5, 8)]
    for shrink, grow in ((0, 2), (2, 2), (0.5, 0.9), (0.5, math.nan)):
        with pytest.raises(InvalidSpec, match="expected 0 < shrink <= 1 <= grow"):
            reshape.add_elasticity(TRACE, shrink=shrink, grow=grow)


def test_injected_failures_come_in_order_within_the_horizon():
    made = reshape.inject_failures(TRACE, nodes=4, mtbf_s=1000, repair_s=100, seed=1, horizon_s=50_000)
    times = [failure.at_s for failure in made.failures]
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] < 50_000
    assert {failure.node for failure in made.failures} == {0, 1, 2, 3}
    assert 100 < len(times) < 300
    for node in range(4):
        own = [failure for failure in made.failures if failure.node == node]
        assert all(early.at_s + early.repair_s <= late.at_s for early, late in pairwise(own))


def test_a_nodes_failures_do_not_depend_on_the_other_nodes():
    few = reshape.inject_failures(TRACE, nodes=1, mtbf_s=50, repair_s=1, seed=1)
    many = reshape.inject_failures(TRACE, nodes=3, mtbf_s=50, repair_s=1, seed=1)
    assert few.failures == tuple(failure for failure in many.failures if failure.node == 0)
    assert max(failure.at_s for failure in many.failures) < 600


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"mtbf_s": 0}, {"repair_s": -1}, {"horizon_s": -1}, {"mtbf_s": 1e-3}])
def test_failures_that_cannot_be_meant_are_refused(wrong):
    with pytest.raises(InvalidSpec, match="expected"):
        reshape.inject_failures(TRACE, **{"nodes": 4, "mtbf_s": 10, "repair_s": 0, "seed": 1, **wrong})
