"""Which of several optima Gavel's objectives take: that with the fewest changes, then the most even, by any solver."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np
import pytest
from gavel_problems import EcosSolver, Reference, check_shares, drawn

from fairlead.policies.gavel import GavelOracle
from fairlead.policies.gavel.class_program import ClassOptimum, ClassProgram, Solver
from fairlead.policies.gavel.classes import classify
from fairlead.policies.gavel.hierarchy import Entity
from fairlead.policies.gavel.objectives import fair_need, isolated
from fairlead.policies.gavel.problem import Concession, Shares, SharingProblem, throughput
from fairlead.policies.gavel.solution import solve
from fairlead.policies.linear_program import Method, NoSolution, Trouble
from fairlead.testing.scenario import job, make_view

ENTITIES = (Entity(1.0), Entity(2.0, fifo=True), Entity(3.0))
LINEAR = ("max-min", "makespan", "finish-time-fairness", "max-sum-throughput", "cost", "cost-slo", "hierarchical")


def moved(problem: SharingProblem, shares: Shares) -> float:
    """GPU-time on other types than jobs hold."""
    rows = np.flatnonzero(problem.held_J >= 0)
    elsewhere_J = shares.totals()[rows] - shares.alone_JT[rows, problem.held_J[rows]]
    return float(problem.gpus_J[rows] @ elsewhere_J)


def test_a_job_stays_even_if_that_costs_others_more_than_a_weight_on_changes_would_allow() -> None:
    """Two jobs that share one GPU set the makespan. A job that holds a type on which it is slow can stay there, for a
    quarter of the time, which another one loses; elsewhere 1/400 of the time would do. Fewest changes come first."""
    problem = SharingProblem(
        np.array([[0.01, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]),
        np.ones(4, int),
        np.ones(3, int),
        left_J=np.array([2.5, 100.0, 500.0, 500.0]),
        held_J=np.array([0, -1, -1, -1]),
    )
    shares = solve(problem, "makespan")
    assert shares.objective == pytest.approx(1000.0)
    assert shares.alone_JT[0] == pytest.approx([0.25, 0.0, 0.0], abs=1e-5)
    assert shares.alone_JT[1] == pytest.approx([0.75, 0.0, 0.0], abs=1e-5)


@pytest.mark.parametrize("objective", ["max-min", "makespan", "max-sum-throughput"])
@pytest.mark.parametrize("seed", range(3))
def test_no_other_optimum_has_fewer_changes(objective: str, seed: int) -> None:
    problem = replace(drawn(8, seed, load=1.3), weight_J=np.ones(8))
    problem = replace(problem, rate_JT=np.maximum(np.round(problem.rate_JT / 8.0), 0.5))  # so that many are as good
    shares = solve(problem, objective)
    base = Reference(problem)
    rate = [base.throughput(each) for each in range(8)]
    if objective == "max-sum-throughput":
        optimal = [sum(rate) >= shares.objective * (1.0 - 1e-9)]
    else:
        need_J = fair_need(problem) * shares.objective if objective == "max-min" else problem.left_J / shares.objective
        optimal = [rate[each] >= need_J[each] * (1.0 - 1e-9) for each in range(8)]
    moves_JT = problem.gpus_J[:, None] * ((problem.held_J[:, None] >= 0) & (np.arange(3) != problem.held_J[:, None]))
    fewest = base.solve(cp.Minimize(cp.sum(cp.multiply(moves_JT, base.x))), optimal)
    assert moved(problem, shares) == pytest.approx(fewest, abs=1e-5)


@pytest.mark.parametrize("objective", LINEAR)
def test_with_the_reference_solver_shares_are_the_same(objective: str) -> None:
    """ECOS is the solver of Gavel's artifact; its optima are others than ours, until one is chosen."""
    problem = drawn(14, 3, load=1.5)
    ours = solve(problem, objective, entities=ENTITIES)
    ecos = solve(problem, objective, entities=ENTITIES, solver=EcosSolver())
    assert not ours.notes
    assert ecos.alone_JT == pytest.approx(ours.alone_JT, abs=1e-6)


@pytest.mark.parametrize("objective", [*LINEAR, "nash"])
def test_two_orders_of_jobs_and_nodes_are_owed_the_same(objective: str) -> None:
    jobs = [
        job(f"j{at}", gpus, submitted_at=float(at), deadline=4e3 + 100.0 * (at % 3), weight=1.0 + at % 2, tenant=tenant)
        for at, (gpus, tenant) in enumerate([(1, "ann"), (2, "bob"), (1, "bob"), (4, "ann"), (1, "ann"), (2, "bob")])
    ]
    policy = GavelOracle(objective=objective)
    owed = []
    for cluster, order in (("fast=2x2,slow=1x4", jobs), ("slow=1x4,fast=2x2", jobs[::-1])):
        view = replace(make_view(cluster, order, now=10.0), oracle=lambda name: 500.0 + 50.0 * int(name[1:]))
        owed.append(policy.plan(view).memo["rounds"]["owed"])
    assert owed[0].keys() == owed[1].keys()
    for name, by_type in owed[0].items():
        assert owed[1][name] == pytest.approx(by_type, abs=1e-6)


def test_a_job_as_fast_on_two_types_is_spread_over_both_even_if_all_else_is_decided() -> None:
    """Both jobs run all the time at just what they need, on a full type and another; of that other there are two."""
    problem = SharingProblem(
        np.array([[1.5, 1.9, 2.0], [0.1, 0.1, 0.2]]), np.ones(2, int), np.ones(3, int), left_J=np.array([1.9, 0.11])
    )
    alone_JT = solve(problem, "makespan").alone_JT
    assert alone_JT.sum(axis=1) == pytest.approx([1.0, 1.0], abs=1e-6)
    assert alone_JT[1, 0] == pytest.approx(alone_JT[1, 1], abs=1e-6)


def test_a_job_that_has_one_choice_is_left_as_the_solver_found_it() -> None:
    """Distinct rates and full types: the optimum is one point, and no further program is needed to choose."""
    problem = drawn(60, 5, load=3.0)
    shares = solve(problem, "max-sum-throughput")
    assert shares.programs == 1
    assert throughput(problem, shares).sum() == pytest.approx(shares.objective, rel=1e-7)


# -- what is given up --------------------------------------------------------------------------------------------------


@dataclass
class FailingSolver(Solver):
    """Has no answer to programs with this in their name."""

    name: str = ""

    def linear(self, program: ClassProgram, *, again: bool = True) -> ClassOptimum:
        if self.name in program.name:
            raise NoSolution(program.name, Trouble.NUMERICAL, "no jobs", "asked to")
        return super().linear(program, again=again)


@pytest.mark.parametrize("objective", LINEAR)
def test_an_objective_without_an_answer_gives_equal_parts_and_says_so(objective: str) -> None:
    problem = drawn(10, 2)
    shares = solve(problem, objective, entities=ENTITIES, solver=FailingSolver())
    check_shares(problem, shares)
    assert shares.notes == (Concession.ISOLATED,)
    assert throughput(problem, shares) == pytest.approx(isolated(problem, 10))
    assert np.isnan(shares.gap)


@pytest.mark.parametrize("objective", ["max-min", "max-sum-throughput", "hierarchical"])
def test_an_optimum_that_could_not_be_chosen_is_still_one_and_says_so(objective: str) -> None:
    problem = drawn(10, 2, load=1.2)
    problem = replace(problem, rate_JT=np.maximum(np.round(problem.rate_JT / 8.0), 0.5))
    ours = solve(problem, objective, entities=ENTITIES)
    other = solve(problem, objective, entities=ENTITIES, solver=FailingSolver(name="fewest changes"))
    check_shares(problem, other)
    assert (ours.notes, other.notes) == ((), (Concession.UNSETTLED,))
    assert other.objective == pytest.approx(ours.objective, rel=1e-7)
    assert moved(problem, ours) < moved(problem, other)


def test_a_linear_program_that_our_method_cannot_solve_is_solved_by_the_other() -> None:
    """Floors far beyond what fits have no answer; with one, both methods agree."""
    classes = classify(drawn(6, 1))
    program = ClassProgram("floors", classes, linear_V=np.ones(len(classes.type_V)), floor_K=np.full(6, 0.1))
    ours, highs = Solver().linear(program), Solver(Method.SIMPLEX).linear(program)
    assert ours.value_V.sum() == pytest.approx(highs.value_V.sum())
    with pytest.raises(NoSolution, match="infeasible"):
        Solver().linear(replace(program, floor_K=np.full(6, 1.0), capacity_T=np.full(3, 0.1)))
