"""What every job could have, and what that costs: limits, types, closed nodes, jobs that must stay, and moving."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fairlead.core.messages import JobReported
from fairlead.core.types import Batch, Node, Observation, Phase
from fairlead.policies.allocator import Problem
from fairlead.policies.appraising import Appraiser
from fairlead.policies.weighing import EVERY_SIZE, Choices, choices
from fairlead.testing import GivenJob, job, make_state, make_view

Floats = NDArray[np.float64]


def weigh(nodes: Any, jobs: Sequence[GivenJob], *, reach: int = 1, **more: Any) -> Choices:
    """Nobody has measured anything: goodput is the number of GPUs."""
    return choices(make_view(nodes, jobs, **more), Appraiser(), reach=reach, lore=False)


def inverse(goodput: Floats) -> Floats:
    """A cost that falls as goodput rises."""
    return np.asarray(100.0 - goodput)


def problem_of(options: Choices, moved: float = 1.0, idle: float = 1000.0) -> Problem:
    J = len(options.jobs)
    return options.problem(inverse, moved=lambda goodput: goodput * moved, idle_J=np.full(J, idle))


# -- choices -----------------------------------------------------------------------------------------------------------


def test_sizes_are_all_numbers_up_to_the_most_that_any_job_may_have() -> None:
    small, large = job("small", 1, gpus_max=8, on="n0[0]"), job("large", 3, gpus_max=8, on="n1[0,1,2]")
    options = weigh("2x4", [small, large])
    assert options.sizes_S.tolist() == [0, 1, 2, 3, 4, 5, 6]  # twice the 3 it holds
    assert options.gpus == 8
    assert weigh("1x4", [job("a", 4, gpus_max=8, on="n0[0,1,2,3]")]).sizes_S.tolist() == [0, 1, 2, 3, 4]


def test_a_job_chooses_between_its_fewest_and_its_most_gpus() -> None:
    options = weigh("2x4", [job("a", 3, gpus_min=2, gpus_max=5, on="n0[0,1,2]"), job("b", 4, on="n1[0,1,2,3]")])
    assert options.one_JTS[:, 0].tolist() == [[0, 0, 2, 3, 4, 0], [0, 0, 0, 0, 4, 0]]
    assert options.many_JTS[:, 0].tolist() == [[0, 0, 2, 3, 4, 5], [0, 0, 0, 0, 4, 0]]


def test_no_node_holds_more_than_the_largest() -> None:
    nodes = [Node("n0", 2), Node("n1", 3), Node("n2", 4, "big")]
    options = weigh(nodes, [job("a", 2, gpus_max=8, gpus_min=1, on="n0[0,1]")])
    assert options.gpu_types == ("gpu", "big")
    assert options.one_JTS[0].tolist() == [[0, 1, 2, 3, 0], [0, 1, 2, 3, 4]]
    assert options.many_JTS[0].tolist() == [[0, 0, 2, 3, 4]] * 2


def test_a_job_chooses_among_the_gpu_types_it_accepts() -> None:
    jobs = [job("any", 1), job("picky", 1, gpu_types=("t4",)), job("lost", 1, gpu_types=("a100",))]
    options = weigh("v100=1x2,t4=1x2", jobs)
    assert options.gpu_types == ("t4", "v100")
    assert options.type_N.tolist() == [0, 1]
    assert (options.one_JTS[:, :, 1] > 0.0).tolist() == [[True, True], [True, False], [False, False]]
    assert not options.many_JTS[1, 1].any()
    assert not options.many_JTS[2].any()


def test_what_a_job_holds_counts_by_node_and_at_the_goodput_it_has_there() -> None:
    jobs = [job("a", 3, on="n0[0,3] n1[2]"), job("b", 1, on="n1[0]"), job("c", 1)]
    options = weigh("2x4", jobs)
    assert options.held == [{0: 2, 1: 1}, {1: 1}, {}]
    assert options.now_J.tolist() == [3.0, 1.0, 0.0]


def test_nothing_is_given_out_of_a_node_that_drains_or_is_lost_and_who_is_there_keeps_what_it_has() -> None:
    jobs = [job("stays", 2, on="n0[0,1]"), job("falls", 1, on="n1[0]"), job("waits", 1)]
    options = weigh("3x4", jobs, draining=["n0"], lost=["n1"])
    assert options.gpus_N.tolist() == [0, 0, 4]
    assert options.gpus == 4
    assert options.held == [{0: 2}, {}, {}]
    assert options.now_J.tolist() == [2.0, 0.0, 0.0]


def test_a_gpu_type_whose_nodes_are_all_closed_offers_nothing_on_one_node() -> None:
    options = weigh("v100=1x4,t4=1x2", [job("a", 1, gpus_max=4, on="n1[0]")], draining=["n0"])
    assert not options.one_JTS[0, 0].any()
    assert options.one_JTS[0, 1].tolist() == [0, 1, 2]


def test_curves_reach_as_far_as_they_are_asked_to() -> None:
    options = weigh("1x4", [job("a", 1)], reach=3)
    assert options.appraisals[0]["gpu"].goodput(1, 3) == 3.0
    assert options.sizes_S.tolist() == [0, 1]  # but the job may not have them


def test_without_jobs_there_are_no_choices() -> None:
    options = weigh("1x4", [])
    assert (options.one_JTS.size, options.held, options.gpus) == (0, [], 4)


def test_beyond_so_many_gpus_only_whole_nodes_are_sizes_in_steps_that_grow() -> None:
    wide = job("a", 128, gpus_min=1, gpus_max=1024, on=" ".join(f"n{k:02d}[0,1,2,3,4,5,6,7]" for k in range(16)))
    sizes = weigh("40x8", [wide]).sizes_S.tolist()
    assert sizes[: EVERY_SIZE + 1] == list(range(EVERY_SIZE + 1))
    beyond = sizes[EVERY_SIZE:]
    assert all(size % 8 == 0 for size in beyond)
    assert all(8 <= larger - smaller <= max(8, smaller / 8) for smaller, larger in pairwise(beyond))
    assert sizes[-1] <= 256


@pytest.mark.parametrize(("nodes", "gpus"), [("16x8", 100), ("32x8", 256), ("32x4", 70)])
def test_a_rigid_job_can_have_what_it_asks_for_however_much_that_is(nodes: str, gpus: int) -> None:
    options = weigh(nodes, [job("a", gpus)])
    assert options.many_JTS[0, 0].max() == gpus


# -- problems ----------------------------------------------------------------------------------------------------------


def test_every_choice_costs_what_its_goodput_costs_and_what_is_no_choice_is_beyond_price() -> None:
    problem = problem_of(weigh("2x2", [job("a", 2, gpus_min=2, gpus_max=3, on="n0[0,1]")]))
    assert problem.one_JTS[0, 0].tolist() == [np.inf, np.inf, 98, np.inf]
    assert problem.many_JTS[0, 0].tolist() == [np.inf, np.inf, 98, 97]
    assert problem.idle_J.tolist() == [1000.0]
    assert problem.capacity.tolist() == [4]


def test_a_change_is_paid_for_and_staying_is_not() -> None:
    problem = problem_of(weigh("2x2", [job("a", 2, gpus_max=4, on="n0[0,1]"), job("b", 1)]), moved=0.5)
    assert problem.stay_J.tolist() == [98.0, np.inf]  # who holds nothing cannot stay
    assert problem.one_JTS[0, 0, 2] == 99.0  # the same elsewhere
    assert problem.many_JTS[0, 0, 4] == 98.0
    assert problem.one_JTS[1, 0, 1] == 99.5


def test_each_job_pays_for_a_change_at_its_own_rate() -> None:
    options = weigh("1x2", [job("a", 1), job("b", 1)])
    problem = options.problem(inverse, moved=lambda g: g * np.array([1.0, 0.25])[:, None, None], idle_J=np.zeros(2))
    assert problem.one_JTS[:, 0, 1].tolist() == [99.0, 99.75]


def test_a_job_whose_whole_speed_a_change_would_cost_may_still_be_moved() -> None:
    problem = problem_of(weigh("1x2", [job("a", 1, gpus_max=2, on="n0[0]")]), moved=0.0)
    assert problem.one_JTS[0, 0].tolist() == [np.inf, 100.0, 100.0]


def test_a_job_that_must_not_be_preempted_has_no_choice_but_to_stay() -> None:
    jobs = [job("bound", 2, gpus_min=1, gpus_max=4, on="n0[0,1]", preemptible=False), job("free", 1, on="n0[2]")]
    problem = problem_of(weigh("1x4", jobs))
    assert np.isinf(problem.one_JTS[0]).all()
    assert np.isinf(problem.many_JTS[0]).all()
    assert (problem.idle_J[0], problem.stay_J[0]) == (np.inf, 98.0)
    assert (problem.idle_J[1], problem.stay_J[1]) == (1000.0, 99.0)
    assert problem.one_JTS[1, 0, 1] == 99.0


def test_a_job_that_must_not_be_preempted_is_bound_from_its_start_and_not_before() -> None:
    jobs = [job("waits", 1, preemptible=False), job("starts", 1, on="n0[0]", preemptible=False, phase=Phase.STARTING)]
    problem = problem_of(weigh("1x4", jobs))
    assert (problem.one_JTS[0, 0, 1], problem.idle_J[0]) == (99.0, 1000.0)
    assert (problem.one_JTS[1, 0, 1], problem.idle_J[1]) == (np.inf, np.inf)


def test_a_bound_job_stays_on_a_draining_node() -> None:
    options = weigh("2x2", [job("bound", 2, on="n0[0,1]", preemptible=False)], draining=["n0"])
    problem = problem_of(options)
    assert (problem.stay_J[0], problem.idle_J[0]) == (98.0, np.inf)
    assert problem.gpus_N.tolist() == [0, 2]


@pytest.mark.parametrize("preemptible", [True, False])
def test_who_achieves_nothing_where_it_is_stays_only_if_it_must(preemptible: bool) -> None:
    """Two GPUs and a batch of one sample."""
    state = make_state("1x4", [job("a", 2, gpus_min=1, on="n0[0,1]", preemptible=preemptible, batch=Batch(1, 1))])
    state.apply(JobReported(0.0, "a", 1, 0.1, observations=(Observation("gpu", 1, 1, 1, 0, 1.0, 0.0),)))
    options = choices(state.snapshot(), Appraiser(), reach=1, lore=False)
    assert options.now_J.tolist() == [0.0]
    problem = problem_of(options)
    if preemptible:
        assert (problem.stay_J[0], problem.idle_J[0]) == (np.inf, 1000.0)
        assert np.isfinite(problem.one_JTS[0, 0, 1])
        assert np.isinf(problem.one_JTS[0, 0, 2])
    else:
        assert (problem.stay_J[0], problem.idle_J[0]) == (1000.0, np.inf)


def test_the_costs_of_one_problem_are_its_own() -> None:
    options = weigh("1x4", [job("a", 1, on="n0[0]")])
    problem = problem_of(options)
    problem.one_JTS[:] = problem.many_JTS[:] = problem.stay_J[:] = -1.0
    assert options.one_JTS[0, 0].tolist() == [0.0, 1.0]
    assert options.now_J.tolist() == [1.0]
