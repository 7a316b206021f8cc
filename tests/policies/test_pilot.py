"""Pilot's single decisions, by hand: the clearing price, hurry, pauses, the floor, and when it asks again.

What holds over whole runs, and for every kind of job and cluster, is in test_pilot_guarantees.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from fairlead.core.loop import Cadence, run
from fairlead.core.messages import (
    JobExited,
    JobReported,
    JobRescaled,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Message,
    NodeJoined,
    Resize,
    Start,
    Stop,
    Tick,
)
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Allocation, Batch, JobSpec, Node, Observation, Plan
from fairlead.goodput.throughput import ThroughputParams, grad_time, step_time, update_time
from fairlead.journal import MemoryJournal
from fairlead.policies.appraising import Appraiser
from fairlead.policies.pilot import LEAST_GPU_S, UNKNOWN_GPU_S, Pilot
from fairlead.policies.weighing import choices
from fairlead.sim.backend import SimBackend
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.costs import Costs
from fairlead.sim.truth import FixedDuration
from fairlead.sim.world import SimJob
from fairlead.testing import Scenario, job, make_state, make_view, placement

#: The rule alone.
PLAIN: dict[str, Any] = {"hurry": 0.0, "floor": 0.0}


def sizes(plan: Plan) -> dict[str, int]:
    return {job_id: allocation.total for job_id, allocation in plan.allocations.items()}


def tell(state: State, *messages: Message) -> State:
    for message in messages:
        state.replay(message)
    return state


#: Divides by every number of GPUs up to 8.
BATCH = Batch(840, 840)


def averaging(sync_s: float) -> ThroughputParams:
    """A pass of 840 samples takes a second, and averaging so long: g(k) = 840 / (1 / k + sync_s) on k GPUs."""
    return ThroughputParams(0.0, 1.0 / 840, sync_s, 0.0, sync_s, 0.0, 1.0)


def measured(by: ThroughputParams, gpus: int, m: int, *, nodes: int = 1, gpu_type: str = "gpu") -> Observation:
    step_s = float(step_time(by, nodes, gpus, m))
    sync_s = float(update_time(by, nodes, gpus, m) - grad_time(by, m))
    return Observation(gpu_type, nodes, gpus, m, 0, step_s, sync_s, steps=1000)


def taught(gpus: int, models: Mapping[str, float]) -> State:
    """One node on which jobs of these models ran and ended; their time to average is known on up to 4 GPUs."""
    state = tell(State(), NodeJoined(0.0, Node("n0", gpus)))
    for model, sync_s in models.items():
        seen = [measured(averaging(sync_s), k, m) for k, m in ((1, 840), (1, 420), (2, 420), (4, 210))]
        teach(state, model, *seen)
    return state


def teach(state: State, model: str, *observations: Observation) -> None:
    spec = JobSpec(id=f"earlier-{model}", labels={"model": model}, batch=BATCH)
    tell(
        state, JobSubmitted(0.0, spec), Start(0.0, spec.id, 1, Allocation.of({"n0": [0]})), JobStarted(0.0, spec.id, 1)
    )
    tell(state, JobReported(0.0, spec.id, 1, 0.5, observations=observations), JobExited(0.0, spec.id, 1))


def arrive(state: State, *names: str, **spec: Any) -> State:
    """Jobs whose model is the first letter of their name, on any number of GPUs."""
    for name in names:
        fields = {"gpus_max": 16, "batch": BATCH, "labels": {"model": name[0]}, **spec}
        tell(state, JobSubmitted(state.now, JobSpec(id=name, **fields)))
    return state


# -- the clearing price ------------------------------------------------------------------------------------------------


def test_two_equal_jobs_share_equally_at_the_price_where_a_fifth_gpu_is_not_worth_it() -> None:
    """g(k) = 840 / (1/k + 0.25): (1) is least at 4 rather than 5 GPUs from lambda = (1/4 - 1/5) / 0.25 = 0.2 on.

    There both want 4 of the 8 GPUs, just below it 5. A second on 4 GPUs earns (2) 1 + 4 lambda = 1.8, on 3 of them
    1.8 g(3) / g(4) = 1.543, and on 5 what it costs, 2.0; all in a unit that the policy chooses.
    """
    state = arrive(taught(8, {"x": 0.25}), "x1", "x2")
    plan = Pilot(**PLAIN).plan(state.snapshot())
    assert sizes(plan) == {"x1": 4, "x2": 4}
    for name in ("x1", "x2"):
        numbers = plan.reasons[name].numbers
        assert numbers["speedup"] == pytest.approx(2.0, rel=0.01)
        assert numbers["objective_less"] / numbers["objective_more"] == pytest.approx((1.543 - 1.8) / 0.2, rel=0.02)
    assert plan.bound == pytest.approx(0.0, abs=1e-9)


def test_of_two_models_the_one_that_scales_better_gets_more_at_the_same_price() -> None:
    """From lambda = (1/6 - 1/7) / 0.0625 = 0.381 on y (1/16 s to average) wants 6 GPUs; z (1/4 s) wants 3 there.

    y earns 1 + 6 lambda = 3.286, with one less 0.873 times that; z earns 1 + 3 lambda = 2.143, with one less 7/9 of it.
    """
    state = arrive(taught(9, {"y": 0.0625, "z": 0.25}), "y", "z")
    plan = Pilot(**PLAIN).plan(state.snapshot())
    assert sizes(plan) == {"y": 6, "z": 3}
    less = {name: plan.reasons[name].numbers["objective_less"] for name in ("y", "z")}
    assert less["y"] / less["z"] == pytest.approx(3.286 * (0.873 - 1.0) / (2.143 * (7 / 9 - 1.0)), rel=0.02)


def test_where_there_is_plenty_a_gpu_costs_nothing_and_a_job_has_what_is_fastest_for_it() -> None:
    """Averaging takes 20 ms more for every GPU: 1/k + 0.02 (k - 2) is least at 7 GPUs, of 64."""
    by = ThroughputParams(0.0, 1.0 / 840, 0.02, 0.02, 0.02, 0.02, 1.0)
    state = tell(State(), NodeJoined(0.0, Node("n0", 64)))
    teach(state, "w", *(measured(by, k, m) for k, m in ((1, 840), (1, 420), (2, 420), (4, 210), (8, 105))))
    plan = Pilot(**PLAIN).plan(arrive(state, "w1", gpus_max=64).snapshot())
    assert plan.reasons["w1"].numbers["most"] == 16
    assert sizes(plan) == {"w1": 7}


def test_the_work_that_is_left_does_not_change_what_a_job_chooses() -> None:
    short, long = (
        sizes(Pilot(**PLAIN).plan(arrive(taught(8, {"x": 0.25}), "x1", "x2", estimate_s=estimate_s).snapshot()))
        for estimate_s in (100.0, 1e6)
    )
    assert short == long == {"x1": 4, "x2": 4}


def test_what_other_jobs_of_the_model_taught_is_used_unless_it_should_not_be() -> None:
    view = arrive(taught(8, {"x": 0.25}), "x1", "x2").snapshot()
    plan = Pilot(**PLAIN, lore=False).plan(view)
    assert sizes(plan) == {"x1": 1, "x2": 1}  # nothing is known: they begin with the fewest
    assert plan.reasons["x1"].numbers["most"] == 1


def test_the_faster_gpus_go_to_the_job_that_gains_more_by_them() -> None:
    """`x` is four times as fast on an a100 as on a k80, `y` a tenth faster."""
    state = tell(State(), NodeJoined(0.0, Node("n0", 1, "k80")), NodeJoined(0.0, Node("n1", 1, "a100")))
    slow = averaging(0.1)
    for model, times in (("x", 4.0), ("y", 1.1)):
        fast = slow.faster(times, within_node=times, between_nodes=times)
        teach(state, model, measured(slow, 1, 840, gpu_type="k80"), measured(fast, 1, 840, gpu_type="a100"))
    arrive(state, "y1", "x1", gpus_max=1)
    assert placement(Pilot().plan(state.snapshot())) == {"x1": "n1[0]", "y1": "n0[0]"}


# -- hurry -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [("long", "short"), ("short", "long")])
def test_the_job_with_less_left_goes_first(order: tuple[str, str]) -> None:
    left_s = {"long": 1e5, "short": 1e3}
    jobs = [job(name, estimate_s=left_s[name]) for name in order]
    Scenario(nodes="1x1", jobs=jobs, expected={"short": 1}).check(Pilot())


def test_of_jobs_that_tell_how_far_they_are_the_one_with_less_left_goes_first() -> None:
    """All three did the same in the same time; `near` has a tenth left, `far` nine tenths."""
    state = make_state("1x2", [job("far", on="n0[0]"), job("near", on="n0[1]")], now=100.0)
    seen = (measured(averaging(0.1), 1, 840),)
    for at, done in ((100.0, 0.0), (200.0, 0.05)):
        tell(state, JobReported(at, "far", 1, 0.05 + done, observations=seen))
        tell(state, JobReported(at, "near", 1, 0.85 + done, observations=seen))
    numbers = {name: Pilot(floor=0.0).plan(state.snapshot()).reasons[name].numbers for name in ("far", "near")}
    ratio = numbers["near"]["objective_less"] / numbers["far"]["objective_less"]
    assert ratio == pytest.approx((0.1 / 0.9) ** -Pilot().hurry, rel=1e-6)


@pytest.mark.parametrize("hurry", [0.15, 0.5, 1.0])
def test_hurry_weighs_by_the_gpu_seconds_that_are_left(hurry: float) -> None:
    jobs = [job("a", estimate_s=1000.0), job("b", estimate_s=8000.0), job("c"), job("d", estimate_s=1.0)]
    plan = Pilot(hurry=hurry, floor=0.0).plan(make_view("1x4", jobs))
    worth = {name: -plan.reasons[name].numbers["objective_less"] for name in "abcd"}
    assert worth["a"] / worth["b"] == pytest.approx(8.0**hurry)
    assert worth["c"] / worth["a"] == pytest.approx((1000.0 / UNKNOWN_GPU_S) ** hurry)
    assert worth["d"] / worth["a"] == pytest.approx((1000.0 / LEAST_GPU_S) ** hurry)  # less is taken for that much


def test_without_hurry_what_is_left_does_not_matter() -> None:
    placements = []
    for estimates in ((1e2, 1e5), (1e5, 1e2)):
        jobs = [job(name, estimate_s=estimate_s) for name, estimate_s in zip("ab", estimates, strict=True)]
        placements.append(placement(Pilot(hurry=0.0).plan(make_view("1x1", jobs))))
    assert placements[0] == placements[1]


# -- pauses ------------------------------------------------------------------------------------------------------------


def begun(start_s: float, now: float, *, gpus: int = 2, **spec: Any) -> State:
    """A job that could be twice as fast on two GPUs runs on one; its start took a while."""
    state = tell(State(), NodeJoined(0.0, Node("n0", gpus)))
    tell(state, JobSubmitted(0.0, JobSpec(id="a", **{"gpus_max": 2, **spec})))
    tell(state, Start(0.0, "a", 1, Allocation.of({"n0": [0]})), JobStarted(start_s, "a", 1), Tick(now))
    return state


@pytest.mark.parametrize(("left_s", "gpus"), [(10.0, 1), (1000.0, 2)])
def test_a_pause_that_cannot_pay_off_keeps_a_job_where_it_is(left_s: float, gpus: int) -> None:
    """On two GPUs 10 s of work take 5: after a pause of 30 s that is 2 x 5 / 35 of the speed it has."""
    state = begun(30.0, 1030.0, estimate_s=1000.0 + left_s)
    assert sizes(Pilot().plan(state.snapshot())) == {"a": gpus}


def test_a_job_that_can_change_in_place_moves_more_readily() -> None:
    """Its pause is taken to be 2 s: 2 x 5 / 7."""
    state = begun(30.0, 1030.0, estimate_s=1010.0, in_place=True)
    assert sizes(Pilot().plan(state.snapshot())) == {"a": 2}


@pytest.mark.parametrize(("start_s", "gpus"), [(4.0, 2), (6.0, 1)])
def test_the_pause_is_the_one_that_was_measured(start_s: float, gpus: int) -> None:
    """10 s of work are left, 5 on two GPUs: a pause of up to 5 s pays off."""
    state = begun(start_s, 1000.0 + start_s, estimate_s=1010.0)
    assert sizes(Pilot().plan(state.snapshot())) == {"a": gpus}


def test_the_pause_of_a_change_in_place_is_the_one_that_was_measured() -> None:
    state = begun(30.0, 1030.0, estimate_s=1010.0, in_place=True)
    one, two = Allocation.of({"n0": [0]}), Allocation.of({"n0": [0, 1]})
    tell(state, Resize(1030.0, "a", 1, two), JobRescaled(1042.0, "a", 1))
    tell(state, Resize(1042.0, "a", 1, one), JobRescaled(1054.0, "a", 1))  # a change takes 12 s
    assert sizes(Pilot().plan(state.snapshot())) == {"a": 1}


@pytest.mark.parametrize(("starts", "gpus"), [(1, 2), (2, 1)])
def test_a_job_that_was_moved_often_is_expected_to_be_moved_again_soon(starts: int, gpus: int) -> None:
    """At 62 s, with starts that take 60: 2 x 62 / (62 + 60) of its speed after 1 start, 2 x 31 / (31 + 60) after 2."""
    state = tell(State(), NodeJoined(0.0, Node("n0", 2)), JobSubmitted(0.0, JobSpec(id="a", gpus_max=2)))
    one = Allocation.of({"n0": [0]})
    if starts == 2:
        tell(state, Start(0.0, "a", 1, one), Stop(0.0, "a", 1), JobStopped(0.0, "a", 1))
    tell(state, Start(0.0, "a", starts, one), JobStarted(60.0, "a", starts), Tick(62.0))
    assert sizes(Pilot().plan(state.snapshot())) == {"a": gpus}


def test_a_job_that_waits_has_nothing_to_lose_by_its_first_start() -> None:
    Scenario(nodes="1x1", jobs=[job("a", estimate_s=0.0)], expected={"a": 1}).check(Pilot())


# -- the floor ---------------------------------------------------------------------------------------------------------


def hogged(names: str, *, gpus: int = 4, **options: Any) -> Plan:
    """One job, of which nothing is known but that it is almost done, has had all GPUs while the others waited."""
    state = taught(gpus, {"x": 0.25})
    hog = JobSpec(id="hog", gpus=gpus, gpus_min=1, gpus_max=gpus, estimate_s=1001.0, in_place=True)
    every = Allocation.of({"n0": range(gpus)})
    tell(state, JobSubmitted(0.0, hog), Start(0.0, "hog", 1, every), JobStarted(0.0, "hog", 1))
    arrive(state, *names.split(), estimate_s=1e6)
    return Pilot(**options).plan(tell(state, Tick(1000.0)).snapshot())


def test_a_job_that_is_behind_gets_an_equal_share_before_anybody_gets_more() -> None:
    """Two jobs on 4 GPUs: one had all of them for 1000 s, the other nothing, so it is due two."""
    assert sizes(hogged("x1")) == {"x1": 2, "hog": 2}


def test_a_job_that_is_behind_gets_no_more_than_it_can_use_of_an_equal_share() -> None:
    """Nobody knows how it scales, so it may have one GPU."""
    assert sizes(hogged("unknown")) == {"unknown": 1, "hog": 3}


def test_jobs_that_are_behind_come_before_one_that_had_everything() -> None:
    """Four jobs on 3 GPUs, of which three had nothing: the hog, which scales best and is almost done, must wait."""
    assert sizes(hogged("x1 x2 x3", gpus=3)) == {"x1": 1, "x2": 1, "x3": 1}


def test_a_job_that_has_less_than_its_part_is_given_an_equal_share() -> None:
    """It runs on one GPU, but had it for 100 of 1000 s only: an equal share of the 4 is 2."""
    hog = job("hog", 3, gpus_min=1, gpus_max=4, on="n0[1,2,3]", estimate_s=1001.0)
    late = job("late", gpus_max=4, stints=[("n0[0]", 900.0, None)], estimate_s=1e6)
    assert sizes(Pilot().plan(make_view("1x4", [hog, late], now=1000.0))) == {"hog": 2, "late": 2}


#: One GPU. The hog has had it since 0 and is nearly done; `first` waits since 0, `second` since 500. All scale alike.
QUEUE = [
    job("hog", on="n0[0]", estimate_s=1001.0),
    job("first", estimate_s=1e6),
    job("second", submitted_at=500.0, estimate_s=1e6),
]


def test_with_more_jobs_than_gpus_who_is_behind_goes_before_who_is_not() -> None:
    plan = Pilot().plan(make_view("1x1", QUEUE, now=1000.0))
    assert "hog" not in plan.allocations


@pytest.mark.parametrize("furthest", ["a", "b"])
def test_with_more_jobs_than_gpus_the_furthest_behind_goes_first(furthest: str) -> None:
    """Both are behind: one had a third of its due, the other nothing, and is in no hurry."""
    other = "ab".replace(furthest, "")
    had_a_little = job(other, estimate_s=100.0, stints=[("n0[0]", 0.0, 110.0)])  # due: a quarter of 4000 / 3
    jobs = [had_a_little, job(furthest, estimate_s=1e6), job("hog", on="n0[1]", preemptible=False)]
    plan = Pilot().plan(make_view("1x2", jobs, now=2000.0))
    assert set(plan.allocations) == {"hog", furthest}


@pytest.mark.parametrize(("lasted_s", "holder"), [(199.0, "turn"), (201.0, "waits")])
def test_who_was_given_gpus_keeps_an_equal_share_of_them_for_a_lease(lasted_s: float, holder: str) -> None:
    """It took 20 s to start, so its lease is 200 s, whoever is behind."""
    state, ran_at = make_state("1x1"), 1000.0 - lasted_s
    for name in ("turn", "waits"):
        tell(state, JobSubmitted(0.0, JobSpec(id=name, estimate_s=1e6)))
    tell(state, Start(ran_at - 20.0, "turn", 1, Allocation.of({"n0": [0]})), JobStarted(ran_at, "turn", 1))
    assert set(Pilot().plan(tell(state, Tick(1000.0)).snapshot()).allocations) == {holder}


def test_a_lease_is_of_an_equal_share_and_no_more() -> None:
    hog = job("hog", 4, gpus_min=1, gpus_max=4, stints=[("n0[0,1,2,3]", 990.0, None)], estimate_s=1001.0)
    plan = Pilot().plan(make_view("1x4", [hog, job("waits", 2, gpus_min=2, estimate_s=1e6)], now=1000.0))
    assert sizes(plan) == {"hog": 2, "waits": 2}


def test_a_large_job_that_is_further_behind_goes_before_several_small_ones() -> None:
    small = [job(f"s{k}", submitted_at=900.0, estimate_s=100.0) for k in range(6)]
    plan = Pilot().plan(make_view("1x4", [*small, job("large", 4, estimate_s=1e6)], now=1000.0))
    assert sizes(plan) == {"large": 4}


def test_what_nobody_can_help_does_not_hide_what_can_be_gained() -> None:
    """`x` accepts one GPU only, which it has, and is behind; the others are not, and could use GPUs that are free."""
    alone = job("x", 1, on="b0[0]", gpus_min=1, gpus_max=8, gpu_types=("b",))
    free = job("y", 1, on="a0[0]", gpus_min=1, gpus_max=4, gpu_types=("a",), in_place=True)
    nodes = [Node("a0", 4, "a"), Node("b0", 1, "b")]
    state = make_state(nodes, [alone, free], now=3000.0)
    for name, gpu_type in (("x", "b"), ("y", "a")):
        tell(state, JobReported(3000.0, name, 1, 0.1, observations=(measured_on(gpu_type),)))
    assert sizes(Pilot().plan(tell(state, Tick(3600.0)).snapshot()))["y"] > 1


def measured_on(gpu_type: str) -> Observation:
    return Observation(gpu_type, 1, 1, 128, 0, 0.5, 0.0, 500)


def test_a_promise_is_worth_the_same_work_whether_or_not_a_job_can_shrink() -> None:
    view = make_view(
        "1x8", [job("rigid", 8, estimate_s=1e3), job("elastic", 8, gpus_min=1, gpus_max=8, estimate_s=1e3)], now=10.0
    )
    options = choices(view, Appraiser(), reach=1, lore=True)
    assert Pilot()._left(view, 0, options) == Pilot()._left(view, 1, options) == 8000.0


def test_a_guarantee_of_nothing_leaves_it_to_hurry() -> None:
    Scenario(nodes="1x1", jobs=QUEUE, now=1000.0, expected={"hog": 1}).check(Pilot(floor=0.0))


def test_who_has_had_its_share_is_not_served_first() -> None:
    """The floor is a quarter of an equal share: with 300 GPU-s of 500 nobody is behind, and hurry decides."""
    jobs = [
        job("a", estimate_s=1e6, stints=[("n0[0]", 0.0, 300.0)]),
        job("b", estimate_s=800.0, stints=[("n0[0]", 300.0, None)]),
    ]
    Scenario(nodes="1x1", jobs=jobs, now=1000.0, expected={"b": 1}).check(Pilot())


def test_while_a_job_waits_it_asks_again_before_the_job_is_far_behind() -> None:
    """A job that is known, and has all it may have, and one that just came: in a minute that one is behind."""
    state = arrive(taught(1, {"x": 0.25}), "x1", gpus_max=1)
    tell(state, Start(0.0, "x1", 1, Allocation.of({"n0": [0]})), JobStarted(0.0, "x1", 1))
    tell(state, JobReported(0.0, "x1", 1, 0.0, observations=(measured(averaging(0.25), 1, 840),)), Tick(100.0))
    arrive(state, "x2", gpus_max=1, estimate_s=1e6)
    plan = Pilot().plan(state.snapshot())
    assert sizes(plan) == {"x1": 1}
    assert plan.review_at < math.inf


# -- when to ask again -------------------------------------------------------------------------------------------------


def test_it_asks_again_soon_while_a_job_finds_out_how_well_it_scales() -> None:
    unknown = make_view("1x4", [job("a", gpus_max=4, on="n0[0]")], now=100.0)
    assert Pilot().plan(unknown).review_at == 115.0
    assert Pilot(review_s=60.0).plan(unknown).review_at == 160.0
    assert Pilot(review_s=0.0).plan(unknown).review_at == math.inf


@pytest.mark.parametrize(("most", "review_at"), [(16, 15.0), (8, math.inf)])
def test_it_asks_again_while_a_job_has_all_it_may_have_until_it_is_measured_there(most: int, review_at: float) -> None:
    """It was measured on 4 GPUs, so it may have 8; unless that is all it will ever have."""
    plan = Pilot().plan(arrive(taught(16, {"x": 0.001}), "x1", gpus_max=most).snapshot())
    assert sizes(plan) == {"x1": 8}
    assert plan.review_at == review_at


def test_it_need_not_be_asked_again_if_everybody_is_known_and_could_have_more() -> None:
    view = arrive(taught(8, {"x": 0.25}), "x1", "x2").snapshot()
    assert Pilot(**PLAIN).plan(view).review_at == math.inf


def test_it_need_not_be_asked_again_if_nobody_could_run() -> None:
    assert Pilot().plan(make_view("1x4", [])).review_at == math.inf
    assert Pilot().plan(make_view("1x4", [job("a", 8)])).review_at == math.inf
    assert Pilot().plan(make_view((), [job("a", 1)])).review_at == math.inf


def test_it_need_not_be_asked_again_while_all_jobs_run_and_none_can_be_resized() -> None:
    """Nothing was measured of them, and nothing would change if it were."""
    view = make_view("2x4", [job("a", 4, on="n0[0,1,2,3]"), job("b", 2, on="n1[0,1]")], now=100.0)
    assert Pilot().plan(view).review_at == math.inf


def test_while_a_job_waits_that_cannot_be_resized_it_asks_again_when_a_turn_may_come() -> None:
    """A lease of ten restarts of 30 s has just begun."""
    view = make_view("1x1", [job("a", 1, on="n0[0]"), job("b", 1)], now=0.0)
    plan = Pilot().plan(view)
    assert sizes(plan) == {"a": 1}
    assert plan.review_at == 300.0
    assert Pilot(floor=0.0).plan(view).review_at == math.inf, "without a floor no turn comes by itself"


def test_jobs_that_cannot_be_resized_take_a_few_decisions_each_with_the_result_of_looking_all_the_time() -> None:
    """Compared with a cadence that looks every 15 s, as it once did by itself."""
    specs = [JobSpec(id=f"j{n:02d}", gpus=1 + n % 3, estimate_s=500.0 + 631.0 * (n * 5 % 7)) for n in range(12)]
    costs = Costs(start_s=10.0, restart_s=25.0, save_s=5.0)
    jobs = [
        SimJob(spec, 90.0 * n, FixedDuration(spec.estimate_s or 0.0, spec.gpus), costs) for n, spec in enumerate(specs)
    ]
    counts: list[int] = []
    ends: list[dict[str, float]] = []
    for cadence in ("event", "event+15s"):
        watched, state = _Counting(Pilot()), State()
        world = SimBackend(jobs, parse_cluster("2x4"))
        run(watched, world, state=state, journal=MemoryJournal(), cadence=Cadence.parse(cadence))
        counts.append(watched.decisions)
        ends.append({job_id: done.since for job_id, done in state.finished.items()})
    assert counts[0] < 8 * len(jobs)
    assert counts[0] < counts[1] / 5
    assert len(ends[0]) == len(jobs)
    mean_s = [sum(each.values()) / len(jobs) for each in ends]
    assert mean_s[0] == pytest.approx(mean_s[1], rel=0.01), "looks are at other seconds, so turns come a little off"


class _Counting:
    def __init__(self, policy: Pilot) -> None:
        self._policy, self.decisions = policy, 0

    def plan(self, view: Snapshot) -> Plan:
        self.decisions += 1
        return self._policy.plan(view)
