"""When a job changes its batch size, and that it never leaves its bounds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Batch
from fairlead.goodput.efficiency import efficiency
from fairlead.goodput.throughput import ThroughputParams, throughput
from fairlead.goodput.tune import best_batch, candidates
from fairlead.train.schedules import (
    SCHEDULES,
    Accordion,
    Doubling,
    Fixed,
    Goodput,
    Schedule,
    Situation,
    allowed,
    nearest,
    schedule,
)

PARAMS = ThroughputParams(alpha_c=0.1, beta_c=0.01, alpha_n=0.4, beta_n=0.02, alpha_r=0.2, beta_r=0.01, gamma=2.0)
BATCH = Batch(initial=32, max_total=1024, min_per_gpu=4, max_per_gpu=64)
START = Situation(nodes=1, gpus=4, per_gpu_batch=8, accumulation=0, batch=BATCH, params=PARAMS, noise_scale=500.0)


def total(chosen: tuple[int, int], gpus: int = 4) -> int:
    return gpus * chosen[0] * (chosen[1] + 1)


def follow(schedule: Schedule, situation: Situation) -> Situation:
    """The next situation if the choice is taken."""
    m, s = schedule.choose(situation)
    return replace(situation, per_gpu_batch=m, accumulation=s)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    initial, least = draw(st.integers(1, 200)), draw(st.integers(1, 16))
    batch = Batch(
        initial=initial,
        max_total=draw(st.none() | st.integers(initial, 4000)),
        min_per_gpu=least,
        max_per_gpu=draw(st.none() | st.integers(least, 300)),
    )
    gpus = draw(st.integers(1, 32))
    return Situation(
        nodes=draw(st.integers(1, gpus)),
        gpus=gpus,
        per_gpu_batch=draw(st.integers(1, 400)),
        accumulation=draw(st.integers(0, 5)),
        batch=batch,
        params=draw(st.none() | st.just(PARAMS)),
        noise_scale=draw(st.none() | st.floats(0.0, 1e12)),
        grad_norm=draw(st.none() | st.floats(0.0, 1e6)),
        epoch=draw(st.floats(0.0, 100.0)),
    )


# -- all of them -----------------------------------------------------------------------------------------------------


@given(st.sampled_from(sorted(SCHEDULES)), st.lists(situations(), min_size=1, max_size=4))
def test_every_choice_keeps_to_the_bounds_of_the_batch(name: str, seen: list[Situation]) -> None:
    chooser = schedule(name)
    for situation in seen:
        m, s = chooser.choose(situation)
        batch, gpus = situation.batch, situation.gpus
        if not len(candidates(gpus, batch)[0]):
            assert (m, s) == (batch.min_per_gpu, 0)
            continue
        assert m >= batch.min_per_gpu
        assert s >= 0
        assert batch.max_per_gpu is None or m <= batch.max_per_gpu
        assert batch.max_total is None or total((m, s), gpus) <= batch.max_total
        assert allowed(replace(situation, per_gpu_batch=m, accumulation=s))


@given(st.sampled_from(sorted(SCHEDULES)), st.lists(situations(), min_size=2, max_size=5))
def test_a_restored_schedule_chooses_as_the_one_that_was_saved(name: str, seen: list[Situation]) -> None:
    saved, restored = schedule(name), schedule(name)
    for situation in seen[:-1]:
        saved.choose(situation)
    restored.load_state_dict(json.loads(json.dumps(saved.state_dict())))
    assert restored.regime == saved.regime
    assert restored.choose(seen[-1]) == saved.choose(seen[-1])
    assert restored == saved


def test_an_unknown_schedule_is_answered_with_the_nearest_and_all_there_are() -> None:
    with pytest.raises(InvalidSpec) as error:
        schedule("acordion")
    assert str(error.value).startswith("schedule is 'acordion', which is not known; did you mean 'accordion'?")
    assert all(name in str(error.value) for name in SCHEDULES)


def test_goodput_is_the_default() -> None:
    assert schedule() == Goodput()


@pytest.mark.parametrize("name", ["goodput", "doubling", "fixed"])
def test_schedules_that_know_no_regimes_are_always_stable(name: str) -> None:
    assert schedule(name).regime == "stable"


@pytest.mark.parametrize("gpus", [1, 2, 3, 5, 8])
def test_the_nearest_split_is_the_nearest_of_all(gpus: int) -> None:
    here = replace(START, gpus=gpus)
    m_C, s_C = candidates(gpus, BATCH)
    errors = [abs(gpus * int(m) * (int(s) + 1) - 100) for m, s in zip(m_C, s_C, strict=True)]
    assert abs(total(nearest(100, here), gpus) - 100) == min(errors)


# -- fixed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gpus", "split"), [(1, (32, 0)), (2, (16, 0)), (4, (8, 0)), (3, (11, 0)), (8, (4, 0))])
def test_fixed_shares_the_initial_batch_among_any_gpus(gpus: int, split: tuple[int, int]) -> None:
    assert Fixed().choose(replace(START, gpus=gpus)) == split


def test_fixed_accumulates_where_the_memory_is_small() -> None:
    small = replace(START, gpus=1, batch=replace(BATCH, min_per_gpu=1, max_per_gpu=8))
    assert Fixed().choose(small) == (8, 3)


# -- goodput ---------------------------------------------------------------------------------------------------------


def predicted(m: int, s: int, situation: Situation) -> float:
    gpus, noise = situation.gpus, situation.noise_scale
    assert noise is not None
    worth = efficiency(noise, gpus * m * (s + 1), situation.batch.initial)
    return float(throughput(PARAMS, situation.nodes, gpus, m, s) * worth)


@pytest.mark.parametrize("unknown", ["params", "noise_scale"])
def test_the_initial_batch_is_kept_until_model_and_noise_are_known(unknown: str) -> None:
    here = replace(START, per_gpu_batch=64, accumulation=2, **{unknown: None})
    assert Goodput().choose(here) == (8, 0)


def test_the_best_batch_is_taken_where_it_is_worth_the_change() -> None:
    m, s, best = best_batch(PARAMS, 500.0, 1, 4, BATCH)
    assert best > 1.05 * predicted(8, 0, START)
    assert Goodput().choose(START) == (m, s)


@given(st.integers(8, 64), st.integers(0, 3), st.floats(1.0, 1e5))
def test_a_change_promises_five_percent_and_staying_loses_less(m: int, s: int, noise: float) -> None:
    here = replace(START, per_gpu_batch=m, accumulation=s, noise_scale=noise)
    chosen, best = Goodput().choose(here), best_batch(PARAMS, noise, 1, 4, BATCH)[2]
    if chosen == (m, s):
        assert predicted(m, s, here) > best / 1.0500001
    else:
        assert predicted(*chosen, here) >= 1.05 * predicted(m, s, here)


def test_small_moves_of_the_noise_do_not_move_the_batch() -> None:
    settled = follow(Goodput(), START)
    for noise in (480.0, 510.0, 530.0):
        assert follow(Goodput(), replace(settled, noise_scale=noise)).total == settled.total


def test_a_split_that_the_new_gpus_cannot_have_is_given_up_whatever_the_gain() -> None:
    # 16 GPUs with 64 samples and 2 micro-steps each would be 2048 > 1024.
    grown = replace(START, gpus=16, per_gpu_batch=64, accumulation=1)
    assert Goodput(worth=1e9).choose(grown) == best_batch(PARAMS, 500.0, 1, 16, BATCH)[:2]


def test_one_gpu_takes_more_than_the_initial_batch_in_two_micro_steps() -> None:
    alone = replace(START, gpus=1, per_gpu_batch=64, accumulation=0)
    assert not allowed(alone)
    m, s = Goodput().choose(alone)
    assert s >= 1 or m <= BATCH.initial


# -- doubling --------------------------------------------------------------------------------------------------------


def test_the_batch_doubles_until_the_noise_is_less_than_twice_as_much() -> None:
    doubling, here, totals = Doubling(), START, []
    for _ in range(6):
        here = follow(doubling, here)
        totals.append(here.total)
    assert totals == [64, 128, 256, 256, 256, 256]  # the noise scale is 500


def test_the_batch_grows_with_the_noise_up_to_its_maximum_and_never_shrinks() -> None:
    doubling, totals = Doubling(), []
    for noise in (None, 40.0, 100.0, 1e9, 1e9, 1e9, 1e9, 1e9, 10.0, None):
        totals.append(total(doubling.choose(replace(START, noise_scale=noise))))
    assert totals == [32, 32, 64, 128, 256, 512, 1024, 1024, 1024, 1024]


def test_fewer_or_more_gpus_keep_the_batch_that_was_reached() -> None:
    doubling = Doubling()
    for _ in range(3):
        doubling.choose(START)
    totals = [total(doubling.choose(replace(START, gpus=gpus)), gpus) for gpus in (1, 2, 8, 3)]
    assert totals == [256, 256, 256, 258]  # three GPUs in two micro-steps each: a multiple of six


def test_a_smaller_margin_doubles_earlier() -> None:
    here = replace(START, noise_scale=40.0)
    assert total(Doubling(margin=1.0).choose(here)) == 64


# -- accordion -------------------------------------------------------------------------------------------------------


def test_accordion_is_critical_until_there_is_something_to_compare_with() -> None:
    accordion = Accordion()
    assert total(accordion.choose(replace(START, grad_norm=None, epoch=20.0))) == 32
    assert total(accordion.choose(replace(START, grad_norm=1.0, epoch=20.0))) == 32
    assert accordion.regime == "critical"


@pytest.mark.parametrize(
    ("norm", "regime", "samples"),
    [
        (1.0, "stable", 1024),
        (1.49, "stable", 1024),
        (1.5, "critical", 32),
        (0.5, "critical", 32),
        (0.6, "stable", 1024),
    ],
)
def test_a_gradient_that_changed_by_half_is_critical(norm: float, regime: str, samples: int) -> None:
    accordion = Accordion()
    accordion.choose(replace(START, grad_norm=1.0, epoch=0.0))
    assert total(accordion.choose(replace(START, grad_norm=norm, epoch=10.0))) == samples
    assert accordion.regime == regime


def test_between_checks_the_regime_stays_and_checks_compare_with_the_last_one() -> None:
    accordion, regimes = Accordion(interval_epochs=2.0), []
    norms = [4.0, 1.0, 4.0, 0.1, 1.0, 9.0, 1.1]  # checked: 4, 4, 1, 1.1
    for epoch, norm in enumerate(norms):
        accordion.choose(replace(START, grad_norm=norm, epoch=float(epoch)))
        regimes.append(accordion.regime)
    assert regimes == ["critical", "critical", "stable", "stable", "critical", "critical", "stable"]


def test_a_gradient_that_was_zero_or_is_not_finite_makes_nothing_stable() -> None:
    accordion = Accordion(interval_epochs=1.0)
    for epoch, norm in enumerate((0.0, 0.0, float("nan"), float("inf"))):
        accordion.choose(replace(START, grad_norm=norm, epoch=float(epoch)))
        assert accordion.regime == "critical"
