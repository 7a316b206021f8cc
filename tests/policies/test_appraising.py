"""What a job would achieve with other GPUs: what is known, what is borrowed, and that memory changes no answer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.core.messages import JobReported, JobStopped, Stop
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Batch, Belief, Observation, Speed
from fairlead.goodput.curves import Curve, Model, curves
from fairlead.goodput.fit import fit
from fairlead.goodput.throughput import ThroughputParams, grad_time, step_time, update_time
from fairlead.policies.appraising import GROWTH, Appraisal, Appraiser, work_left
from fairlead.testing import job, make_state, make_view
from fairlead.testing.history import History, histories

TRUTH = ThroughputParams(alpha_c=0.05, beta_c=0.002, alpha_n=0.3, beta_n=0.01, alpha_r=0.1, beta_r=0.005, gamma=1.6)
SLOWER = TRUTH.faster(0.5, within_node=0.5, between_nodes=0.5)
BATCH = Batch(128, 4096, max_per_gpu=256)


def measured(
    gpus: int, per_gpu_batch: int = 64, *, nodes: int = 1, gpu_type: str = "gpu", by: ThroughputParams = TRUTH
) -> Observation:
    """What a perfect profiler reports."""
    step_s = float(step_time(by, nodes, gpus, per_gpu_batch))
    sync_s = float(update_time(by, nodes, gpus, per_gpu_batch) - grad_time(by, per_gpu_batch))
    return Observation(gpu_type, nodes, gpus, per_gpu_batch, 0, step_s, sync_s, steps=100)


def report(state: State, job_id: str, *observations: Observation, progress: float = 0.0, **more: Any) -> State:
    attempt = state.live[job_id].attempt
    state.apply(JobReported(state.now, job_id, attempt, progress, observations=observations, **more))
    return state


def stop(state: State, job_id: str) -> State:
    state.issue(Stop(state.now, job_id, state.live[job_id].attempt))
    state.apply(JobStopped(state.now, job_id, state.live[job_id].attempt))
    return state


def appraise(
    view: Snapshot, job_id: str = "a", *, gpu_type: str = "gpu", reach: int = 1, lore: bool = True
) -> Appraisal:
    (found,) = Appraiser().appraise(view, [view.jobs[job_id]], gpu_type, reach=reach, lore=lore)
    return found


def assert_same(one: Appraisal, other: Appraisal) -> None:
    np.testing.assert_array_equal(one.curve.one_K, other.curve.one_K)
    np.testing.assert_array_equal(one.curve.many_K, other.curve.many_K)
    assert (one.most, one.fit) == (other.most, other.fit)


def expected_curve(observations: Sequence[Observation], noise_scale: float, batch: Batch, most: int) -> Curve:
    (found,) = curves([Model(fit(observations).params, noise_scale, batch)], [most])
    return found


# -- one job -----------------------------------------------------------------------------------------------------------


def test_a_job_of_which_nothing_is_known_scales_perfectly() -> None:
    found = appraise(make_view("2x4", [job("a", gpus_max=8)]), reach=8)
    assert found.curve.one_K.tolist() == list(range(9))
    assert found.curve.many_K.tolist() == [0, 0, *range(2, 9)]
    assert found.fit is None


def test_a_job_that_was_measured_has_the_curve_of_its_fit_its_noise_scale_and_its_batch() -> None:
    state = make_state("2x4", [job("a", 2, gpus_max=8, on="n0[0,1]", batch=BATCH)])
    observations = measured(2, 64), measured(2, 128)
    report(state, "a", *observations, noise_scale=2000.0)
    found = appraise(state.snapshot())
    expected = expected_curve(observations, 2000.0, BATCH, 4)
    assert found.fit == fit(observations)
    np.testing.assert_array_equal(found.curve.one_K, expected.one_K)
    np.testing.assert_array_equal(found.curve.many_K, expected.many_K)
    assert (found.goodput(1, 3), found.goodput(2, 3)) == (expected.one_K[3], expected.many_K[3])


def test_without_a_noise_scale_a_larger_batch_is_worth_no_more_than_the_initial_one() -> None:
    state = report(make_state("1x4", [job("a", on="n0[0]", batch=BATCH)]), "a", measured(1))
    np.testing.assert_array_equal(
        appraise(state.snapshot()).curve.one_K, expected_curve([measured(1)], 0.0, BATCH, 1).one_K
    )


def test_a_job_that_never_said_what_its_batch_may_be_keeps_what_it_was_first_seen_with() -> None:
    state = make_state("1x4", [job("a", 2, gpus_max=4, on="n0[0,1]")])
    report(state, "a", measured(2, 64), noise_scale=1e6)
    report(state, "a", measured(2, 128))
    found = appraise(state.snapshot())
    expected = expected_curve([measured(2, 64), measured(2, 128)], 1e6, Batch(128, 128), 4)
    np.testing.assert_array_equal(found.curve.one_K, expected.one_K)


@pytest.mark.parametrize("reach", [1, 2, 3, 8, 9, 33])
def test_a_curve_goes_as_far_as_it_must_and_beyond_its_end_nothing_changes(reach: int) -> None:
    state = report(make_state("2x4", [job("a", on="n0[0]", gpus_max=4)]), "a", measured(1))
    for view in (state.snapshot(), make_view("2x4", [job("a", gpus_max=4)])):
        found = appraise(view, reach=reach)
        assert len(found.curve.one_K) > max(reach, found.most)
        assert found.goodput(1, 10**6) == found.curve.one_K[-1]


# -- how far it may grow -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("least", "most", "held", "seen", "expected"),
    [
        (1, 16, 0, 0, 1),  # begins with the fewest
        (4, 16, 0, 0, 4),
        (1, 16, 2, 0, 4),  # twice what it holds
        (1, 16, 2, 2, 4),
        (1, 16, 0, 4, 8),  # twice what was measured
        (1, 16, 1, 4, 8),
        (1, 16, 4, 1, 8),
        (1, 3, 2, 2, 3),  # as its user says
        (6, 16, 6, 0, 12),
        (6, 8, 6, 6, 8),
        (4, 4, 4, 4, 4),
        (8, 16, 0, 2, 8),
    ],
)
def test_a_job_grows_to_twice_what_it_was_measured_on_or_holds_within_its_limits(
    least: int, most: int, held: int, seen: int, expected: int
) -> None:
    where = f"n0[{','.join(map(str, range(max(held, least))))}]"
    state = make_state("1x16", [job("a", least, gpus_max=most, on=where)])
    if seen:
        report(state, "a", measured(seen))
    if not held:
        stop(state, "a")
    assert state.live["a"].allocation.total == held
    assert appraise(state.snapshot()).most == expected
    assert GROWTH == 2


def test_what_was_measured_on_another_gpu_type_is_no_reason_to_grow_on_this_one() -> None:
    state = make_state("v100=1x8,t4=1x8", [job("a", gpus_max=8, on="n0[0]")])
    report(state, "a", measured(4, gpu_type="v100"))
    view = state.snapshot()
    assert appraise(view, gpu_type="v100").most == 8
    assert appraise(view, gpu_type="t4").most == 2  # twice what it holds


# -- lore --------------------------------------------------------------------------------------------------------------

RESNET = {"model": "resnet"}


def taught(*observations: Observation, **more: Any) -> State:
    """`a` waits; `teacher`, of the same model, has measured; so has `other`, of another one."""
    jobs = [
        job("a", gpus_max=16, batch=BATCH, labels=RESNET),
        job("teacher", gpus_max=16, on="n0[0]", batch=BATCH, labels=RESNET),
        job("other", gpus_max=16, on="n0[1]", batch=BATCH, labels={"model": "bert"}),
        job("unlabelled", gpus_max=16, batch=BATCH),
    ]
    state = make_state("2x8", jobs)
    report(state, "other", measured(8, by=SLOWER), noise_scale=77.0)
    return report(state, "teacher", *observations, **more)


def test_a_job_that_measured_nothing_expects_what_another_of_its_model_measured() -> None:
    observations = measured(1), measured(4)
    view = taught(*observations, noise_scale=500.0).snapshot()
    found = appraise(view)
    assert found.fit == fit(observations)
    assert found.most == 8
    np.testing.assert_array_equal(found.curve.one_K, expected_curve(observations, 500.0, BATCH, 8).one_K)


def test_lore_is_used_only_if_asked_for() -> None:
    found = appraise(taught(measured(4), noise_scale=500.0).snapshot(), lore=False)
    assert (found.fit, found.most) == (None, 1)


def test_a_job_without_a_model_and_one_of_a_model_that_nobody_knows_learn_from_nobody() -> None:
    view = taught(measured(4)).snapshot()
    assert appraise(view, "unlabelled").fit is None
    strange = replace(view.jobs["a"], spec=replace(view.jobs["a"].spec, labels={"model": "gpt"}))
    (found,) = Appraiser().appraise(view, [strange], "gpu", reach=1, lore=True)
    assert found.fit is None


def test_what_a_job_measured_itself_is_not_replaced_by_lore_and_what_it_lacks_is_filled_in() -> None:
    state = make_state(
        "2x8",
        [
            job("a", gpus_max=16, on="n1[0]", batch=BATCH, labels=RESNET),
            job("teacher", gpus_max=16, on="n0[0]", batch=BATCH, labels=RESNET),
        ],
    )
    report(state, "a", measured(1, by=SLOWER), noise_scale=10.0)
    report(state, "teacher", measured(1), measured(1, 128), measured(4), measured(4, nodes=2), noise_scale=500.0)
    view = state.snapshot()
    own, rest = measured(1, by=SLOWER), (measured(4), measured(4, nodes=2))
    found = appraise(view)
    assert found.fit == fit([own, *rest])
    np.testing.assert_array_equal(found.curve.many_K, expected_curve([own, *rest], 10.0, BATCH, 8).many_K)
    assert appraise(view, lore=False).fit == fit([own])


def test_the_noise_scale_of_the_model_serves_a_job_that_has_none() -> None:
    state = taught(measured(1), noise_scale=500.0)
    stop(state, "teacher")
    view = state.snapshot()
    measuring = replace(view.jobs["a"], belief=Belief(observations=(measured(1),)))
    (found,) = Appraiser().appraise(view, [measuring], "gpu", reach=1, lore=True)
    np.testing.assert_array_equal(found.curve.one_K, expected_curve([measured(1)], 500.0, BATCH, 2).one_K)


# -- several GPU types -------------------------------------------------------------------------------------------------


def believing(view: Snapshot, job_id: str = "a", **belief: Any) -> Snapshot:
    believes = replace(view.jobs[job_id], belief=Belief(**belief))
    return replace(view, jobs={**view.jobs, job_id: believes})


def test_on_a_gpu_type_it_was_never_on_a_job_is_taken_to_be_as_fast_as_where_it_is_known() -> None:
    view = make_view("v100=1x8,t4=1x8", [job("a", gpus_max=8, batch=BATCH)])
    view = believing(view, observations=(measured(1, gpu_type="v100"), measured(4, gpu_type="v100")))
    known, guessed = appraise(view, gpu_type="v100", reach=8), appraise(view, gpu_type="t4", reach=8)
    np.testing.assert_allclose(guessed.curve.one_K, known.curve.one_K)


def test_one_measurement_on_one_gpu_tells_how_much_slower_a_gpu_type_is_for_any_number() -> None:
    view = make_view("v100=1x8,t4=1x8", [job("a", gpus_max=8, batch=BATCH)])
    on_v100 = measured(1, gpu_type="v100"), measured(1, 128, gpu_type="v100"), measured(4, gpu_type="v100")
    view = believing(view, observations=(*on_v100, measured(1, gpu_type="t4", by=SLOWER)))
    known, borrowed = appraise(view, gpu_type="v100", reach=8), appraise(view, gpu_type="t4", reach=8)
    np.testing.assert_allclose(borrowed.curve.one_K, 0.5 * known.curve.one_K, rtol=0.02)
    np.testing.assert_allclose(borrowed.curve.many_K, 0.5 * known.curve.many_K, rtol=0.02)


def test_what_was_measured_on_several_gpus_of_a_type_is_not_borrowed() -> None:
    view = make_view("v100=1x8,t4=1x8", [job("a", gpus_max=8, batch=BATCH)])
    on_t4 = measured(1, gpu_type="t4", by=SLOWER), measured(2, gpu_type="t4", by=SLOWER)
    view = believing(view, observations=(measured(1, gpu_type="v100"), measured(4, gpu_type="v100"), *on_t4))
    assert appraise(view, gpu_type="t4").fit == fit(on_t4)


def both_types(model: str) -> dict[str, Belief]:
    on_v100 = measured(1, gpu_type="v100"), measured(4, gpu_type="v100")
    return {model: Belief(observations=(*on_v100, measured(1, gpu_type="t4", by=SLOWER)))}


def test_how_much_slower_a_gpu_type_is_is_learned_from_other_models_that_ran_on_both() -> None:
    view = make_view("v100=1x8,t4=1x8", [job("a", gpus_max=8, batch=BATCH)])
    view = believing(view, observations=(measured(1, gpu_type="v100"), measured(4, gpu_type="v100")))
    view = replace(view, lore=both_types("bert"))
    known, borrowed = appraise(view, gpu_type="v100", reach=8), appraise(view, gpu_type="t4", reach=8)
    np.testing.assert_allclose(borrowed.curve.one_K, 0.5 * known.curve.one_K, rtol=0.05)  # to two digits


# -- memory ------------------------------------------------------------------------------------------------------------


def learning(history: History, seed: int) -> Iterator[Snapshot]:
    """The snapshots of a history in which now and then a job, or a model, has learned something."""
    draw = random.Random(seed)
    beliefs: dict[str, Belief] = {}
    lore: dict[str, Belief] = {}
    batches = {spec.id: draw.choice([None, BATCH, Batch(32)]) for spec in history.specs}
    models = {spec.id: draw.choice([{}, {"model": "x"}, {"model": "y"}]) for spec in history.specs}

    def observation(gpu_types: Sequence[str]) -> Observation:
        nodes, gpus = draw.choice([(1, 1), (1, 2), (1, 3), (2, 2), (2, 4)])
        by = draw.choice([TRUTH, SLOWER])
        return measured(gpus, draw.choice([16, 64]), nodes=nodes, gpu_type=draw.choice(gpu_types), by=by)

    for view in history.views():
        gpu_types = view.node_columns.gpu_types
        for known, names in ((beliefs, list(view.jobs)), (lore, ["x", "y"])):
            for name in names:
                if draw.random() < 0.15:
                    old = known.get(name, Belief())
                    by_place = {(o.gpu_type, o.nodes, o.gpus): o for o in (*old.observations, observation(gpu_types))}
                    noise_scale = draw.choice([old.noise_scale, 500.0, 9000.0])
                    known[name] = replace(old, observations=tuple(by_place.values()), noise_scale=noise_scale)
        jobs = {
            job_id: replace(
                job,
                spec=replace(job.spec, batch=batches[job_id], labels=models[job_id]),
                belief=beliefs.get(job_id, Belief()),
            )
            for job_id, job in view.jobs.items()
        }
        yield replace(view, jobs=jobs, lore=dict(lore))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories(), st.integers(0, 2**32), st.booleans())
def test_an_appraiser_that_saw_other_moments_says_the_same_as_a_new_one(
    history: History, seed: int, lore: bool
) -> None:
    experienced = Appraiser()
    for step, view in enumerate(learning(history, seed)):
        jobs = list(view.jobs.values())
        for gpu_type in view.node_columns.gpu_types:
            asked = {"reach": (1, 2, 5)[step // 7 % 3], "lore": lore}
            old = experienced.appraise(view, jobs, gpu_type, **asked)
            new = Appraiser().appraise(view, jobs, gpu_type, **asked)
            for one, other in zip(old, new, strict=True):
                assert_same(one, other)


def test_asked_with_and_without_lore_in_turn_it_answers_each() -> None:
    view, appraiser = taught(measured(4)).snapshot(), Appraiser()
    for _ in range(2):
        for lore in (True, False):
            (found,) = appraiser.appraise(view, [view.jobs["a"]], "gpu", reach=1, lore=lore)
            assert_same(found, appraise(view, lore=lore))


def test_another_job_of_the_same_id_is_another_job() -> None:
    """As when one policy object is used for two clusters, or in two tests."""
    appraiser = Appraiser()
    for most in (4, 8):
        state = make_state("1x8", [job("a", gpus_max=most, on="n0[0,1,2,3]")])
        view = state.snapshot()
        (found,) = appraiser.appraise(view, [view.jobs["a"]], "gpu", reach=1, lore=False)
        assert found.most == most


def test_jobs_that_are_gone_are_forgotten() -> None:
    appraiser = Appraiser()
    for number in range(300):
        view = make_view("1x4", [job(f"j{number}")])
        appraiser.appraise(view, list(view.jobs.values()), "gpu", reach=1, lore=True)
    assert len(appraiser._known) <= 8 + 64


def test_jobs_that_are_asked_about_together_have_the_answers_they_have_alone() -> None:
    view = taught(measured(1), measured(4), noise_scale=500.0).snapshot()
    jobs = list(view.jobs.values())
    together = Appraiser().appraise(view, jobs, "gpu", reach=4, lore=True)
    for one, found in zip(jobs, together, strict=True):
        assert_same(found, appraise(view, one.id, reach=4))


def test_answers_come_in_the_order_of_the_question() -> None:
    view, appraiser = taught(measured(4)).snapshot(), Appraiser()
    jobs = list(view.jobs.values())
    appraiser.appraise(view, jobs[:2], "gpu", reach=1, lore=True)  # some are remembered, some are not
    for one, found in zip(jobs[::-1], appraiser.appraise(view, jobs[::-1], "gpu", reach=1, lore=True), strict=True):
        assert_same(found, appraise(view, one.id))


# -- nonsense ----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("noise_scale", [-150.0, -192.0, -256.0])
def test_a_noise_scale_below_zero_is_as_good_as_none(noise_scale: float) -> None:
    """An unbiased estimate of a small one can be negative, and the state lets it pass."""
    state = make_state("1x4", [job("a", gpus_max=4, on="n0[0]", batch=Batch(128, 256))])
    plain = appraise(report(state, "a", measured(1)).snapshot())
    assert_same(appraise(report(state, "a", noise_scale=noise_scale).snapshot()), plain)


def test_a_measurement_of_no_samples_harms_nobody() -> None:
    state = make_state("1x4", [job("a", gpus_max=4, on="n0[0]")])
    report(state, "a", Observation("gpu", 1, 1, 0, 0, 1.0, 0.0))
    assert appraise(state.snapshot()).goodput(1, 1) > 0.0


def test_a_job_that_asks_for_far_more_gpus_than_there_are_harms_nobody() -> None:
    assert appraise(make_view("1x4", [job("a", 10**15)])).most >= 4


# -- work left ---------------------------------------------------------------------------------------------------------


def constant(goodput: float, *, known: bool = True) -> Appraisal:
    """So many samples per second on each GPU."""
    line_K = goodput * np.arange(9.0)
    return Appraisal(Curve(line_K, 0.5 * line_K), 8, fit([measured(1)]) if known else None)


def believer(progress: float = 0.0, speed: Speed | None = None, **labels: str) -> Any:
    view = make_view("1x8", [job("a", gpus_max=8, labels=labels)])
    return replace(view.jobs["a"], belief=Belief(progress=progress, speed=speed))


def test_work_left_is_what_is_left_at_the_speed_it_had_and_the_goodput_of_the_gpus_it_had_it_on() -> None:
    """A hundredth per second at 2 x 30 samples per second: 6000 samples in all, 4500 of them left."""
    half_done = believer(0.25, Speed(0.01, "gpu", 1, 2))
    assert work_left(half_done, {}, {"gpu": constant(30.0)}) == pytest.approx(4500.0)
    spread = believer(0.25, Speed(0.01, "gpu", 2, 2))
    assert work_left(spread, {}, {"gpu": constant(30.0)}) == pytest.approx(2250.0)


def test_of_a_job_that_has_no_speed_yet_its_model_tells() -> None:
    lore = {"resnet": Belief(progress=0.9, speed=Speed(0.02, "gpu", 1, 4)), "bert": Belief()}
    young = believer(0.1, **RESNET)
    assert work_left(young, lore, {"gpu": constant(30.0)}) == pytest.approx(0.9 * 120.0 / 0.02)
    own = believer(0.1, Speed(0.01, "gpu", 1, 2), **RESNET)
    assert work_left(own, lore, {"gpu": constant(30.0)}) == pytest.approx(0.9 * 60.0 / 0.01)


@pytest.mark.parametrize(
    ("of", "lore", "appraisals"),
    [
        (believer(), {}, {"gpu": constant(30.0)}),
        (believer(model="bert"), {"resnet": Belief(speed=Speed(0.1, "gpu", 1, 1))}, {"gpu": constant(30.0)}),
        (believer(model="bert"), {"bert": Belief()}, {"gpu": constant(30.0)}),
        (believer(0.5, Speed(0.01, "t4", 1, 1)), {}, {"gpu": constant(30.0)}),
        (believer(0.5, Speed(0.01, "gpu", 1, 1)), {}, {"gpu": constant(30.0, known=False)}),
        (believer(0.5, Speed(0.01, "gpu", 2, 1)), {}, {"gpu": constant(0.0)}),
    ],
    ids=["no speed", "another model", "a silent model", "an unknown GPU type", "never measured", "cannot run there"],
)
def test_where_nobody_knows_the_work_left_is_none(of: Any, lore: dict[str, Belief], appraisals: Any) -> None:
    assert work_left(of, lore, appraisals) is None


def test_a_job_that_is_done_has_no_work_left() -> None:
    assert work_left(believer(1.0, Speed(0.01, "gpu", 1, 1)), {}, {"gpu": constant(30.0)}) == 0.0
