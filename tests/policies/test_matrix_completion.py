"""Completion of matrices with gaps."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fairlead.policies.matrix_completion import complete, complete_ratios, usual_ratios

gappy = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8),
    elements=st.one_of(st.floats(-3.0, 3.0), st.just(float("nan"))),
)


@settings(deadline=None)
@given(gappy)
def test_the_whole_matrix_is_finite_and_what_was_measured_stays(known: np.ndarray) -> None:
    filled = complete(known)
    there = np.isfinite(known)
    assert np.isfinite(filled).all()
    np.testing.assert_array_equal(filled[there], known[there])


@settings(deadline=None)
@given(gappy, st.randoms(use_true_random=False))
def test_the_order_of_rows_and_columns_is_no_information(known: np.ndarray, random: object) -> None:
    rows = random.sample(range(known.shape[0]), known.shape[0])  # type: ignore[attr-defined]
    columns = random.sample(range(known.shape[1]), known.shape[1])  # type: ignore[attr-defined]
    plain = complete(known, factors=0)
    np.testing.assert_allclose(complete(known[rows][:, columns], factors=0), plain[rows][:, columns], atol=1e-9)


def test_a_gap_in_a_matrix_of_low_rank_is_found() -> None:
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((20, 2)) @ rng.standard_normal((2, 30))
    known = np.where(rng.random(whole.shape) < 0.8, whole, np.nan)
    error = np.abs(complete(known) - whole)[np.isnan(known)]
    assert np.median(error) < 0.2 * np.abs(whole).mean()


def test_an_empty_row_is_like_the_others() -> None:
    known = np.array([[1.0, 3.0], [1.0, 3.0], [np.nan, np.nan]])
    np.testing.assert_allclose(complete(known, factors=0, shrink=1e-9)[2], [1.0, 3.0], atol=1e-6)


def test_ratios_know_no_unit() -> None:
    """A row in another unit is filled alike, in that unit."""
    known = np.log([[1.0, 2.0, 4.0], [1.0, 2.2, 3.8], [1.0, 1.9, 4.1], [10.0, 21.0, np.nan]])
    filled = complete_ratios(known)
    assert 35.0 < np.exp(filled[3, 2]) < 47.0
    scaled = known.copy()
    scaled[3] += 5.0
    np.testing.assert_allclose(complete_ratios(scaled)[3], filled[3] + 5.0)


def test_a_column_that_was_never_measured_is_as_the_usual_one() -> None:
    known = np.array([[0.0, np.log(2.0), np.nan], [0.0, np.log(2.0), np.nan]])
    usual = usual_ratios(known)
    assert usual[1] - usual[0] == np.log(2.0)
    assert usual[2] == 0.0
    assert np.isfinite(complete_ratios(known)).all()
