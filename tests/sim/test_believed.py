"""What is believed of a job from its promises and reports: how long it takes, and what it takes to start and stop."""

from __future__ import annotations

from typing import Any

import pytest
from measured_views import measured_state, reported

from fairlead.core import messages as m
from fairlead.core.state import State
from fairlead.core.types import Batch, Job, JobSpec, Observation, Phase
from fairlead.sim.believed import Basis, Believer
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.costs import Costs
from fairlead.sim.truth import Setting
from fairlead.testing.scenario import allocation, job, make_state

# -- how long it takes ---------------------------------------------------------------------------------------------


def believed(state: State, job_id: str) -> tuple[Any, float]:
    """(its truth, its progress)"""
    view = state.snapshot()
    believer = Believer(tuple(view.jobs.values()), tuple(view.nodes.values()), view.lore, view.now)
    truth = believer.truth(view.jobs[job_id])
    return truth, believer.progress(view.jobs[job_id], truth)


def test_a_promised_run_time_counts_from_what_has_run() -> None:
    state = make_state("1x2", [job("a", 2, on="n0[0,1]", estimate_s=100.0)], now=30.0)
    truth, progress = believed(state, "a")
    assert (truth.basis, progress) == (Basis.ESTIMATE, pytest.approx(0.3))
    assert truth.remaining_s(progress) == pytest.approx(70.0)


def test_a_promise_on_other_gpus_than_asked_for_is_taken_in_proportion() -> None:
    state = make_state("1x4", [job("a", 1, gpus_max=4, on="n0[0,1]", estimate_s=100.0)], now=10.0)
    truth, progress = believed(state, "a")
    assert progress == pytest.approx(0.2)
    assert [truth.speed(("gpu", 1, k)) for k in (1, 2, 4)] == pytest.approx([0.01, 0.02, 0.04])


def test_what_a_job_reported_outweighs_what_was_promised() -> None:
    state = make_state("1x2", [job("a", 2, on="n0[0,1]", estimate_s=100.0)], now=10.0)
    reported(state, "a", (10.0, 0.01), (20.0, 0.03))
    state.apply(m.Tick(30.0))
    truth, progress = believed(state, "a")
    assert truth.basis is Basis.SPEED
    assert (truth.speed(("gpu", 1, 2)), progress) == pytest.approx((0.002, 0.05))


def test_a_job_of_a_known_model_is_taken_to_be_as_fast_as_the_one_that_was_measured() -> None:
    model = {"labels": {"model": "m"}}
    state = make_state("1x2", [job("a", 1, on="n0[0]", **model), job("b", 1, estimate_s=9.0, **model)], now=10.0)
    reported(state, "a", (10.0, 0.01), (20.0, 0.03))
    truth, progress = believed(state, "b")
    assert (truth.basis, progress) == (Basis.LORE, 0.0)
    assert truth.speed(("gpu", 1, 1)) == pytest.approx(0.002)


def test_a_measured_model_predicts_other_sizes_and_matches_the_speed_that_is_known() -> None:
    state, real = measured_state((1, 2, 4))
    truth, progress = believed(state, "a")

    def expected(gpus: int) -> float:
        where = allocation(f"n0[{','.join(map(str, range(gpus)))}]")
        return real.pace(Setting(0.0, where, "t4")).speed / real.total

    assert truth.speed(("t4", 1, 2)) == pytest.approx(expected(2), rel=1e-9)
    for gpus in (1, 3, 4, 8):
        assert truth.speed(("t4", 1, gpus)) == pytest.approx(expected(gpus), rel=0.1)
    assert truth.speed(("t4", 1, 8)) < 0.95 * 4 * truth.speed(("t4", 1, 2))
    assert progress == pytest.approx(0.1 + 10.0 * expected(2))
    # A type on which nothing was measured is taken to be like the one that was.
    assert truth.speed(("a100", 1, 2)) == pytest.approx(expected(2), rel=1e-6)


def test_a_number_of_gpus_that_no_batch_can_be_split_among_does_not_stop_a_job() -> None:
    state = make_state("1x8", [job("a", 2, gpus_min=1, gpus_max=8, on="n0[0,1]", batch=Batch(4, 4))], now=10.0)
    seen = (Observation("gpu", 1, 2, 2, 0, 0.5, 0.1, 50),)
    reported(state, "a", (10.0, 0.1), (20.0, 0.2), noise_scale=10.0, observations=seen)
    truth, _ = believed(state, "a")
    assert truth.speed(("gpu", 1, 8)) >= truth.speed(("gpu", 1, 2))


# -- what starting and stopping takes ------------------------------------------------------------------------------


def costs_of(job_id: str, *jobs: Job) -> Costs:
    believer = Believer(jobs, parse_cluster("1x4"), {}, 0.0)
    return believer.costs(next(each for each in jobs if each.id == job_id))


def plain(job_id: str, **known: Any) -> Job:
    return Job(JobSpec(id=job_id), 0.0, **known)


def test_costs_that_nobody_measured_are_the_default_ones() -> None:
    found = costs_of("a", plain("a"))
    assert (found.start_s, found.restart_s, found.save_s, found.rescale_s) == (10.0, 25.0, 5.0, 2.0)


def test_costs_are_those_the_job_measured_then_those_of_the_others_then_in_proportion_to_a_start() -> None:
    first, again = plain("a", attempt=1, start_s=4.0), plain("b", attempt=3, start_s=9.0, rescale_s=0.5)
    new = plain("c")
    assert costs_of("a", first) == Costs(start_s=4.0, restart_s=6.0, save_s=2.0, rescale_s=0.8)
    assert costs_of("b", first, again) == Costs(start_s=4.0, restart_s=9.0, save_s=2.0, rescale_s=0.5)
    assert costs_of("c", first, again, new) == Costs(start_s=4.0, restart_s=9.0, save_s=2.0, rescale_s=0.5)
    assert costs_of("c", again, new).start_s == 6.0
    under_way = plain("d", attempt=2, start_s=4.0, phase=Phase.STARTING)
    assert costs_of("d", under_way).restart_s == 6.0  # what it measured was its first start
