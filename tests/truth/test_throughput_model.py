"""The step-time equations against numbers worked out by hand, and what always holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import InvalidSpec
from fairlead.goodput.throughput import ThroughputParams, grad_time, step_time, sync_time, throughput, update_time

PARAMS = ThroughputParams(alpha_c=0.1, beta_c=0.01, alpha_n=0.4, beta_n=0.02, alpha_r=0.2, beta_r=0.01, gamma=2.0)

times = st.floats(1e-6, 10.0)
params_of_any_model = st.builds(ThroughputParams, times, times, times, times, times, times, st.floats(1.0, 10.0))
counts = st.integers(1, 64)


def test_a_pass_has_a_constant_part_and_a_part_per_sample() -> None:
    assert grad_time(PARAMS, 20) == pytest.approx(0.3)


def test_one_gpu_does_not_synchronise() -> None:
    assert sync_time(PARAMS, 1, 1) == 0.0
    assert step_time(PARAMS, 1, 1, 20) == pytest.approx(0.3)


def test_synchronising_costs_more_with_more_gpus_and_between_nodes() -> None:
    assert sync_time(PARAMS, 1, 2) == pytest.approx(0.2)
    assert sync_time(PARAMS, 1, 4) == pytest.approx(0.22)
    assert sync_time(PARAMS, 2, 2) == pytest.approx(0.4)
    assert sync_time(PARAMS, 2, 8) == pytest.approx(0.52)


def test_passes_and_synchronising_overlap_as_gamma_says() -> None:
    # T_grad = 0.3 and T_sync = 0.4 on two nodes: 0.5 with gamma 2, 0.7 without overlap, near 0.4 with most.
    assert update_time(PARAMS, 2, 2, 20) == pytest.approx(0.5)
    assert update_time(replace(PARAMS, gamma=1.0), 2, 2, 20) == pytest.approx(0.7)
    assert update_time(replace(PARAMS, gamma=10.0), 2, 2, 20) == pytest.approx(0.4, rel=0.01)


def test_accumulated_passes_do_not_synchronise() -> None:
    assert step_time(PARAMS, 2, 2, 20, 3) == pytest.approx(3 * 0.3 + 0.5)
    assert throughput(PARAMS, 2, 2, 20, 3) == pytest.approx(2 * 20 * 4 / 1.4)


def test_arrays_of_configurations_are_answered_at_once() -> None:
    step_C = step_time(PARAMS, np.array([1, 1, 2]), np.array([1, 2, 8]), 20, np.array([0, 1, 0]))
    assert step_C == pytest.approx(
        [float(step_time(PARAMS, n, k, 20, s)) for n, k, s in ((1, 1, 0), (1, 2, 1), (2, 8, 0))]
    )


def test_faster_hardware_divides_the_times_it_is_faster_at() -> None:
    fast = PARAMS.faster(2.0, within_node=4.0)
    assert fast == ThroughputParams(0.05, 0.005, 0.4, 0.02, 0.05, 0.0025, 2.0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gamma": 0.5}, "gamma is 0.5"),
        ({"beta_n": -1.0}, "beta_n is -1.0"),
        ({"alpha_r": float("nan")}, "alpha_r is nan"),
        ({"alpha_c": 0.0, "beta_c": 0.0}, "both 0"),
    ],
)
def test_impossible_parameters_are_refused_by_name(change: dict[str, float], says: str) -> None:
    with pytest.raises(InvalidSpec, match=says):
        replace(PARAMS, **change)


@given(params_of_any_model, counts, counts, st.integers(1, 512), st.integers(0, 8))
def test_a_step_takes_time_and_never_less_than_its_parts(
    params: ThroughputParams, nodes: int, gpus: int, m: int, s: int
) -> None:
    step = float(step_time(params, nodes, gpus, m, s))
    grad, sync = float(grad_time(params, m)), float(sync_time(params, nodes, gpus))
    assert step > 0.0
    assert s * grad + max(grad, sync) <= step * (1 + 1e-9)
    assert step <= ((s + 1) * grad + sync) * (1 + 1e-9)


@given(params_of_any_model, counts, counts, st.integers(1, 512), st.integers(0, 8))
def test_larger_batches_take_no_less_time_and_process_no_fewer_samples_per_second(
    params: ThroughputParams, nodes: int, gpus: int, m: int, s: int
) -> None:
    assert step_time(params, nodes, gpus, m + 1, s) >= step_time(params, nodes, gpus, m, s)
    assert step_time(params, nodes, gpus, m, s + 1) >= step_time(params, nodes, gpus, m, s)
    assert throughput(params, nodes, gpus, m + 1, s) >= throughput(params, nodes, gpus, m, s) * (1 - 1e-12)
