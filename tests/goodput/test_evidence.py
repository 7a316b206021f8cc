"""A job on a GPU type, of what was measured: its own model, a borrowed one, and its batch; for all who ask alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.core.messages import JobReported
from fairlead.core.types import Batch, Belief, JobSpec, Observation
from fairlead.goodput.evidence import UNLIKE, batch_of, fits_on, ratios_to
from fairlead.goodput.fit import fit
from fairlead.goodput.throughput import ThroughputParams, grad_time, step_time, update_time
from fairlead.policies.appraising import Appraiser
from fairlead.sim.believed import Believer
from fairlead.testing.scenario import job, make_state

TRUTH = ThroughputParams(alpha_c=0.05, beta_c=0.002, alpha_n=0.3, beta_n=0.01, alpha_r=0.1, beta_r=0.005, gamma=1.6)
HALF = TRUTH.faster(0.5, within_node=0.5, between_nodes=0.5)


def measured(gpus: int, gpu_type: str = "fast", *, by: ThroughputParams = TRUTH, batch: int = 64) -> Observation:
    step_s = float(step_time(by, 1, gpus, batch))
    sync_s = float(update_time(by, 1, gpus, batch) - grad_time(by, batch))
    return Observation(gpu_type, 1, gpus, batch, 0, step_s, sync_s, steps=100)


def test_a_declared_batch_goes_before_what_the_script_told_and_that_before_what_was_seen() -> None:
    seen, told, declared = (measured(2),), Batch(128, 1024), Batch(256, 512)
    assert batch_of(JobSpec(id="a", batch=declared), Belief(observations=seen, bounds=told)) == declared
    assert batch_of(JobSpec(id="a"), Belief(observations=seen, bounds=told)) == told
    assert batch_of(JobSpec(id="a"), Belief(observations=seen)) == Batch(128, 128)


def test_what_was_seen_on_several_gpus_of_the_type_is_fitted_and_nothing_is_borrowed() -> None:
    here, there = (measured(1), measured(2)), (measured(1, "slow"), measured(2, "slow"), measured(4, "slow"))
    assert fits_on("fast", [Belief(observations=here + there)]) == [fit(here)]


def test_what_was_seen_on_one_gpu_only_is_borrowed_at_the_speed_that_was_measured_there() -> None:
    there = measured(1), measured(2), measured(4)
    (found,) = fits_on("slow", [Belief(observations=(*there, measured(1, "slow", by=HALF)))])
    source = fit(there).params
    assert float(step_time(found.params, 1, 4, 64)) == pytest.approx(2.0 * float(step_time(source, 1, 4, 64)), rel=1e-3)


def test_a_type_it_was_never_on_goes_by_what_other_models_say_and_else_is_as_fast() -> None:
    belief = Belief(observations=(measured(1), measured(2)))
    here = float(step_time(fit(belief.observations).params, 1, 2, 64))
    (alike,), (slower,) = fits_on("slow", [belief]), fits_on("slow", [belief], ratios=[{"fast": 3.0}])
    assert float(step_time(alike.params, 1, 2, 64)) == pytest.approx(here)
    assert float(step_time(slower.params, 1, 2, 64)) == pytest.approx(3.0 * here)


def test_a_measurement_that_cannot_be_is_held_within_bounds() -> None:
    absurd, sleepy = replace(measured(1, "slow"), step_s=1e9), replace(measured(1, "slow"), step_s=1.0, sync_s=1.0)
    assert ratios_to("slow", [measured(2), absurd]) == {"fast": UNLIKE}
    assert ratios_to("slow", [measured(2), sleepy]) == {"fast": 1.0}


@pytest.mark.parametrize("bounds", [None, Batch(128, 4096, max_per_gpu=256)])
def test_what_is_foretold_of_a_job_scales_as_what_policies_go_by(bounds: Batch | None) -> None:
    state = make_state("fast=1x4,slow=1x4", [job("a", 2, gpus_max=4, on="n0[0,1]")])
    seen = measured(1), measured(2), measured(1, "slow", by=HALF)
    state.apply(JobReported(state.now, "a", 1, 0.1, noise_scale=3000.0, observations=seen, bounds=bounds))
    view = state.snapshot()
    one = view.jobs["a"]
    truth = Believer([one], list(view.nodes.values()), view.lore, view.now).truth(one)
    for gpu_type in ("fast", "slow"):
        (appraisal,) = Appraiser().appraise(view, [one], gpu_type, reach=4, lore=True)
        for gpus in (1, 2, 4):
            assert truth.scaling.at((gpu_type, 1, gpus)).goodput == pytest.approx(appraisal.goodput(1, gpus), rel=0.02)
