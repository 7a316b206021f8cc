"""Reasons in figures: what a GPU more or less would do, as the tables that decided have it, and the sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from numpy.typing import NDArray

from fairlead.core.messages import JobReported
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Batch, Observation, Reason
from fairlead.policies.allocator import Problem, allocate
from fairlead.policies.appraising import Appraiser
from fairlead.policies.explaining import weighed_reasons
from fairlead.policies.placing import realise
from fairlead.policies.weighed_wait import Rules, Standing
from fairlead.policies.weighing import Choices, choices
from fairlead.testing import GivenJob, job, make_state, make_view
from fairlead.testing.history import History, histories
from fairlead.testing.scenario import allocation

Floats = NDArray[np.float64]

#: What is left of a job's goodput by a change, and what no GPUs at all cost.
MOVED, IDLE = 0.5, 1000.0


def inverse(goodput: Floats) -> Floats:
    return np.asarray(100.0 - goodput)


def weighed(view: Snapshot) -> tuple[Choices, Problem]:
    options = choices(view, Appraiser(), reach=1, lore=False)
    J = len(options.jobs)
    return options, options.problem(inverse, moved=lambda goodput: goodput * MOVED, idle_J=np.full(J, IDLE))


def explain(view: Snapshot, plan: Mapping[str, str]) -> Mapping[str, Reason]:
    """Why everybody is where this plan puts them."""
    options, problem = weighed(view)
    return weighed_reasons(view, {name: allocation(where) for name, where in plan.items()}, options, problem)


def reason(nodes: str, given_job: GivenJob, where: str | None, **more: Any) -> Reason:
    """Why one job is there, of which nothing is known: goodput is the number of GPUs, and a choice costs 100 less that.

    After a change half of the goodput is left.
    """
    plan = {} if where is None else {given_job.spec.id: where}
    return explain(make_view(nodes, [given_job], **more), plan)[given_job.spec.id]


# -- sentences ---------------------------------------------------------------------------------------------------------

TWO = job("a", 2, gpus_min=1, gpus_max=4, on="n0[0,1]")


def test_a_job_that_stays_is_told_what_it_keeps() -> None:
    """It has 2; a change to 1 leaves 0.5 and to 3 leaves 1.5 of the goodput."""
    found = reason("1x4", TWO, "n0[0,1]")
    assert found.code == "placed"
    assert found.text == (
        "keeps 2 GPUs at 2.00x the speed of one (one less: 1.00x, objective -1.5; one more: 3.00x, objective -0.5)"
    )
    assert found.numbers == {
        "gpus": 2,
        "most": 4,
        "goodput": 2.0,
        "speedup": 2.0,
        "speedup_less": 1.0,
        "objective_less": -1.5,
        "speedup_more": 3.0,
        "objective_more": -0.5,
    }


def test_a_job_that_starts_is_told_what_it_gets() -> None:
    found = reason("1x4", job("a", gpus_max=4), "n0[2]")
    assert found.code == "placed"
    assert found.text == "gets 1 GPU: 1.00x the speed of one (one less: 0.00x, objective -900)"
    assert found.numbers["objective_less"] == pytest.approx(99.5 - IDLE)
    assert "objective_more" not in found.numbers  # it may not have two yet


def test_a_job_that_changes_is_told_from_what_to_what_and_what_staying_would_mean() -> None:
    """Staying costs 98, three GPUs elsewhere 98.5: half of the goodput is left."""
    found = reason("2x4", TWO, "n1[0,1,2]")
    assert found.text.startswith("goes from 2 to 3 GPUs, 3.00x the speed of one")
    assert found.numbers["objective_stay"] == pytest.approx(98.5 - 98.0)
    assert "others gain more by it" in found.text
    assert found.numbers["objective_more"] == pytest.approx(0.5)


def test_a_job_that_is_better_off_elsewhere_is_told_by_how_much() -> None:
    view = make_view("1x4", [TWO])
    options = choices(view, Appraiser(), reach=1, lore=False)
    problem = options.problem(inverse, moved=lambda goodput: goodput, idle_J=np.full(1, IDLE))
    found = weighed_reasons(view, {"a": allocation("n0[0,1,2,3]")}, options, problem)["a"]
    assert found.numbers["objective_stay"] == -2.0
    assert found.text.startswith("goes from 2 to 4 GPUs, 4.00x the speed of one: staying would be worse for it by 2")


def test_a_job_that_achieves_nothing_where_it_is_is_told_of_the_change_only() -> None:
    """Two GPUs and a batch of one sample."""
    state = make_state("1x4", [job("a", 2, gpus_min=1, on="n0[0,1]", batch=Batch(1, 1))])
    state.apply(JobReported(0.0, "a", 1, 0.1, observations=(Observation("gpu", 1, 1, 1, 0, 1.0, 0.0),)))
    found = explain(state.snapshot(), {"a": "n0[0]"})["a"]
    assert found.text.startswith("goes from 2 to 1 GPU, 1.00x the speed of one (")
    assert found.numbers["objective_stay"] == -math.inf


def test_a_job_that_waits_is_told_so_and_what_one_gpu_would_do() -> None:
    found = reason("1x4", job("a"), None)
    assert (found.code, found.text) == (
        "unplaced",
        "needs 1 GPU and 4 are free, but the search has found no better use of them yet",
    )
    assert (found.numbers["gpus"], found.numbers["speedup"], found.numbers["goodput"]) == (0, 0.0, 0.0)
    assert found.numbers["objective_more"] == pytest.approx(IDLE - 99.5)


def test_a_job_that_loses_everything_is_told_what_staying_would_do() -> None:
    found = reason("1x4", TWO, None)
    assert found.code == "unplaced"  # no plan would do so: all GPUs are free
    assert found.numbers["objective_stay"] == pytest.approx(IDLE - 98.0)
    assert "objective_less" not in found.numbers


def test_the_figures_are_those_of_the_gpu_type_it_is_on() -> None:
    state = make_state("v100=1x4,t4=1x4", [job("a", 2, gpus_min=1, gpus_max=4, on="n1[0,1]", batch=Batch(64, 64))])
    seen = [Observation("t4", 1, gpus, 64 // gpus, 0, 1.0, 0.1 * (gpus > 1), 100) for gpus in (1, 2)]
    state.apply(JobReported(0.0, "a", 1, 0.1, observations=tuple(seen)))
    view = state.snapshot()
    options, _ = weighed(view)
    found = explain(view, {"a": "n1[0,1]"})["a"]
    appraisal = options.appraisals[0]["t4"]
    assert found.numbers["goodput"] == appraisal.goodput(1, 2)
    assert found.numbers["speedup"] == pytest.approx(1.0, rel=0.01)  # two are as fast as one


def test_a_job_on_several_nodes_is_told_the_speed_it_has_there() -> None:
    state = make_state("2x4", [job("a", 2, gpus_min=1, gpus_max=4, on="n0[0] n1[0]", batch=Batch(64, 64))])
    far = Observation("gpu", 2, 2, 32, 0, 3.0, 2.5, 100)
    near = Observation("gpu", 1, 2, 32, 0, 0.6, 0.1, 100)
    state.apply(JobReported(0.0, "a", 1, 0.1, observations=(far, near)))
    view = state.snapshot()
    spread, together = (explain(view, {"a": where})["a"].numbers for where in ("n0[0] n1[0]", "n0[0,1]"))
    assert spread["goodput"] == pytest.approx(64 / 3.0, rel=0.05)
    assert together["goodput"] == pytest.approx(64 / 0.6, rel=0.05)
    assert together["objective_stay"] == pytest.approx(
        (100.0 - 0.5 * together["goodput"]) - (100.0 - spread["goodput"])
    )


def test_every_live_job_has_a_reason_and_nobody_else() -> None:
    reasons = explain(make_view("1x4", [job("a"), job("b")]), {"a": "n0[0]"})
    assert list(reasons) == ["a", "b"]
    with pytest.raises(KeyError):
        reasons["c"]


# -- jobs that a rule serves first -------------------------------------------------------------------------------------


def served_first(given_job: GivenJob, where: str | None, *, scale: float | None = 1.0) -> Reason:
    """Why a job is there, if going without costs more than anybody could earn; as `pilot` prices who is behind."""
    view = make_view("1x4", [given_job])
    options = choices(view, Appraiser(), reach=1, lore=False)
    problem = options.problem(lambda goodput: -goodput, moved=lambda goodput: goodput, idle_J=np.full(1, 2e4))
    plan = {} if where is None else {given_job.spec.id: allocation(where)}
    return weighed_reasons(view, plan, options, replace(problem, scale=scale))[given_job.spec.id]


def test_a_job_that_is_served_first_is_told_so_in_words_and_not_by_its_price() -> None:
    gets = served_first(job("a", gpus_max=4), "n0[2]")
    assert gets.text == (
        "gets 1 GPU: 1.00x the speed of one; it is behind its floor (one less: 0.00x, less than it is owed)"
    )
    assert gets.numbers["objective_less"] == pytest.approx(-2e4, rel=1e-3)
    keeps = served_first(job("a", gpus_max=1, on="n0[0]"), "n0[0]")
    assert keeps.text.startswith("keeps 1 GPU at 1.00x the speed of one; its lease is not over, or it is behind")


def test_a_large_objective_is_no_price_where_nothing_is_priced() -> None:
    assert "objective -2e+04" in served_first(job("a", gpus_max=4), "n0[2]", scale=None).text


def test_a_job_that_is_given_nothing_while_gpus_are_kept_for_another_is_told_so() -> None:
    view = make_view("1x4", [job("a", gpus_max=4), job("b", 3)])
    options, problem = weighed(view)
    rules = Rules(lambda job_id: Standing(behind_gpu_s=70.0) if job_id == "b" else None, reserved="b")
    found = weighed_reasons(view, {}, options, problem, rules=rules)["a"]
    assert (found.code, found.jobs) == ("behind", ("b",))
    assert found.text == (
        "needs 1 GPU and 4 are free, but they are kept for job b, which needs 3 GPUs: it is 70 GPU-s behind its floor"
    )


# -- what is not true --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given_job", "where"), [(job("a", 3), "n0[0,1,2]"), (job("a", 3), None)])
def test_a_sentence_has_no_empty_brackets(given_job: GivenJob, where: str | None) -> None:
    assert "()" not in reason("1x4", given_job, where).text


def test_the_speed_of_one_is_that_of_one() -> None:
    found = reason("1x8", job("a", 4, gpus_min=2, gpus_max=8, on="n0[0,1,2,3]"), "n0[0,1,2,3]")
    assert found.numbers["speedup"] == 4.0 or "the speed of one" not in found.text


@pytest.mark.parametrize(
    ("nodes", "given_job"),
    [("1x4", job("a", 8)), ("v100=1x4", job("a", gpu_types=("t4",)))],
    ids=["larger than the cluster", "of another type"],
)
def test_a_job_that_cannot_run_here_is_not_told_that_others_do_more_good(nodes: str, given_job: GivenJob) -> None:
    assert "more good elsewhere" not in reason(nodes, given_job, None).text


def test_a_job_that_waits_is_told_of_a_gpu_type_it_accepts() -> None:
    found = reason("v100=1x4,t4=1x4", job("a", gpu_types=("t4",)), None)
    assert found.numbers["speedup_more"] == 1.0


# -- against the tables ------------------------------------------------------------------------------------------------


def cost_of(problem: Problem, j: int, kind: int, counts: Sequence[int], *, stays: bool) -> float:
    """What a placement costs: so many GPUs on each node."""
    if not counts:
        return float(problem.idle_J[j])
    if stays:
        return float(problem.stay_J[j])
    size = problem.sizes_S.tolist().index(sum(counts))
    return float((problem.one_JTS if len(counts) == 1 else problem.many_JTS)[j, kind, size])


def best_of(problem: Problem, j: int, kind: int, gpus: int) -> float:
    """What so many GPUs cost where they are placed best."""
    sizes = problem.sizes_S.tolist()
    if gpus == 0:
        return float(problem.idle_J[j])
    if gpus not in sizes:
        return math.inf
    return float(min(table[j, kind, sizes.index(gpus)] for table in (problem.one_JTS, problem.many_JTS)))


def assert_agrees(
    found: Reason, view: Snapshot, tables: tuple[Choices, Problem], j: int, where: Allocation | None
) -> None:
    options, problem = tables
    one = options.jobs[j]
    accepted = [kind for kind, name in enumerate(options.gpu_types) if name in one.spec.gpu_types] or [0]
    kind = options.gpu_types.index(view.nodes[where.nodes[0]].gpu_type) if where else accepted[0]
    appraisal = options.appraisals[j][options.gpu_types[kind]]
    counts = [len(gpus) for _, gpus in where] if where else []
    unit = appraisal.goodput(1, one.spec.least)
    assert found.numbers["gpus"] == sum(counts)
    assert found.numbers["most"] == appraisal.most
    assert found.numbers["speedup"] == (appraisal.goodput(len(counts), sum(counts)) / unit if counts else 0.0)
    here = cost_of(problem, j, kind, counts, stays=where == one.allocation)
    for name, gpus in (("less", sum(counts) - 1), ("more", sum(counts) + 1)):
        there = best_of(problem, j, kind, gpus) if gpus >= 0 else math.inf
        if math.isfinite(there - here):
            assert found.numbers[f"objective_{name}"] == pytest.approx(here - there)
            speed = max(options.one_JTS[j, kind, gpus], options.many_JTS[j, kind, gpus])
            assert found.numbers[f"speedup_{name}"] == pytest.approx(speed / unit)
        else:
            assert f"objective_{name}" not in found.numbers
            assert f"speedup_{name}" not in found.numbers
    assert ("objective_stay" in found.numbers) == (bool(one.allocation) and where != one.allocation)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories())
def test_the_figures_of_every_job_are_those_of_the_tables(history: History) -> None:
    for view in history.views():
        if not view.jobs or not view.node_columns.open_N.any():
            continue
        options, problem = weighed(view)
        allocations = realise(view, list(view.jobs), allocate(problem).where)
        reasons = weighed_reasons(view, allocations, options, problem)
        for j, (job_id, found) in enumerate(reasons.items()):
            assert_agrees(found, view, (options, problem), j, allocations.get(job_id))
