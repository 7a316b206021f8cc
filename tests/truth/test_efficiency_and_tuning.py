"""Statistical efficiency, and the best batch for an allocation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.types import Batch
from fairlead.goodput.efficiency import efficiency, gain
from fairlead.goodput.throughput import ThroughputParams, throughput
from fairlead.goodput.tune import CANDIDATES, best_batch, candidates

PARAMS = ThroughputParams(alpha_c=0.1, beta_c=0.01, alpha_n=0.4, beta_n=0.02, alpha_r=0.2, beta_r=0.01, gamma=2.0)
BATCH = Batch(initial=32, max_total=1024, min_per_gpu=8, max_per_gpu=64)

noises = st.floats(1.0, 1e9)
batches = st.integers(1, 1 << 20)


@st.composite
def batch_bounds(draw: st.DrawFn) -> Batch:
    initial = draw(st.integers(1, 200))
    least = draw(st.integers(1, 16))
    return Batch(
        initial=initial,
        max_total=draw(st.none() | st.integers(initial, 4000)),
        min_per_gpu=least,
        max_per_gpu=draw(st.none() | st.integers(least, 300)),
    )


def test_efficiency_halves_where_noise_and_signal_say_so() -> None:
    # (phi + M0) / (phi + M) = (300 + 100) / (300 + 500)
    assert efficiency(300.0, 500, 100) == pytest.approx(0.5)
    assert efficiency(300.0, 100, 100) == 1.0


def test_a_batch_below_the_initial_one_is_worth_no_more_per_sample() -> None:
    assert efficiency(300.0, 50, 100) == 1.0


def test_gain_is_scale_times_efficiency() -> None:
    # sqr 2, var 6, scale 4: (6 + 2) / (6 / 4 + 2) = 16 / 7
    assert gain(2.0, 6.0, 4.0) == pytest.approx(16 / 7)
    assert gain(2.0, 6.0, 4.0) == pytest.approx(4.0 * efficiency(100 * 6 / 2, 400, 100))


def test_gain_is_perfect_where_the_gradient_is_all_noise() -> None:
    assert gain(0.0, 5.0, 8.0) == pytest.approx(8.0)


@given(noises, batches, batches)
def test_efficiency_is_a_share_and_falls_with_the_batch(phi: float, batch: int, initial: int) -> None:
    worth = float(efficiency(phi, batch, initial))
    assert 0.0 < worth <= 1.0
    assert float(efficiency(phi, 2 * batch, initial)) <= worth
    assert float(efficiency(2 * phi, batch, initial)) >= worth


@given(batch_bounds(), st.integers(1, 300), st.integers(1, 20), noises)
def test_the_best_batch_is_within_bounds_and_beats_every_other(batch: Batch, gpus: int, nodes: int, phi: float) -> None:
    m, s, goodput = best_batch(PARAMS, phi, nodes, gpus, batch)
    m_C, s_C = candidates(gpus, batch)
    if goodput == 0.0:
        assert len(m_C) == 0
        return
    assert m >= batch.min_per_gpu
    assert batch.max_per_gpu is None or m <= batch.max_per_gpu
    assert batch.max_total is None or gpus * m * (s + 1) <= batch.max_total
    M_C = gpus * m_C * (s_C + 1)
    all_C = throughput(PARAMS, nodes, gpus, m_C, s_C) * efficiency(phi, M_C, batch.initial)
    assert goodput == np.max(all_C)
    assert goodput <= float(throughput(PARAMS, nodes, gpus, m, s)) * (1.0 + 1e-12)  # arrays round differently


@given(batch_bounds(), st.integers(1, 64), noises)
def test_more_noise_never_lowers_the_best_goodput(batch: Batch, gpus: int, phi: float) -> None:
    assert best_batch(PARAMS, 2 * phi, 1, gpus, batch)[2] >= best_batch(PARAMS, phi, 1, gpus, batch)[2]


@pytest.mark.parametrize(("nodes", "gpus", "phi"), [(1, 1, 100.0), (1, 4, 1e3), (4, 16, 1e5), (2, 3, 10.0)])
def test_every_pair_of_batch_and_accumulation_was_worth_no_more(nodes: int, gpus: int, phi: float) -> None:
    """Against brute force over all m and s, not only those the search thinks worth trying."""
    most = 0.0
    for s in range(40):
        for m in range(8, 65):
            total = gpus * m * (s + 1)
            if 32 <= total <= 1024:
                value = float(throughput(PARAMS, nodes, gpus, m, s) * efficiency(phi, total, 32))
                most = max(most, value)
    assert best_batch(PARAMS, phi, nodes, gpus, BATCH)[2] == pytest.approx(most)


def test_an_initial_batch_beyond_memory_is_accumulated() -> None:
    m, s, goodput = best_batch(PARAMS, 1.0, 1, 1, Batch(initial=256, max_total=256, max_per_gpu=64))
    assert (m, s) == (64, 3)
    assert goodput > 0.0


def test_gpus_that_do_not_divide_a_fixed_batch_get_the_next_smaller_one() -> None:
    m, s, _ = best_batch(PARAMS, 1.0, 1, 6, Batch(initial=128, max_total=128))
    assert (m, s) == (21, 0)


def test_more_gpus_than_the_largest_batch_has_samples_cannot_train() -> None:
    assert best_batch(PARAMS, 1e6, 4, 64, Batch(initial=32, max_total=63))[2] == 0.0
    assert best_batch(PARAMS, 1e6, 4, 64, Batch(initial=32, max_total=256, min_per_gpu=8))[2] == 0.0


def test_without_bounds_the_initial_batch_is_kept() -> None:
    assert best_batch(PARAMS, 1e9, 1, 4, Batch(initial=32))[:2] == (8, 0)


def test_wide_ranges_are_searched_in_steps_that_include_full_gpus() -> None:
    m_C, s_C = candidates(1, Batch(initial=200, max_total=12800, max_per_gpu=200))
    assert len(m_C) < 2 * CANDIDATES
    assert set(range(200, 12801, 200)) <= set((m_C * (s_C + 1)).tolist())


def test_wide_ranges_without_a_per_gpu_bound_are_searched_in_steps() -> None:
    m_C, s_C = candidates(2, Batch(initial=2, max_total=2_000_000))
    assert (m_C[0], m_C[-1], s_C.max()) == (1, 1_000_000, 0)


def test_one_gpu_takes_batches_beyond_the_initial_one_in_several_steps() -> None:
    m_C, s_C = candidates(1, Batch(initial=8, max_total=64))
    assert (s_C[m_C * (s_C + 1) > 8] >= 1).all()
    assert (m_C[0], s_C[0]) == (8, 0)
