"""Rates with their evidence: what is believed of any job in any configuration, and how that is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.errors import InvalidSpec
from fairlead.core.learning import MODEL
from fairlead.core.node_order import in_order
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Batch, Belief, Job, Observation, PackedShare, Speed
from fairlead.policies.rates import BelievedRates, Configuration, Evidence, OracleRates, Rates
from fairlead.policies.relative_speeds import PACKED_SHARE
from fairlead.testing import GivenJob, job, make_view

FAST, SLOW = Configuration("fast", 1), Configuration("slow", 1)


def seen(gpu_type: str, step_s: float, gpus: int = 1, batch: int = 32, *, nodes: int = 1) -> Observation:
    return Observation(gpu_type, nodes, gpus, batch, 0, step_s, 0.0)


def named(job_id: str, model: str = "m", gpus: int = 1, **more: object) -> GivenJob:
    return job(job_id, gpus, labels={MODEL: model}, **more)  # type: ignore[arg-type]


def view_of(*jobs: GivenJob, nodes: str = "fast=1x4,slow=1x4", now: float = 0.0, **beliefs: Belief) -> Snapshot:
    """With what each job (by its id) and each model (after `of_`) is believed to be."""
    view = make_view(nodes, jobs, now=now)
    lore = {name.removeprefix("of_"): belief for name, belief in beliefs.items() if name.startswith("of_")}
    live = {name: replace(j, belief=beliefs.get(name, j.belief)) for name, j in view.jobs.items()}
    return replace(view, jobs=live, lore=lore, _table=None, _version=(-1, -1))


def stating(view: Snapshot, **speeds: float) -> Snapshot:
    nodes = [replace(node, speed=speeds.get(node.gpu_type)) for node in view.nodes.values()]
    return replace(view, nodes={node.id: node for node in in_order(nodes)}, _node_table=None, _version=(-1, -1))


def asked(view: Snapshot, *configurations: Configuration) -> Rates:
    return BelievedRates().rates(view, list(view.jobs.values()), configurations)


def test_what_the_job_measured_itself_is_measured() -> None:
    view = view_of(named("a"), a=Belief(observations=(seen("fast", 0.5),)))
    rates = asked(view, FAST)
    assert rates.rate_JC.tolist() == [[64.0]]
    assert rates.evidence_JC.tolist() == [[Evidence.MEASURED]]
    assert rates.batch_J.tolist() == [32.0]


def test_on_other_numbers_of_gpus_of_the_type_its_throughput_model_tells() -> None:
    own = Belief(observations=(seen("fast", 0.5, 1, 32), seen("fast", 0.3, 2, 16)))
    view = view_of(named("a", gpus=2, gpus_min=1, gpus_max=4), a=own)
    rates = asked(view, Configuration("fast", 2), Configuration("fast", 4))
    assert rates.evidence_JC.tolist() == [[Evidence.MEASURED, Evidence.MODEL]]
    assert rates.rate_JC[0, 0] == pytest.approx(32 / 0.3)
    assert 32 / 0.3 < rates.rate_JC[0, 1] < 2 * 32 / 0.3


def test_what_other_jobs_of_the_model_measured_is_borrowed() -> None:
    view = view_of(named("a"), of_m=Belief(observations=(seen("fast", 0.5), seen("slow", 2.0))))
    rates = asked(view, FAST, SLOW)
    assert rates.rate_JC.tolist() == [[64.0, 16.0]]
    assert (rates.evidence_JC == Evidence.BORROWED).all()


def test_a_type_new_to_a_model_is_judged_by_the_models_that_were_on_both() -> None:
    others = {f"of_{k}": Belief(observations=(seen("fast", 1.0 * k), seen("slow", 3.0 * k))) for k in (1, 2, 3)}
    view = view_of(named("a"), a=Belief(observations=(seen("fast", 0.5),)), **others)
    rates = asked(view, FAST, SLOW)
    assert rates.rate_JC[0] == pytest.approx([64.0, 64.0 / 3.0], rel=1e-3)
    assert rates.evidence_JC.tolist() == [[Evidence.MEASURED, Evidence.BORROWED]]


def test_where_no_model_was_on_both_types_stated_speeds_are_a_guess() -> None:
    view = stating(view_of(named("a"), a=Belief(observations=(seen("fast", 0.5),))), fast=4.0, slow=1.0)
    rates = asked(view, FAST, SLOW)
    assert rates.rate_JC[0] == pytest.approx([64.0, 16.0])
    assert rates.evidence_JC.tolist() == [[Evidence.MEASURED, Evidence.GUESSED]]


def test_a_job_of_which_nothing_is_known_goes_by_its_promise_and_by_stated_speeds() -> None:
    view = stating(view_of(named("a", gpus=2, estimate_s=100.0)), fast=4.0, slow=1.0)
    rates = asked(view, Configuration("fast", 2), Configuration("slow", 2))
    assert (rates.left_J[0] / rates.rate_JC[0]) == pytest.approx([100.0, 400.0])
    assert (rates.evidence_JC == Evidence.GUESSED).all()
    assert rates.left_evidence_J.tolist() == [Evidence.GUESSED]


def test_without_a_promise_the_work_left_is_infinite() -> None:
    rates = asked(view_of(named("a")), FAST)
    assert rates.left_J.tolist() == [math.inf]
    assert rates.rate_JC[0, 0] > 0.0


def test_a_job_that_reports_nothing_has_done_what_it_must_have_since_it_started() -> None:
    view = view_of(named("a", estimate_s=100.0, on="n0[0]"), nodes="fast=1x4", now=40.0)
    rates = asked(view, FAST)
    assert rates.left_J[0] / rates.rate_JC[0, 0] == pytest.approx(60.0)


def test_a_job_that_reports_progress_alone_counts_shares_of_its_work() -> None:
    own = Belief(progress=0.25, reported_at=0.0, speed=Speed(0.01, "fast", 1, 1), speeds=(Speed(0.01, "fast", 1, 1),))
    rates = asked(view_of(named("a"), a=own), FAST)
    assert (rates.rate_JC[0, 0], rates.left_J[0]) == (pytest.approx(0.01), 0.75)
    assert (rates.evidence_JC[0, 0], rates.left_evidence_J[0]) == (Evidence.MEASURED, Evidence.MEASURED)


def test_work_left_is_what_progress_and_speed_tell_in_the_unit_of_the_rates() -> None:
    speed = Speed(0.001, "fast", 1, 1)
    own = Belief(progress=0.5, reported_at=0.0, speed=speed, observations=(seen("fast", 0.5),))
    rates = asked(view_of(named("a", estimate_s=5.0), a=own), FAST)
    assert rates.left_J[0] == pytest.approx(0.5 * 64.0 / 0.001)
    assert rates.left_evidence_J[0] == Evidence.MEASURED


def test_a_speed_at_another_batch_is_compared_with_the_rate_at_that_batch() -> None:
    """At batch 32 the job did 64 samples/s and 0.001 of its work, so it has 64,000 samples; now it is twice as fast."""
    own = Belief(
        progress=0.5,
        reported_at=0.0,
        speed=Speed(0.001, "fast", 1, 1, (), 32),
        regimes=((0.0, 32), (0.5, 64)),
        observations=(seen("fast", 0.5), seen("fast", 0.5, batch=64)),
    )
    rates = asked(view_of(named("a"), a=own), FAST)
    assert rates.rate_JC[0, 0] == 128.0
    assert rates.left_J[0] == pytest.approx(32000.0)


def test_the_length_of_another_job_of_the_model_is_borrowed_last() -> None:
    model = Belief(observations=(seen("fast", 0.5),), speed=Speed(0.001, "fast", 1, 1))
    promised = asked(view_of(named("a", estimate_s=10.0), of_m=model), FAST)
    assert promised.left_J[0] == pytest.approx(640.0)
    silent = asked(view_of(named("a"), of_m=model), FAST)
    assert (silent.left_J[0], silent.left_evidence_J[0]) == (pytest.approx(64000.0), Evidence.BORROWED)


def test_a_promise_means_nothing_where_the_job_can_run_on_no_type_there_is() -> None:
    given = named("a", gpu_types=("h100",), estimate_s=10.0)
    rates = asked(view_of(given, of_m=Belief(observations=(seen("fast", 0.5),))), FAST)
    assert (rates.rate_JC[0, 0], rates.left_J[0]) == (0.0, math.inf)


def test_what_its_user_did_not_allow_has_rate_zero() -> None:
    view = view_of(named("a", gpus=2, gpu_types=("fast",)), a=Belief(observations=(seen("fast", 0.5, 2),)))
    rates = asked(view, Configuration("fast", 2), Configuration("slow", 2), FAST, Configuration("fast", 4))
    assert (rates.rate_JC[0] > 0.0).tolist() == [True, False, False, False]


def test_a_job_that_tells_its_noise_counts_samples_by_what_they_are_worth() -> None:
    batch = Batch(32, 256, max_per_gpu=128)
    own = Belief(observations=(seen("fast", 0.5), seen("fast", 0.8, batch=64)), noise_scale=0.0)
    deaf = asked(view_of(named("a", batch=batch), a=own), FAST).rate_JC[0, 0]
    noisy = asked(view_of(named("a", batch=batch), a=replace(own, noise_scale=1e6)), FAST).rate_JC[0, 0]
    assert deaf == pytest.approx(64.0, rel=0.05)  # more samples in a batch would be worth nothing
    assert noisy > 1.2 * deaf


# -- beside other jobs ----------------------------------------------------------------------------------------------


def beside(*partners: str) -> Configuration:
    return Configuration("fast", 1, 1, partners)


def test_beside_a_job_what_was_measured_beside_it_counts() -> None:
    own = Belief(observations=(seen("fast", 0.5),), packed=(replace(seen("fast", 1.0), partners=("lm",)),))
    rates = asked(view_of(named("a"), a=own), FAST, beside("lm"), beside("gan"))
    assert rates.rate_JC[0] == pytest.approx([64.0, 32.0, 64.0 * PACKED_SHARE])
    assert rates.evidence_JC.tolist() == [[Evidence.MEASURED, Evidence.MEASURED, Evidence.GUESSED]]


def test_what_the_model_kept_beside_another_is_borrowed() -> None:
    told = PackedShare("fast", 1, 1, ("lm",), 0.4)
    model = Belief(observations=(seen("fast", 0.5),), shares=(told,))
    rates = asked(view_of(named("a"), of_m=model), beside("lm"))
    assert rates.rate_JC[0, 0] == pytest.approx(64.0 * 0.4)
    assert rates.evidence_JC[0, 0] == Evidence.BORROWED


def test_a_pair_that_was_never_seen_is_judged_by_similar_models() -> None:
    """`m` was seen beside x only, and keeps as much there as `like` does: so it will beside y."""
    models = {
        f"of_{name}": Belief(shares=tuple(PackedShare("fast", 1, 1, (p,), s) for p, s in kept.items()))
        for name, kept in {
            "like": {"x": 0.9, "y": 0.9, "z": 0.9},
            "like2": {"x": 0.9, "y": 0.9, "z": 0.9},
            "unlike": {"x": 0.4, "y": 0.4, "z": 0.4},
            "unlike2": {"x": 0.4, "y": 0.4, "z": 0.4},
            "m": {"x": 0.9, "z": 0.9},
            "n": {"x": 0.4, "z": 0.4},
        }.items()
    }
    view = view_of(named("a", "m"), named("b", "n"), **models)
    rates = asked(view, FAST, beside("y"))
    assert rates.rate_JC[0, 1] / rates.rate_JC[0, 0] == pytest.approx(0.9, abs=0.1)
    assert rates.rate_JC[1, 1] / rates.rate_JC[1, 0] == pytest.approx(0.4, abs=0.1)
    assert (rates.evidence_JC[:, 1] <= Evidence.BORROWED).all()


def test_beside_several_jobs_what_is_kept_of_each_is_multiplied() -> None:
    model = Belief(shares=tuple(PackedShare("fast", 1, 1, (p,), 0.5) for p in "xy"))
    rates = asked(view_of(named("a"), of_m=model), FAST, Configuration("fast", 1, 1, ("y", "x")))
    assert rates.rate_JC[0, 1] == pytest.approx(0.25 * rates.rate_JC[0, 0])


def test_what_was_measured_beside_a_job_at_another_batch_counts_by_the_share_that_was_kept() -> None:
    own = Belief(
        regimes=((0.0, 32), (0.5, 64)),
        observations=(seen("fast", 0.5), seen("fast", 0.8, batch=64)),
        packed=(replace(seen("fast", 1.0), partners=("lm",)),),
    )
    rates = asked(view_of(named("a"), a=own), FAST, beside("lm"))
    assert rates.rate_JC[0] == pytest.approx([80.0, 40.0])


# -- what must hold -------------------------------------------------------------------------------------------------

observations = st.lists(
    st.builds(
        Observation,
        st.sampled_from(["x", "y", "z"]),
        st.integers(1, 2),
        st.sampled_from([2, 4]),
        st.sampled_from([8, 16, 32]),
        st.just(0),
        st.floats(0.01, 10.0),
        st.just(0.0),
    ),
    max_size=4,
    unique_by=lambda o: o.configuration,
).map(tuple)
beliefs = st.builds(
    Belief,
    progress=st.floats(0.0, 1.0),
    observations=observations,
    speed=st.none() | st.builds(Speed, st.floats(1e-6, 0.1), st.sampled_from(["x", "y"]), st.just(1), st.just(2)),
    noise_scale=st.none() | st.floats(0.0, 1e4),
    packed=observations.map(lambda seen: tuple(replace(each, partners=("m0",)) for each in seen)),
)
ASKED = tuple(
    Configuration(t, g, n, p) for t in "xyz" for g in (1, 2, 4) for n in (1, 2) for p in ((), ("m0",), ("m1", "m9"))
)


def drawn(told: Sequence[Belief], lore: Sequence[Belief], order: Sequence[str] = "xyz") -> Snapshot:
    given_jobs = [
        job(f"j{k}", 2, gpus_min=1, gpus_max=4, labels={MODEL: f"m{k % 3}"}, estimate_s=100.0) for k in range(len(told))
    ]
    view = make_view(",".join(f"{name}=1x4" for name in order), given_jobs)
    live = {name: replace(j, belief=belief) for (name, j), belief in zip(view.jobs.items(), told, strict=True)}
    known = {f"m{k}": belief for k, belief in enumerate(lore)}
    return replace(view, jobs=live, lore=known, _table=None, _version=(-1, -1))


@settings(deadline=None, max_examples=60)
@given(st.lists(beliefs, min_size=1, max_size=4), st.lists(beliefs, max_size=3))
def test_rates_are_finite_and_what_is_remembered_changes_nothing(told: list[Belief], lore: list[Belief]) -> None:
    warm = BelievedRates()
    first, second = drawn(told, lore), drawn(told[::-1], lore)
    for view in (first, second, first):
        jobs: list[Job] = list(view.jobs.values())
        found, fresh = warm.rates(view, jobs, ASKED), BelievedRates().rates(view, jobs, ASKED)
        for mine, theirs in zip(found, fresh, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert np.isfinite(found.rate_JC).all()
        assert (found.rate_JC >= 0.0).all()
        assert (found.left_J >= 0.0).all()
        assert not np.isnan(found.left_J).any()


@settings(deadline=None, max_examples=30)
@given(st.lists(beliefs, min_size=2, max_size=4), st.lists(beliefs, max_size=3))
def test_the_order_of_jobs_and_of_gpu_types_is_no_information(told: list[Belief], lore: list[Belief]) -> None:
    view, other = drawn(told, lore), drawn(told, lore, "zyx")
    jobs = list(view.jobs.values())
    rates, turned = asked(view, *ASKED), BelievedRates().rates(other, jobs[::-1], ASKED[::-1])
    np.testing.assert_allclose(turned.rate_JC[::-1, ::-1], rates.rate_JC, rtol=1e-9)
    np.testing.assert_array_equal(turned.evidence_JC[::-1, ::-1], rates.evidence_JC)
    np.testing.assert_allclose(turned.left_J[::-1], rates.left_J, rtol=1e-9)


@settings(deadline=None, max_examples=30)
@given(st.lists(beliefs, min_size=2, max_size=4), st.lists(beliefs, max_size=3))
def test_the_names_of_gpu_types_are_no_information(told: list[Belief], lore: list[Belief]) -> None:
    other = {"x": "z", "y": "x", "z": "y"}

    def renamed(belief: Belief) -> Belief:
        return replace(
            belief,
            observations=tuple(replace(o, gpu_type=other[o.gpu_type]) for o in belief.observations),
            packed=tuple(replace(o, gpu_type=other[o.gpu_type]) for o in belief.packed),
            speed=belief.speed and replace(belief.speed, gpu_type=other[belief.speed.gpu_type]),
        )

    one = asked(drawn(told, lore), *ASKED)
    turned = [replace(each, gpu_type=other[each.gpu_type]) for each in ASKED]
    two = asked(drawn([renamed(b) for b in told], [renamed(b) for b in lore]), *turned)
    np.testing.assert_allclose(two.rate_JC, one.rate_JC, rtol=1e-9)
    np.testing.assert_array_equal(two.evidence_JC, one.evidence_JC)
    np.testing.assert_allclose(two.left_J, one.left_J, rtol=1e-9)


@settings(deadline=None, max_examples=30)
@given(st.lists(observations, min_size=1, max_size=3))
def test_all_step_times_times_four_is_all_rates_over_four(told: list[tuple[Observation, ...]]) -> None:
    def slower(factor: float) -> list[Belief]:
        return [Belief(observations=tuple(replace(o, step_s=o.step_s * factor) for o in each)) for each in told]

    seen_all = [each for each in told if each]
    if len(seen_all) < len(told):
        return  # a job of which nothing is known has another unit
    one = asked(drawn(slower(1.0), slower(1.0)), *ASKED).rate_JC
    four = asked(drawn(slower(4.0), slower(4.0)), *ASKED).rate_JC
    np.testing.assert_allclose(4.0 * four, one, rtol=2e-2)  # a fit is not exact


def test_true_rates_are_refused_where_nobody_knows_them() -> None:
    view = view_of(named("a"))
    with pytest.raises(InvalidSpec, match="only the simulator knows"):
        OracleRates().rates(view, list(view.jobs.values()), [FAST])
