"""The search for the efficient number of workers: what it remembers, its formulas and its single decisions, by hand.

Whole runs are in test_search_runs.py.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import InvalidSpec
from fairlead.goodput.search import (
    Decision,
    Linear,
    Measured,
    Piecewise,
    ScalingEfficiency,
    Search,
    Seen,
    Situation,
    UtilityOverCost,
    Worthwhile,
    expected_s,
    limit,
    local_batch,
    parse_utility,
    scaling_efficiency,
)

NOTHING = Situation()
SEARCH = Search(least=4, most=60, step=4, start=4)


def seen(size: int, throughput: float, steps: int = 100) -> Seen:
    return Seen(size, throughput, step_s=1.0, steps=steps)


def measured(curve: dict[int, float], steps: int = 100, horizon_steps: float = math.inf) -> Measured:
    """As if the job had run for so many steps at each of these sizes, in this order."""
    found = Measured(horizon_steps)
    for size, throughput in curve.items():
        for _ in range(steps + 1):
            found.note(size, samples=throughput, step_s=1.0)
    return found


# -- what was seen ---------------------------------------------------------------------------------------------------


def test_the_first_step_after_each_change_is_not_measured() -> None:
    found = Measured(math.inf)
    for size, step_s in [(4, 50.0), (4, 1.0), (4, 2.0), (8, 70.0), (8, 4.0), (4, 90.0), (4, 3.0)]:
        found.note(size, samples=12.0, step_s=step_s)
    assert found.seen() == [Seen(4, (12 + 6 + 4) / 3, 2.0, 3), Seen(8, 3.0, 4.0, 1)]
    found.changed()
    found.note(4, samples=12.0, step_s=1000.0)
    assert found.seen()[0].steps == 3


def test_steps_since_a_change_are_those_of_the_present_size() -> None:
    found = measured({4: 400.0, 8: 700.0}, steps=5)
    assert (found.steps_since_change(4), found.steps_since_change(8)) == (0, 5)
    found.changed()
    assert found.steps_since_change(8) == 0


@pytest.mark.parametrize(
    ("samples", "step_s"),
    [(0, 1), (-1, 1), (math.nan, 1), (math.inf, 1), (1, 0), (1, -1), (1, math.nan), (1, math.inf), (1e300, 1e-300)],
)
def test_a_step_that_cannot_have_been_is_no_measurement(samples: float, step_s: float) -> None:
    found = measured({4: 400.0}, steps=5)
    before = found.seen()
    found.note(4, samples=samples, step_s=step_s)
    assert found.seen() == before


def test_each_step_counts_for_less_as_the_job_goes_on() -> None:
    found = Measured(horizon_steps=2.0)
    for samples in (0.5, 100.0, 200.0):
        found.note(4, samples=samples, step_s=1.0)
    old = math.exp(-1 / 2)
    assert found.seen()[0].throughput == pytest.approx((100 * old + 200) / (old + 1))


def test_a_size_is_forgotten_once_it_was_not_used_for_the_horizon() -> None:
    assert [each.size for each in measured({4: 1.0, 8: 1.0}, steps=10, horizon_steps=10).seen()] == [4, 8]
    assert [each.size for each in measured({4: 1.0, 8: 1.0}, steps=11, horizon_steps=10).seen()] == [8]
    assert len(measured({4: 1.0, 8: 1.0}, steps=2000).seen()) == 2


def test_the_state_survives_json_and_ages_on() -> None:
    before = measured({4: 400.0, 8: 700.0}, steps=10, horizon_steps=15)
    after = Measured(15)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert after.seen() == before.seen()
    assert after.steps_since_change(8) == 0
    for found in (before, after):
        found.changed()
        for _ in range(7):
            found.note(8, samples=900.0, step_s=1.0)
    assert after.seen() == before.seen()
    assert [each.size for each in after.seen()] == [8]  # 4 was last used 16 steps ago


@pytest.mark.parametrize("horizon", [0.0, -1.0, math.nan])
def test_a_horizon_without_a_step_is_refused(horizon: float) -> None:
    with pytest.raises(InvalidSpec, match="horizon_steps is"):
        Measured(horizon)


# -- whether more workers are worthwhile -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("smaller", "larger", "expected"),
    [
        ((4, 400.0), (5, 480.0), 0.8),  # the slides' example
        ((4, 400.0), (8, 800.0), 1.0),
        ((4, 400.0), (8, 400.0), 0.0),
        ((4, 400.0), (8, 300.0), -0.25),
        ((16, 2200.0), (32, 4000.0), 0.818),  # and the table on their second page
        ((32, 4000.0), (64, 5000.0), 0.25),
    ],
)
def test_scaling_efficiency_by_hand(smaller: tuple[int, float], larger: tuple[int, float], expected: float) -> None:
    assert scaling_efficiency(seen(*smaller), seen(*larger)) == pytest.approx(expected, abs=1e-3)


def test_the_threshold_itself_does_not_pass() -> None:
    assert ScalingEfficiency(0.75).passes(seen(4, 400), seen(8, 701), NOTHING)
    assert not ScalingEfficiency(0.75).passes(seen(4, 400), seen(8, 700), NOTHING)
    assert not ScalingEfficiency(0.0).passes(seen(4, 400), seen(8, 400), NOTHING)


@pytest.mark.parametrize("rule", [ScalingEfficiency(0.0), UtilityOverCost(Linear(100.0, 3600.0))])
def test_throughputs_of_zero_or_without_meaning(rule: Worthwhile) -> None:
    situation = Situation(remaining_samples=1000.0)
    assert rule.passes(seen(4, 0.0), seen(8, 1.0), situation)
    assert not rule.passes(seen(4, 1.0), seen(8, 0.0), situation)
    assert not rule.passes(seen(4, 0.0), seen(8, 0.0), situation)
    assert not rule.passes(seen(4, math.nan), seen(8, 1.0), situation)
    assert not rule.passes(seen(4, 1.0), seen(8, math.nan), situation)


@pytest.mark.parametrize("threshold", [-0.1, 1.1, math.nan])
def test_a_threshold_beyond_perfect_scaling_is_refused(threshold: float) -> None:
    with pytest.raises(InvalidSpec, match="threshold is"):
        ScalingEfficiency(threshold)


def test_utility_over_cost_by_hand() -> None:
    # 3600 s remain with 4 workers and 2000 s with 8, after 400 s. Worth 100 at once, 0 after 10 000 s: 60 and 76.
    # So 16 are gained, for 8 x 2000 - 4 x 3600 = 1600 worker-seconds more: worthwhile at less than 0.01 each.
    situation = Situation(elapsed_s=400.0, remaining_samples=7200.0)
    smaller, larger = seen(4, 2.0), seen(8, 3.6)
    assert (expected_s(smaller, situation), expected_s(larger, situation)) == (4000.0, 2400.0)
    for price, passes in [(0.0099, True), (0.0101, False)]:
        assert UtilityOverCost(parse_utility("linear:100,10000"), price).passes(smaller, larger, situation) == passes


def test_a_faster_job_that_costs_less_is_worthwhile_even_if_nobody_waits() -> None:
    superlinear = seen(4, 1.0), seen(8, 3.0)
    rule = UtilityOverCost(parse_utility("100:1e9"))
    assert rule.passes(*superlinear, Situation(remaining_samples=1000.0))


def test_utility_needs_to_know_what_remains() -> None:
    with pytest.raises(InvalidSpec, match="remaining_samples"):
        UtilityOverCost(Linear(1.0, 1.0)).passes(seen(4, 1.0), seen(8, 2.0), NOTHING)


@pytest.mark.parametrize("price", [-1.0, math.nan, math.inf])
def test_a_price_is_a_finite_number(price: float) -> None:
    with pytest.raises(InvalidSpec, match="price_per_worker_s is"):
        UtilityOverCost(Linear(1.0, 1.0), price)


def test_linear_utility_goes_below_zero() -> None:
    utility = parse_utility("linear:100,3600")
    assert utility == Linear(100.0, 3600.0)
    assert [utility(total_s, None) for total_s in (0, 1800, 3600, 7200)] == [100, 50, 0, -100]


def test_piecewise_utility_falls_to_zero_where_the_job_was_expected() -> None:
    utility = parse_utility(" 100:1800, 40:3600 ")
    assert utility == Piecewise(((100.0, 1800.0), (40.0, 3600.0)))
    times = (0, 1800, 2700, 3600, 5600, 7600)
    assert [utility(total_s, 5600) for total_s in times] == pytest.approx([100, 100, 70, 40, 0, -40])
    # Expected sooner than its user cares to say, or not known: the last line goes on.
    for expected in (3000, None):
        assert utility(4800, expected) == pytest.approx(0.0)


def test_piecewise_utility_with_one_point() -> None:
    assert parse_utility("100:1800")(5000, None) == 100.0
    assert parse_utility("100:1800")(2700, 3600) == pytest.approx(50.0)
    assert parse_utility("100:0")(900, 3600) == pytest.approx(75.0)
    assert parse_utility("100:0")(900, None) == 100.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not two finite numbers"),
        ("linear", "not two finite numbers"),
        ("linear:", "not two finite numbers"),
        ("linear:100", "not two finite numbers"),
        ("linear:100,3600,1", "not two finite numbers"),
        ("linear:100,soon", "'100,soon' is not two finite numbers"),
        ("linear:100,inf", "not two finite numbers"),
        ("linear:100,0", "above 0"),
        ("linear:-1,3600", "above 0"),
        ("cubic:1,2", "'cubic:1' is not two finite numbers"),
        ("100:1800,", "'' is not two finite numbers"),
        ("100:1800,40", "'40' is not two finite numbers"),
        ("100:nan", "not two finite numbers"),
        ("40:1800,100:3600", "rise from 40 to 100 but may only fall"),
        ("100:1800,40:1800", "from 1800 to 1800 s but have to rise"),
        ("100:-5", "may not be negative"),
        ("100:10,-1:20", "may not be negative"),
    ],
)
def test_a_utility_that_cannot_be_meant_is_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(InvalidSpec, match="utility is") as error:
        parse_utility(text)
    assert complaint in str(error.value)


# -- single decisions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        # Step 0: one size.
        ({4: 400.0}, 8),
        ({60: 400.0}, 56),
        # Step 2: all pass.
        ({4: 400.0, 8: 800.0}, 12),
        # Step 3: too few passes, or none, from the smallest.
        ({20: 400.0, 24: 401.0}, 16),
        ({16: 300.0, 20: 400.0, 24: 401.0}, 12),
        ({56: 560.0, 60: 600.0}, 52),
        # Step 4: three passes, or nothing smaller, and a failure.
        ({8: 200.0, 12: 300.0, 16: 400.0, 20: 500.0, 24: 500.0}, 20),
        ({4: 400.0, 8: 400.0}, 4),
        ({4: 400.0, 8: 410.0, 12: 800.0}, 4),
        # No failure.
        ({48: 480.0, 52: 520.0, 56: 560.0, 60: 600.0}, 60),
    ],
)
def test_the_steps_of_the_search(curve: dict[int, float], expected: int) -> None:
    assert SEARCH.next_size(measured(curve), list(curve)[-1], NOTHING).size == expected


def test_a_size_that_fails_is_measured_well_before_it_is_left() -> None:
    few, enough = measured({4: 400.0, 8: 400.0}, steps=99), measured({4: 400.0, 8: 400.0}, steps=100)
    assert SEARCH.next_size(few, 8, NOTHING).size == 8
    assert SEARCH.next_size(enough, 8, NOTHING).size == 4


def test_what_lies_in_a_gap_is_tried_before_settling_below_it() -> None:
    assert SEARCH.next_size(measured({4: 400.0, 24: 500.0}), 24, NOTHING).size == 8


def test_nothing_moves_during_a_change() -> None:
    for now_size in (4, 8, 100):
        decision = SEARCH.next_size(measured({4: 400.0}), now_size, Situation(changing=True))
        assert decision == Decision(now_size, f"Stays at {now_size} workers: a change is under way.")


def test_nothing_moves_before_enough_was_measured() -> None:
    assert SEARCH.next_size(measured({4: 400.0}, steps=9), 4, NOTHING).size == 4
    assert SEARCH.next_size(measured({4: 400.0}, steps=10), 4, NOTHING).size == 8
    assert SEARCH.next_size(measured({4: 400.0}), 8, NOTHING).size == 8  # at which no step has been made


def test_a_job_that_was_never_measured_goes_to_its_start() -> None:
    assert replace(SEARCH, start=12).next_size(Measured(), 4, NOTHING).size == 12
    assert replace(SEARCH, start=12).next_size(Measured(), 12, NOTHING).size == 12


def test_a_job_outside_its_bounds_is_brought_back_and_what_it_did_there_ignored() -> None:
    outside = measured({2: 2.0, 100: 1.0, 4: 400.0})
    assert SEARCH.next_size(outside, 100, NOTHING).size == 60
    assert SEARCH.next_size(outside, 2, NOTHING).size == 4
    assert SEARCH.next_size(outside, 4, NOTHING).size == 8


def test_without_another_size_there_is_nothing_to_try() -> None:
    assert Search(4, 4, 4, 4).next_size(measured({4: 400.0}), 4, NOTHING).size == 4


def test_the_last_steps_to_the_bounds_are_as_short_as_they_have_to_be() -> None:
    search = Search(least=3, most=10, step=4, start=5)
    assert search.next_size(measured({5: 500.0, 9: 900.0}), 9, NOTHING).size == 10
    assert search.next_size(measured({5: 500.0, 9: 500.0}), 9, NOTHING).size == 3


@pytest.mark.parametrize(
    ("curve", "why"),
    [
        ({4: 400.0}, "Goes from 4 to 8 workers: 400 samples/s with 4 workers, and no other size is known."),
        (
            {4: 400.0, 8: 790.0},
            "Goes from 8 to 12 workers: every step up was worthwhile so far "
            "(400 samples/s with 4 workers, 790 samples/s with 8 workers).",
        ),
        (
            {4: 400.0, 8: 410.0},
            "Goes from 8 to 4 workers: "
            "400 samples/s with 4 workers, 410 samples/s with 8 workers, which is not worthwhile.",
        ),
    ],
)
def test_the_reason_is_a_sentence_with_the_numbers(curve: dict[int, float], why: str) -> None:
    assert SEARCH.next_size(measured(curve), list(curve)[-1], NOTHING).why == why


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"least": 0}, "least"),
        ({"most": 3}, "most"),
        ({"step": 0}, "step"),
        ({"start": 3}, "start"),
        ({"start": 61}, "start"),
        ({"every_steps": 0}, "every_steps"),
        ({"passes_to_stay": 0}, "passes_to_stay"),
        ({"enough_steps": 0}, "enough_steps"),
    ],
)
def test_a_search_that_cannot_be_meant_is_refused_by_name(wrong: dict[str, int], name: str) -> None:
    with pytest.raises(InvalidSpec, match=f"^{name} is"):
        replace(SEARCH, **wrong)  # type: ignore[arg-type]


@given(
    notes=st.lists(st.tuples(st.integers(1, 30), st.floats(0.0, 1e9), st.integers(1, 40)), max_size=12),
    bounds=st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(1, 30)),
    step=st.integers(1, 10),
    now_size=st.integers(0, 40),
    horizon=st.sampled_from([1.0, 30.0, math.inf]),
    rule=st.sampled_from([ScalingEfficiency(), UtilityOverCost(Linear(100.0, 3600.0))]),
)
def test_no_history_leads_out_of_the_bounds(
    notes: list[tuple[int, float, int]],
    bounds: tuple[int, int, int],
    step: int,
    now_size: int,
    horizon: float,
    rule: Worthwhile,
) -> None:
    least, start, most = sorted(bounds)
    found = Measured(horizon)
    for size, samples, times in notes:
        for _ in range(times):
            found.note(size, samples=samples, step_s=1.0)
    search = Search(least, most, step, start, rule)
    situation = Situation(remaining_samples=1e6)
    for size in {now_size, *(size for size, _, _ in notes)}:
        decision = search.next_size(found, size, situation)
        assert least <= decision.size <= most
        assert decision == search.next_size(found, size, situation)  # nothing is remembered but what was measured
        assert f"{decision.size} worker" in decision.why
        assert decision.why.endswith(".")
        assert search.next_size(found, size, replace(situation, changing=True)).size == size
    assert (limit(found, search, situation) or least) in range(least, most + 1)


# -- a limit for others ----------------------------------------------------------------------------------------------


def test_there_is_no_limit_before_a_size_has_failed_and_was_measured_well() -> None:
    assert limit(Measured(), SEARCH, NOTHING) is None
    assert limit(measured({4: 400.0}), SEARCH, NOTHING) is None
    assert limit(measured({4: 400.0, 8: 800.0}), SEARCH, NOTHING) is None
    assert limit(measured({4: 400.0, 8: 400.0}, steps=99), SEARCH, NOTHING) is None
    assert limit(measured({4: 400.0, 8: 400.0}, steps=100), SEARCH, NOTHING) == 4


def test_the_limit_leaves_open_what_is_not_known() -> None:
    assert limit(measured({4: 400.0, 24: 500.0}), SEARCH, NOTHING) == 20
    assert limit(measured({4: 400.0, 7: 410.0}), SEARCH, NOTHING) == 4


# -- the batch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, [256]), (4, [256] * 4), (5, [205] * 4 + [204]), (6, [171] * 4 + [170] * 2), (8, [128] * 8)],
)
def test_the_batch_grows_with_the_workers_and_is_then_shared(size: int, expected: list[int]) -> None:
    assert [local_batch(size, 256, 1024, rank) for rank in range(size)] == expected


@given(st.integers(1, 100), st.integers(1, 300), st.integers(0, 10_000))
def test_together_the_workers_have_the_whole_batch(size: int, max_local: int, beyond: int) -> None:
    batches = [local_batch(size, max_local, size + beyond, rank) for rank in range(size)]
    assert sum(batches) == min(size * max_local, size + beyond)
    assert all(0 <= one - other <= 1 for one, other in pairwise(batches))
    assert 1 <= min(batches) <= max(batches) <= max_local


@pytest.mark.parametrize(
    ("size", "max_local", "max_global", "rank", "name"),
    [(4, 0, 8, 0, "max_local"), (4, 8, 3, 0, "max_global"), (4, 8, 8, 4, "rank"), (4, 8, 8, -1, "rank")],
)
def test_a_batch_that_cannot_be_shared_is_refused_by_name(
    size: int, max_local: int, max_global: int, rank: int, name: str
) -> None:
    with pytest.raises(InvalidSpec, match=f"^{name} is"):
        local_batch(size, max_local, max_global, rank)
