"""Sia: its configurations, what they cost, who gets which, and what is thought of GPU types a job was never on.

Legend: J jobs, T GPU types, S sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.errors import InvalidPlan, InvalidSpec
from fairlead.core.messages import JobReported, JobStarted, JobSubmitted, NodeJoined, Start, Tick
from fairlead.core.plan import changes, check
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Allocation, Batch, Belief, JobSpec, Observation, Phase, Plan
from fairlead.goodput.throughput import ThroughputParams, grad_time, step_time, update_time
from fairlead.plugins import make_policy
from fairlead.policies.allocator import Problem, allocate
from fairlead.policies.appraising import Appraiser
from fairlead.policies.sia import Sia, configurations, configured, solve
from fairlead.policies.weighing import choices
from fairlead.sim.cluster import parse_cluster
from fairlead.testing import GivenJob, check_policy, job, make_view, placement

#: A job that computes for long and averages quickly; the same on a GPU five times as fast.
SLOW = ThroughputParams(0.0, 0.01, 0.1, 0.0, 0.05, 0.0, 1.0)
FAST = SLOW.faster(5.0)


def seen(params: ThroughputParams, gpu_type: str, gpus: int = 1, *, nodes: int = 1, m: int = 100) -> Observation:
    """What a profiler would measure."""
    step_s = float(step_time(params, nodes, gpus, m))
    sync_s = float(update_time(params, nodes, gpus, m) - grad_time(params, m))
    return Observation(gpu_type, nodes, gpus, m, 0, step_s, sync_s, steps=100)


def taught(view: Snapshot, beliefs: Mapping[str, list[Observation]], **lore: list[Observation]) -> Snapshot:
    """The same moment, had these measurements been reported: by jobs, and of models."""
    jobs = {
        job_id: replace(job, belief=Belief(observations=tuple(beliefs.get(job_id, ())), noise_scale=1e4))
        for job_id, job in view.jobs.items()
    }
    return replace(view, jobs=jobs, lore={name: Belief(observations=tuple(told)) for name, told in lore.items()})


def elastic(job_id: str, most: int = 64, **more: Any) -> GivenJob:
    return job(job_id, 1, gpus_min=1, gpus_max=most, **more)


def sizes(plan: Plan) -> dict[str, int]:
    return {job_id: allocation.total for job_id, allocation in plan.allocations.items()}


def decided(view: Snapshot, policy: Sia | None = None) -> Plan:
    plan = (policy or Sia()).plan(view)
    check(view, plan, changes(view, plan))
    return plan


# -- configurations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "one", "many"),
    [
        ([4] * 6, [1, 2, 4], [8, 12, 16, 20, 24]),
        ([8] * 3, [1, 2, 4, 8], [16, 24]),
        ([8] * 2, [1, 2, 4, 8], [16]),
        ([6] * 2, [1, 2, 4, 6], [12]),
        ([4, 4, 8], [1, 2, 4, 8], []),
        ([1, 1, 1], [1], [2, 3]),
        ([0, 4], [1, 2, 4], []),
        ([0], [], []),
    ],
)
def test_configurations_are_powers_of_two_in_a_node_and_whole_nodes(
    nodes: list[int], one: list[int], many: list[int]
) -> None:
    sizes_S = np.arange(30)
    one_S, many_S = configurations(sizes_S, np.array(nodes))
    assert (sizes_S[one_S].tolist(), sizes_S[many_S].tolist()) == (one, many)


def test_a_job_that_was_never_measured_begins_on_one_gpu() -> None:
    assert sizes(decided(make_view("2x4", [elastic("a")]))) == {"a": 1}


def test_a_job_has_at_most_twice_the_gpus_it_was_measured_on() -> None:
    for measured, expected in ((1, 2), (2, 4), (3, 4), (4, 8), (8, 16)):
        view = taught(make_view("4x4", [elastic("a")]), {"a": [seen(SLOW, "gpu", measured, nodes=-(-measured // 4))]})
        assert sizes(decided(view)) == {"a": expected}


def test_a_job_has_no_more_than_its_user_allows_and_only_the_types_it_accepts() -> None:
    told = [seen(SLOW, "t4", 8), seen(FAST, "a100", 8)]
    view = make_view("t4=2x8,a100=2x8", [elastic("a", most=2), elastic("b", gpu_types=("t4",))])
    plan = decided(taught(view, {"a": told, "b": told}))
    assert sizes(plan) == {"a": 2, "b": 16}
    assert set(plan.allocations["b"].nodes) == {"n0", "n1"}


@pytest.mark.parametrize(("gpus", "expected"), [(3, 3), (6, 6), (5, 5)])
def test_a_rigid_job_gets_its_own_number_of_gpus(gpus: int, expected: int) -> None:
    plan = decided(make_view("2x4", [job("rigid", gpus)]))
    assert sizes(plan) == {"rigid": expected}
    assert len(plan.allocations["rigid"].nodes) == -(-gpus // 4)


@pytest.mark.parametrize("search", ["exact", "milp"])
def test_whoever_moves_goes_to_a_configuration(search: str) -> None:
    told = {f"j{k}": [seen(SLOW, "t4", 2 + k % 5), seen(FAST, "a100", 1 + k % 4)] for k in range(12)}
    view = taught(make_view("t4=3x4,a100=2x8", [elastic(name) for name in told], now=1000.0), told)
    nodes = {node.id: node for node in view.nodes.values()}
    for allocation in decided(view, Sia(search=search)).allocations.values():
        kinds = {nodes[node].gpu_type for node in allocation.nodes}
        (per_node,) = {nodes[node].gpus for node in allocation.nodes}
        allowed = {1, 2, 4, per_node} if len(allocation.nodes) == 1 else {per_node * n for n in range(2, 4)}
        assert len(kinds) == 1
        assert allocation.total in allowed


# -- costs -------------------------------------------------------------------------------------------------------------


def costs(view: Snapshot, policy: Sia | None = None) -> Problem:
    return (policy or Sia()).problem(view.now, configured(choices(view, Appraiser(), reach=1, lore=False)))


def test_the_slowest_configuration_costs_1_and_waiting_more() -> None:
    view = taught(make_view("t4=1x4,a100=1x4", [elastic("a")]), {"a": [seen(SLOW, "t4", 4), seen(FAST, "a100", 4)]})
    problem = costs(view)
    assert problem.sizes_S.tolist() == [0, 1, 2, 4]
    assert view.node_columns.gpu_types == ("a100", "t4")
    assert problem.one_JTS[0, 0, 1] == pytest.approx(5.0**-0.5, rel=1e-3)
    assert problem.one_JTS[0, 1, 1] == pytest.approx(1.0)
    assert (np.diff(problem.one_JTS[0, :, 1:]) < 0.0).all()
    assert problem.idle_J.tolist() == [1.1]


def test_with_a_positive_exponent_utilities_are_earned_and_waiting_still_costs() -> None:
    view = taught(make_view("1x4", [elastic("a")]), {"a": [seen(SLOW, "gpu", 4)]})
    problem = costs(view, Sia(p=0.5))
    assert problem.one_JTS[0, 0, 1] == pytest.approx(-1.0)
    assert problem.one_JTS[0, 0, 3] < problem.one_JTS[0, 0, 2] < -1.0
    assert problem.idle_J.tolist() == [1.1]


def test_a_job_that_needs_several_gpus_counts_as_much_as_they_do() -> None:
    problem = costs(make_view("2x4", [job("four", 4), job("one", 1)]))
    assert problem.one_JTS[:, 0].min(axis=1).tolist() == pytest.approx([0.5, 1.0])


def started(*, start_s: float, now: float, attempts: int = 1) -> Snapshot:
    """A job on one of four GPUs, which took so long to start; all attempts but the last were very short."""
    state = State()
    for node in parse_cluster("1x4"):
        state.apply(NodeJoined(0.0, node))
    state.apply(JobSubmitted(0.0, JobSpec(id="a", gpus=1, gpus_max=4)))
    state.issue(Start(0.0, "a", 1, Allocation.of({"n0": [0]})))
    state.apply(JobStarted(start_s, "a", 1))
    state.apply(JobReported(start_s + 1.0, "a", 1, 0.1, observations=(seen(SLOW, "gpu"),), noise_scale=1e4))
    state.apply(Tick(now))
    view = state.snapshot()
    return replace(view, jobs={"a": replace(view.jobs["a"], attempt=attempts)})


@pytest.mark.parametrize(
    ("start_s", "now", "attempts", "factor"),
    [
        (20.0, 180.0, 1, 180 / 200),  # (T - N S) / (T + S)
        (20.0, 180.0, 4, 120 / 200),
        (30.0, 1170.0, 1, 1170 / 1200),
        (30.0, 31.0, 2, 1 / 61),
    ],
)
def test_a_change_counts_less_the_dearer_and_the_more_frequent_restarts_are(
    start_s: float, now: float, attempts: int, factor: float
) -> None:
    problem = costs(started(start_s=start_s, now=now, attempts=attempts))
    assert problem.stay_J[0] == pytest.approx(1.0)
    assert problem.one_JTS[0, 0, 1] == pytest.approx(factor**-0.5)


def test_a_job_too_often_restarted_stays() -> None:
    view = started(start_s=30.0, now=60.0, attempts=10)
    assert np.isinf(costs(view).one_JTS).all()
    assert decided(view).allocations == view.allocations


def test_a_job_younger_than_a_restart_and_one_that_waits_have_nothing_to_lose() -> None:
    young = make_view("1x4", [elastic("a", on="n0[0]")], now=10.0)
    young = replace(young, jobs={"a": replace(young.jobs["a"], start_s=None)})
    waits = make_view("1x4", [elastic("a", stints=[("n0[0]", 0.0, 50.0)])], now=100.0)
    for view in (young, waits):
        assert costs(view).one_JTS[0, 0, 1] == pytest.approx(1.0)


# -- who gets what -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", ["exact", "milp"])
def test_the_faster_type_goes_to_the_job_that_gains_more_by_it(search: str) -> None:
    view = make_view("t4=1x1,a100=1x1", [elastic("lame"), elastic("keen")])
    told = {"lame": [seen(SLOW, "t4"), seen(SLOW.faster(1.2), "a100")], "keen": [seen(SLOW, "t4"), seen(FAST, "a100")]}
    assert placement(decided(taught(view, told), Sia(search=search))) == {"lame": "n0[0]", "keen": "n1[0]"}


@pytest.mark.parametrize("search", ["exact", "milp"])
def test_the_larger_share_goes_to_the_job_that_scales_better(search: str) -> None:
    view = make_view("1x4", [elastic("scales"), elastic("does-not")])
    busy = replace(SLOW, alpha_r=2.0)
    told = {"scales": [seen(SLOW, "gpu", 4)], "does-not": [seen(busy, "gpu", 4), seen(busy, "gpu")]}
    assert sizes(decided(taught(view, told), Sia(search=search))) == {"scales": 2, "does-not": 1}


@pytest.mark.parametrize("search", ["exact", "milp"])
@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING])
def test_whoever_starts_keeps_what_it_holds(search: str, phase: Phase) -> None:
    """One that runs gives back what does not help it; one that is starting cannot."""
    view = make_view("1x4", [elastic("a", on="n0[0,1,2,3]", phase=phase), elastic("b"), elastic("c")], now=5000.0)
    busy = replace(SLOW, alpha_r=2.0)
    plan = decided(taught(view, {"a": [seen(busy, "gpu", 4), seen(busy, "gpu")]}), Sia(search=search))
    assert sizes(plan) == ({"a": 4} if phase is Phase.STARTING else {"a": 1, "b": 1, "c": 1})


def test_a_job_that_must_not_be_preempted_keeps_what_it_holds() -> None:
    view = make_view("1x2", [elastic("a", on="n0[0,1]", preemptible=False), elastic("b"), elastic("c")], now=5000.0)
    assert placement(decided(view)) == {"a": "n0[0,1]"}


def test_a_job_may_keep_what_is_no_configuration() -> None:
    view = taught(make_view("1x3", [elastic("a", on="n0[0,1,2]")], now=60.0), {"a": [seen(SLOW, "gpu", 3)]})
    assert placement(decided(view)) == {"a": "n0[0,1,2]"}


@pytest.mark.parametrize("policy", [Sia(search="milp"), Sia(p=0.5), Sia(p=-2.0, idle=3.0)])
def test_every_search_and_exponent_keeps_the_contract(policy: Sia) -> None:
    check_policy(policy, examples=15)


# -- the two searches --------------------------------------------------------------------------------------------------


def random_problem(seed: int, *, types: int, jobs: int) -> Problem:
    """Jobs with configurations on nodes of four; some of them hold some of the GPUs, and a few are pinned."""
    rng = np.random.default_rng(seed)
    type_N = np.repeat(np.arange(types), 3)
    sizes_S = np.array([0, 1, 2, 4, 8, 12])
    utility_JTS = rng.uniform(1.0, 5.0, (jobs, types, 1)) * sizes_S ** rng.uniform(0.2, 1.0, (jobs, types, 1))
    with np.errstate(divide="ignore"):
        cost_JTS = utility_JTS**-0.5
    moved_JTS = cost_JTS * rng.uniform(1.0, 1.3, (jobs, 1, 1))
    one_JTS = np.where((sizes_S > 0) & (sizes_S <= 4), moved_JTS, np.inf)
    many_JTS = np.where(sizes_S > 4, moved_JTS, np.inf)
    idle_J, stay_J, held = np.full(jobs, 1.1), np.full(jobs, np.inf), [dict[int, int]() for _ in range(jobs)]
    free_N = np.full(len(type_N), 4)
    for j in range(jobs // 2):
        node, place = int(rng.integers(len(type_N))), int(rng.integers(1, 4))
        if free_N[node] >= sizes_S[place]:
            held[j], stay_J[j] = {node: int(sizes_S[place])}, cost_JTS[j, type_N[node], place]
            free_N[node] -= sizes_S[place]
            if rng.random() < 0.2:
                one_JTS[j] = many_JTS[j] = idle_J[j] = np.inf
    return Problem(sizes_S, one_JTS, many_JTS, idle_J, stay_J, held, np.full(len(type_N), 4), type_N)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_with_one_type_both_searches_find_the_same_optimum(seed: int, jobs: int) -> None:
    """Of sizes and types. Where nodes are too full for them, both pay the same extra or little."""
    problem = random_problem(seed, types=1, jobs=jobs)
    ours, programme = allocate(problem), solve(problem, time_limit_s=20.0)
    assert ours.bound == pytest.approx(programme.bound, rel=2e-4)
    assert programme.cost == pytest.approx(ours.cost, rel=0.05)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 16), st.integers(2, 3))
def test_with_several_types_the_optimum_is_within_the_bound_that_the_exact_search_states(
    seed: int, jobs: int, types: int
) -> None:
    problem = random_problem(seed, types=types, jobs=jobs)
    ours, programme = allocate(problem), solve(problem, time_limit_s=20.0)
    assert ours.bound <= programme.cost + 1e-6
    assert programme.bound <= ours.cost + 1e-6
    assert programme.bound <= programme.cost + 1e-9


def test_both_searches_give_the_same_plan_where_the_choice_is_clear() -> None:
    told = {name: [seen(SLOW, "t4", 2), seen(FAST, "a100", 2)] for name in "ab"}
    view = taught(make_view("t4=1x4,a100=1x4", [elastic("a", most=2), elastic("b", most=2)]), told)
    exact, milp = decided(view), decided(view, Sia(search="milp"))
    assert exact.allocations == milp.allocations
    assert exact.bound == pytest.approx(0.0, abs=1e-4)
    assert milp.bound == pytest.approx(0.0, abs=1e-4)


def test_a_programme_without_a_solution_is_an_error() -> None:
    problem = random_problem(0, types=1, jobs=1)
    impossible = replace(problem, idle_J=np.array([np.inf]), stay_J=np.array([np.inf]), gpus_N=np.zeros(3, dtype=int))
    with pytest.raises(InvalidPlan, match=r"no answer after 1 s; .*use search=exact"):
        solve(impossible, time_limit_s=1.0)


def test_a_programme_cut_short_is_an_error_unless_it_has_an_answer() -> None:
    with pytest.raises(InvalidPlan, match="raise time_limit_s"):
        solve(random_problem(1, types=3, jobs=150), time_limit_s=1e-9)


def test_without_scipy_the_programme_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    view = make_view("1x4", [elastic("a")])
    assert sizes(decided(view)) == {"a": 1}
    with pytest.raises(InvalidSpec, match="pip install 'scipy"):
        Sia(search="milp").plan(view)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("search=genetic", "expected exact or milp"),
        ("p=0", "and not 0"),
        ("p=inf", "p is inf"),
        ("idle=1", "expected more than 1"),
        ("restart_s=-1", "restart_s is -1"),
        ("restarts=guessed", "expected measured or published"),
        ("digits=16", "expected 0 to 15"),
        ("time_limit_s=0", "^sia: time_limit_s is 0.0; expected a number of seconds above 0$"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: str, expected: str) -> None:
    with pytest.raises(InvalidSpec, match=expected):
        make_policy(f"sia:{options}")


# -- GPU types a job was never on --------------------------------------------------------------------------------------


def goodputs(view: Snapshot, gpu_type: str) -> list[float]:
    """Of job a on 1, 2 and 4 GPUs of a node, as far as anybody knows."""
    (appraisal,) = Appraiser().appraise(view, [view.jobs["a"]], gpu_type, reach=4, lore=True)
    return [appraisal.goodput(1, gpus) for gpus in (1, 2, 4)]


TWO_TYPES = make_view("t4=1x4,a100=1x4", [elastic("a")])
MEASURED = [*(seen(SLOW, "t4", gpus) for gpus in (1, 2, 4)), seen(SLOW, "t4", m=50)]


def test_on_a_type_of_which_nothing_is_known_a_job_is_as_fast_as_where_it_was_measured() -> None:
    view = taught(TWO_TYPES, {"a": MEASURED})
    assert goodputs(view, "a100") == pytest.approx(goodputs(view, "t4"))


def test_one_measurement_on_a_type_tells_how_much_faster_the_job_is_on_any_number_of_its_gpus() -> None:
    view = taught(TWO_TYPES, {"a": [*MEASURED, seen(FAST, "a100", m=60)]})
    faster = [fast / slow for fast, slow in zip(goodputs(view, "a100"), goodputs(view, "t4"), strict=True)]
    assert faster == pytest.approx([5.0] * 3, rel=1e-2)


def test_several_gpus_of_a_type_tell_more_than_other_types_do() -> None:
    own = [seen(FAST, "a100", gpus) for gpus in (1, 2, 4)]
    alone = goodputs(taught(TWO_TYPES, {"a": own}), "a100")
    assert goodputs(taught(TWO_TYPES, {"a": [*MEASURED, *own]}), "a100") == pytest.approx(alone)


def test_without_a_measurement_the_median_of_other_models_tells_how_much_faster_it_is() -> None:
    others = {
        f"model-{factor:g}": [seen(SLOW, "t4", 2), seen(SLOW.faster(factor), "a100", 4)] for factor in (2.0, 4.0, 50.0)
    }
    view = taught(TWO_TYPES, {"a": MEASURED}, **others, elsewhere=[seen(SLOW, "k80")])
    faster = [fast / slow for fast, slow in zip(goodputs(view, "a100"), goodputs(view, "t4"), strict=True)]
    assert faster == pytest.approx([4.0] * 3, rel=0.05)


def test_sia_learns_of_gpu_types_from_other_models_but_not_of_its_own_one() -> None:
    """Another job of the model was on 8 GPUs; this one begins on one, but of the type that suits most models."""
    view = make_view("t4=1x8,a100=1x8", [elastic("a", on="n0[0]", labels={"model": "mine"})], now=5000.0)
    told = {"a": [seen(SLOW, "t4"), seen(SLOW, "t4", m=50)]}
    lore = {"mine": [seen(SLOW, "t4", 8)], "other": [seen(SLOW, "t4"), seen(FAST, "a100")]}
    plan = decided(taught(view, told, **lore))
    assert placement(plan) == {"a": "n1[0,1]"}


def test_what_its_own_model_showed_on_both_types_tells_more_than_other_models_do() -> None:
    """Most models are five times as fast on the one type. This one is slower there, as earlier jobs of it were."""
    view = make_view("t4=1x4,a100=1x4", [elastic("a", labels={"model": "mine"})])
    lore = {"mine": [seen(SLOW, "t4"), seen(SLOW.faster(0.5), "a100")], "other": [seen(SLOW, "t4"), seen(FAST, "a100")]}
    view = taught(view, {"a": MEASURED}, **lore)
    (there,) = Appraiser().appraise(view, [view.jobs["a"]], "a100", reach=4, lore=False)
    (here,) = Appraiser().appraise(view, [view.jobs["a"]], "t4", reach=4, lore=False)
    assert there.goodput(1, 1) / here.goodput(1, 1) == pytest.approx(0.5, rel=0.05)


def test_a_batch_that_was_seen_to_fit_on_a_type_is_counted_on_there() -> None:
    """Its user stated what fits on every type; on one of them earlier jobs had four times as much."""
    batch = Batch(100, 10_000, 1, 100)
    view = make_view("t4=1x4,a100=1x4", [elastic("a", labels={"model": "mine"}, batch=batch)])
    slow = ThroughputParams(1.0, 0.0001, 0.1, 0.0, 0.05, 0.0, 1.0)  # four times the batch in nearly the same time
    told = {"a": [seen(slow, "t4"), seen(slow, "t4", m=50)]}
    goodput = {}
    for m in (100, 400):
        known = taught(view, told, mine=[seen(slow, "t4"), seen(slow, "a100", m=m)])
        (appraisal,) = Appraiser().appraise(known, [known.jobs["a"]], "a100", reach=1, lore=False)
        goodput[m] = appraisal.goodput(1, 1)
    assert goodput[400] > 1.5 * goodput[100]


@pytest.mark.parametrize(
    ("restarts", "expected"), [("measured", (1000.0 - 0.0) / 1300.0), ("published", 1000.0 / 1030.0)]
)
def test_a_restart_is_taken_to_cost_what_it_took_or_what_was_published(restarts: str, expected: float) -> None:
    view = make_view("t4=1x4", [elastic("a", on="n0[0]", labels={"model": "cifar10"})], now=1000.0)
    held = replace(view.jobs["a"], start_s=300.0, submitted_at=0.0, attempt=1)
    assert Sia(restarts=restarts)._restart_factor(1000.0, held) == pytest.approx(expected)
    assert Sia(restarts="published")._pause_s(replace(held, spec=replace(held.spec, labels={}))) == 30.0


def test_costs_may_be_rounded_as_in_the_released_code() -> None:
    view = taught(make_view("t4=1x8", [elastic("a", on="n0[0,1,2,3]")], now=5000.0), {"a": MEASURED})
    options = configured(choices(view, Appraiser(), reach=1, lore=False))
    exact, rounded = (Sia(digits=digits).problem(5000.0, options).one_JTS for digits in (15, 2))
    finite = np.isfinite(exact)
    assert (rounded[finite] == np.round(exact[finite], 2)).all()
    assert not (rounded[finite] == exact[finite]).all()


def test_what_is_remembered_does_not_outlive_what_it_was_computed_from() -> None:
    appraiser, found = Appraiser(), []
    for factor in (2.0, 4.0):
        view = taught(TWO_TYPES, {"a": MEASURED}, other=[seen(SLOW, "t4"), seen(SLOW.faster(factor), "a100")])
        (again,) = appraiser.appraise(view, [view.jobs["a"]], "a100", reach=4, lore=True)
        found.append(again.goodput(1, 1))
        assert again.goodput(1, 1) == goodputs(view, "a100")[0]
    assert found[1] == pytest.approx(2.0 * found[0], rel=0.02)


def test_a_measurement_that_cannot_be_true_is_not_believed() -> None:
    odd = replace(seen(FAST, "a100"), step_s=1e-300, sync_s=0.0)
    assert goodputs(taught(TWO_TYPES, {"a": [*MEASURED, odd]}), "a100")[0] > 0.0
    nothing = replace(seen(FAST, "a100"), step_s=0.0, sync_s=0.0)
    view = taught(TWO_TYPES, {"a": [*MEASURED, nothing]})
    assert goodputs(view, "a100") == pytest.approx(goodputs(view, "t4"))
