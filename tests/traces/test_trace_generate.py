"""Synthetic traces."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.errors import InvalidSpec
from fairlead.sim.cluster import nodes_of_four
from fairlead.sim.traces.describe import describe
from fairlead.sim.traces.generate import Workload, generate


def test_equal_workloads_give_equal_traces_and_other_seeds_others():
    workload = Workload(jobs=200, load=0.8)
    assert generate(workload) == generate(workload)
    assert generate(workload) != generate(Workload(jobs=200, load=0.8, seed=1))


@pytest.mark.parametrize("load", [0.3, 1.0, 2.5])
def test_the_load_is_what_was_asked_for(load):
    found = describe(generate(Workload(jobs=3000, load=load, gpus=128)), nodes=nodes_of_four(128))
    assert found.load == pytest.approx(load, rel=0.02)


def test_the_rate_is_what_was_asked_for():
    assert describe(generate(Workload(jobs=3000, rate_per_h=20))).arrivals_per_h == pytest.approx(20, rel=0.02)


def test_jobs_look_like_phillys():
    found = describe(generate(Workload(jobs=20_000, load=1, gpus=512, tenants=5)))
    assert 0.9 < found.gpu_counts[1] / found.jobs < 0.96
    assert set(found.gpu_counts) <= {1, 2, 4, 8, 16, 32}
    assert 300 < found.duration_s.p50 < 1500
    assert found.duration_s.mean > 5 * found.duration_s.p50  # a heavy tail
    assert found.interarrival_s.cv > 1.5  # burstier than a Poisson process
    shares = list(found.tenants.values())
    assert len(shares) == 5
    assert shares[0] > 2 * shares[-1]


def test_without_sessions_and_cycles_arrivals_are_poisson():
    workload = Workload(jobs=10_000, rate_per_h=30, session_jobs=1, daily_swing=0, weekend=1)
    assert describe(generate(workload)).interarrival_s.cv == pytest.approx(1, abs=0.05)


def test_afternoons_are_busier_than_nights_and_weekends_are_quiet():
    submit_s = np.array([job.submit_s for job in generate(Workload(jobs=30_000, rate_per_h=40, session_jobs=1)).jobs])
    by_hour = np.bincount((submit_s // 3600 % 24).astype(int), minlength=24)
    assert by_hour[15] > 2 * by_hour[3]
    by_day = np.bincount((submit_s // 86400 % 7).astype(int), minlength=7)
    assert by_day[5:].mean() < 0.6 * by_day[:5].mean()


def test_no_job_asks_for_more_than_the_cluster_has():
    assert max(job.gpus for job in generate(Workload(jobs=3000, load=1, gpus=4)).jobs) == 4


@settings(deadline=None)
@given(
    jobs=st.integers(1, 60),
    gpus=st.integers(1, 100),
    load=st.floats(0.01, 10),
    session_jobs=st.floats(1, 50),
    seed=st.integers(0, 2**32),
)
def test_any_workload_gives_its_jobs_in_order(jobs, gpus, load, session_jobs, seed):
    trace = generate(Workload(jobs=jobs, gpus=gpus, load=load, session_jobs=session_jobs, seed=seed))
    assert [job.id for job in trace.jobs] == [str(number) for number in range(jobs)]
    times = [job.submit_s for job in trace.jobs]
    assert times == sorted(times)
    assert times[0] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"load": None},
        {"rate_per_h": 3},
        {"load": 0},
        {"load": math.nan},
        {"jobs": 0},
        {"gpus": 0},
        {"tenants": 0},
        {"session_jobs": 0.5},
        {"run_sigma": -1},
        {"trial_share": 1.5},
        {"daily_swing": -0.1},
        {"weekend": -1},
        {"seed": -1},
        {"sizes": ()},
        {"sizes": ((128, 1.0),)},
        {"sizes": ((0, 1.0),)},
        {"sizes": ((1, 1.0), (2, -1.0))},
    ],
)
def test_a_workload_that_cannot_be_meant_is_refused(wrong):
    with pytest.raises(InvalidSpec, match=r"expected|exactly one"):
        Workload(**{"load": 1.0, **wrong})


def test_sizes_beyond_the_cluster_are_refused_if_they_were_asked_for():
    with pytest.raises(InvalidSpec, match=r"jobs of 16 and 32 GPUs do not fit the cluster's 8, and the mix"):
        Workload(load=1.0, gpus=8, sizes=((1, 0.5), (16, 0.3), (32, 0.2)))
    assert Workload(load=1.0, gpus=8, sizes=((1, 1.0), (16, 0.0))).too_large == ()
    assert Workload(load=1.0, gpus=8).too_large == (16, 32)
