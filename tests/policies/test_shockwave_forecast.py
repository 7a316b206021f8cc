"""How long a job that changes its batch size still takes: the Dirichlet mixture and its restatement."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.types import Batch, Belief, Job, JobSpec, Observation
from fairlead.policies.shockwave.regime_forecast import forecast, mixture, possible_batches, samples_per_s

BATCHES = st.lists(st.sampled_from([8, 16, 32, 64, 128]), min_size=1, max_size=4, unique=True).map(sorted)


def told(batch: int, step_s: float, gpus: int = 1) -> Observation:
    return Observation("v100", 1, gpus, batch // gpus, 0, step_s, 0.0)


def a_job(*, estimate_s: float | None = None, run_s: float = 0.0, belief: Belief | None = None) -> Job:
    spec = JobSpec(id="a", estimate_s=estimate_s, batch=Batch(16))
    return Job(spec, 0.0, run_s=run_s, service_gpu_s=run_s, belief=belief or Belief(), gpu_type="v100")


def test_before_any_work_every_batch_size_is_expected_to_do_an_equal_share() -> None:
    prior = mixture((16, 32, 64), (), 0.0)
    assert prior.left_B.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert prior.remaining(np.array([300.0, 200.0, 100.0]))[0] == pytest.approx(200.0)


def test_the_restatement_of_the_paper_is_followed_by_hand() -> None:
    """E = 100 epochs, two batch sizes, 20 epochs done at the first: 100 (50 + 20) / 120 - 20 and 100 x 50 / 120."""
    after = mixture((16, 32), [(0.0, 16)], 0.2, epochs=100)
    left = np.array([100 * 70 / 120 - 20, 100 * 50 / 120])
    assert after.left_B.tolist() == pytest.approx((left / left.sum() * 0.8).tolist())
    assert after.concentration == pytest.approx(120.0)


@given(batches=BATCHES, progress=st.floats(0.0, 1.0), cut=st.floats(0.0, 1.0))
def test_what_is_done_and_what_is_left_is_all_the_work(batches: list[int], progress: float, cut: float) -> None:
    regimes = [(0.0, batches[0]), (cut, batches[-1])]
    found = mixture(batches, regimes, progress)
    assert float(found.done_B.sum()) == pytest.approx(progress)
    assert found.left == pytest.approx(1.0 - progress)
    assert (found.left_B >= 0.0).all()
    remaining, spread = found.remaining(np.linspace(300.0, 100.0, len(found.batches)))
    assert 100.0 * found.left - 1e-6 <= remaining <= 300.0 * found.left + 1e-6
    assert 0.0 <= spread <= 200.0 * found.left + 1e-6


@given(progress=st.floats(0.0, 0.9), more=st.floats(0.01, 0.1))
def test_uncertainty_shrinks_as_work_is_done(progress: float, more: float) -> None:
    whole_B = np.array([300.0, 100.0])
    early, late = (mixture((16, 32), [(0.0, 16)], done).remaining(whole_B)[1] for done in (progress, progress + more))
    assert late < early or early == 0.0  # the other batch size is all that is left


def test_a_batch_size_that_was_not_foreseen_is_added_when_it_is_reported() -> None:
    assert mixture((16,), [(0.0, 16), (0.5, 128)], 0.6).batches == (16, 128)


def test_batch_sizes_come_from_the_spec_and_the_reports_and_from_nowhere_else() -> None:
    spec = JobSpec(id="a", batch=Batch(16, max_total=100))
    assert possible_batches(spec, Belief()) == (16, 32, 64, 100)
    assert possible_batches(JobSpec(id="a", batch=Batch(16)), Belief(regimes=((0.0, 16), (0.3, 48)))) == (16, 48)
    assert possible_batches(JobSpec(id="a"), Belief()) == ()


def test_step_times_of_other_batches_lie_on_the_line_through_those_that_were_measured() -> None:
    measured = [told(16, 0.1 + 0.016), told(64, 0.1 + 0.064)]
    speed_B = samples_per_s((16, 32, 128), measured, 1)
    assert speed_B is not None
    assert speed_B.tolist() == pytest.approx([16 / 0.116, 32 / 0.132, 128 / 0.228])
    assert samples_per_s((16, 32), measured, 2) is None


def test_a_stated_run_time_counts_until_work_is_seen() -> None:
    assert forecast(a_job(estimate_s=1000.0), 0.0).remaining_s == pytest.approx(1000.0)
    half = Belief(progress=0.5, reported_run_s=1000.0, regimes=((0.0, 16),))
    expected = forecast(a_job(estimate_s=1000.0, run_s=1000.0, belief=half), 1000.0)
    assert expected.remaining_s == pytest.approx(1000.0, rel=0.02)
    assert expected.whole_s == pytest.approx(2000.0, rel=0.02)


def test_a_faster_regime_shortens_what_is_left() -> None:
    seen = (told(16, 0.1), told(64, 0.2))  # twice the samples per second
    belief = Belief(progress=0.5, reported_run_s=1000.0, regimes=((0.0, 16), (0.5, 64)), observations=seen)
    expected = forecast(a_job(run_s=1000.0, belief=belief), 1000.0)
    assert 500.0 < expected.remaining_s < 1000.0  # all of it at 64, and all of it at 16


def test_of_a_job_that_tells_nothing_as_long_again_is_expected_as_it_has_run() -> None:
    expected = forecast(a_job(run_s=300.0), 300.0)
    assert (expected.remaining_s, expected.guessed) == (300.0, True)


def test_an_oracle_knows_the_batch_sizes_but_not_for_how_long_they_are_used() -> None:
    expected = forecast(a_job(), 0.0, oracle_s={16: 400.0, 128: 200.0})
    assert expected.remaining_s == pytest.approx(300.0)
