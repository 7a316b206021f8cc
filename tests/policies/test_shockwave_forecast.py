"""How long a job that changes its batch size still takes: the Dirichlet mixture and its restatement."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.types import Batch, Belief, Job, JobSpec, Observation
from fairlead.policies.shockwave.elastic_bids import calibrated
from fairlead.policies.shockwave.regime_forecast import (
    forecast,
    mixture,
    possible_batches,
    samples_per_s,
    stated_speedup,
)

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


def a_resized_job(*, since_gpus: int, since_s: float) -> Job:
    """Of 4,000 s on the one GPU it asked for, it did a quarter there by its report, and has run on others since."""
    quarter = Belief(progress=0.25, reported_run_s=1000.0, reported_service_gpu_s=1000.0, regimes=((0.0, 16),))
    spec = JobSpec(id="a", gpus=1, gpus_min=1, gpus_max=8, batch=Batch(16))
    service_gpu_s = 1000.0 + since_gpus * since_s
    return Job(spec, 0.0, run_s=1000.0 + since_s, service_gpu_s=service_gpu_s, belief=quarter, gpu_type="v100")


def test_what_a_job_runs_on_after_its_report_does_not_change_what_it_had_done_by_then() -> None:
    expected = forecast(a_resized_job(since_gpus=8, since_s=100.0), 1100.0, speedup=lambda gpus: gpus)
    assert expected.whole_s == pytest.approx(4000.0)
    assert expected.progress == pytest.approx(0.25 + 800.0 / 4000.0)


def test_a_stopped_job_is_believed_to_have_done_what_it_did_on_the_gpus_it_had() -> None:
    expected = forecast(a_resized_job(since_gpus=2, since_s=500.0), 9000.0, speedup=lambda gpus: gpus)
    assert expected.progress == pytest.approx(0.5)


def test_a_stated_run_time_and_progress_elsewhere_tell_how_sizes_compare() -> None:
    spec = JobSpec(id="a", gpus=4, gpus_min=1, gpus_max=8, estimate_s=1000.0, batch=Batch(16))
    tenth = Belief(progress=0.1, reported_run_s=300.0, reported_service_gpu_s=300.0, regimes=((0.0, 16),))
    narrow = Job(spec, 0.0, run_s=300.0, service_gpu_s=300.0, belief=tenth, gpu_type="v100")
    assert stated_speedup(narrow, 300.0) == pytest.approx((1.0, 1 / 3))
    assert stated_speedup(a_resized_job(since_gpus=2, since_s=500.0), 9000.0) is None  # nothing is stated
    # A model that takes 4 GPUs to be no faster than 1 is mended; how 2 GPUs compare with 1 it goes on to tell.
    mended = calibrated([1, 2, 4, 8], np.array([1.0, 1.5, 1.0, 2.6]), 2, ran_on=1.0, speedup=1 / 3)
    assert mended.tolist() == pytest.approx([1 / 3, 0.5, 1.0, 1.0])


@given(st.floats(1e-3, 1e3), st.floats(1.0, 8.0), st.lists(st.floats(0.01, 100.0), min_size=4, max_size=4))
def test_whatever_users_state_more_gpus_are_no_slower_nor_faster_by_more_than_their_number(
    stated: float, ran_on: float, rates: list[float]
) -> None:
    found = calibrated([1, 2, 4, 8], np.array(rates) / rates[2], 2, ran_on=ran_on, speedup=stated)
    assert found[2] == 1.0
    assert (found >= [0.25, 0.5, 1.0, 1.0]).all()
    assert (found <= [1.0, 1.0, 1.0, 2.0]).all()


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
