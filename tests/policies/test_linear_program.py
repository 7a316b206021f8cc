"""The builder over HiGHS: what it answers, and that it never answers in silence."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.policies.constraint_matrix import ArrowMatrix, GeneralMatrix
from fairlead.policies.convex_program import ConvexProgram, minimise
from fairlead.policies.linear_program import LinearProgram, Method, NoSolution, Trouble


def diet(*, integer: bool = False) -> tuple[LinearProgram, np.ndarray]:
    """max 3a + 2b, a + b <= 4, a + 3b <= 7, a <= 3."""
    program = LinearProgram("diet")
    program.variables(2, cost=[3.0, 2.0], high=[3.0, np.inf], integer=integer)
    rows = program.rows([0, 0, 1, 1], [0, 1, 0, 1], [1.0, 1.0, 1.0, 3.0], count=2, high=[4.0, 7.0])
    return program, rows


@pytest.mark.parametrize("method", list(Method))
def test_a_program_is_solved_and_read(method: Method) -> None:
    program, rows = diet()
    found = program.solve(maximise=True, method=method)
    assert found.values_V == pytest.approx([3.0, 1.0])
    assert found.objective == pytest.approx(11.0)
    assert found.gap == 0.0
    assert found.duals_R[rows] == pytest.approx([2.0, 0.0])


def test_a_dual_is_what_one_more_unit_adds_whichever_way_the_program_is_stated() -> None:
    for maximise, sign in ((True, 1.0), (False, -1.0)):
        for low, high in ((-np.inf, 4.0), (4.0, 4.0)):
            program = LinearProgram("one row")
            program.variables(1, cost=sign * 3.0)
            rows = program.rows(0, 0, 1.0, count=1, low=low, high=high)
            assert program.solve(maximise=maximise).duals_R[rows] == pytest.approx([sign * 3.0])
    program = LinearProgram("at least")
    program.variables(1, cost=5.0)
    rows = program.rows(0, 0, 2.0, count=1, low=4.0)
    found = program.solve()
    assert (found.objective, found.duals_R[rows][0]) == pytest.approx((10.0, 2.5))


def test_integers_are_whole_and_their_gap_is_stated() -> None:
    program = LinearProgram("knapsack")
    program.variables(3, cost=[5.0, 4.0, 3.0], high=1.0, integer=True)
    program.rows([0, 0, 0], [0, 1, 2], [2.0, 3.0, 1.0], count=1, high=5.0)
    found = program.solve(maximise=True, time_limit_s=10.0)
    assert found.values_V == pytest.approx([1.0, 1.0, 0.0])
    assert found.gap == 0.0
    assert np.isnan(found.duals_R).all()


@pytest.mark.parametrize(("low", "high", "trouble"), [(5.0, 4.0, Trouble.INFEASIBLE), (1.0, np.inf, Trouble.UNBOUNDED)])
def test_a_program_without_an_optimum_is_an_error_that_names_it(low: float, high: float, trouble: Trouble) -> None:
    program = LinearProgram("impossible")
    program.variables(1, cost=1.0)
    program.rows([0, 1], [0, 0], [1.0, 1.0], count=2, low=[low, -np.inf], high=[np.inf, high])
    with pytest.raises(NoSolution, match="the program impossible of 1 variables and 2 rows has no solution") as caught:
        program.solve(maximise=True)
    assert caught.value.trouble is trouble


def test_a_program_without_variables_is_empty() -> None:
    assert LinearProgram("empty").solve().objective == 0.0


def test_the_nearest_point_of_a_polyhedron_is_the_one_by_hand() -> None:
    """Nearest to (1, 1, 1) with x + y + z <= 1 and x <= 0.1 is (0.1, 0.45, 0.45)."""
    program = ConvexProgram(
        linear_V=np.full(3, -1.0),
        square_V=np.ones(3),
        log_V=np.zeros(3),
        matrix=GeneralMatrix(np.ones((1, 3))),
        low_R=np.array([-np.inf]),
        high_R=np.array([1.0]),
        low_V=np.zeros(3),
        high_V=np.array([0.1, 1.0, 1.0]),
    )
    found = minimise(program)
    assert found is not None
    assert found.values_V == pytest.approx(np.array([0.1, 0.45, 0.45]), abs=1e-8)
    logged = program._replace(linear_V=np.zeros(3), square_V=np.zeros(3), log_V=np.array([1.0, 1.0, 3.0]))
    found = minimise(logged)
    assert found is not None
    assert found.values_V == pytest.approx(np.array([0.1, 0.225, 0.675]), abs=1e-8)


def test_a_polyhedron_without_points_has_no_nearest_one() -> None:
    program = ConvexProgram(
        np.zeros(1), np.ones(1), np.zeros(1), GeneralMatrix(np.ones((1, 1))),
        np.array([2.0]), np.array([3.0]), np.zeros(1), np.ones(1),
    )  # fmt: skip
    assert minimise(program) is None


@pytest.mark.parametrize("kind", ["linear", "square", "log"])
def test_an_arrow_is_the_matrix_that_its_rows_say_and_has_the_same_minimum(kind: str) -> None:
    rng = np.random.default_rng(1)
    jobs, types = 7, 3
    runs_TK = (rng.random((types, jobs)) > 0.2).astype(float)
    runs_TK[0] = 1.0
    speed_TK, load_TK, move_TK = (runs_TK * rng.uniform(0.1, 1.0, (types, jobs)) for _ in range(3))
    need_K = rng.uniform(0.1, 1.0, jobs) if kind == "linear" else None
    arrow = ArrowMatrix(runs_TK, speed_TK, load_TK, need_K=need_K, move_TK=move_TK)
    count = (types + 1) * jobs + (need_K is not None)
    dense = np.column_stack([arrow.times(column) for column in np.eye(count)])
    assert dense[2 * jobs] == pytest.approx(np.concatenate([load_TK[0], np.zeros(count - jobs)]))
    y_R = rng.normal(size=arrow.rows)
    assert arrow.transposed_times(y_R) == pytest.approx(dense.T @ y_R)
    high_R = np.ones(arrow.rows)
    high_R[jobs : 2 * jobs] = 0.0
    low_R = np.where(high_R == 0.0, 0.0, -np.inf)
    linear_V = np.concatenate(
        [np.where(runs_TK, 0.0, 1.0).ravel(), np.full(jobs, -0.1), np.full(count - 4 * jobs, -1.0)]
    )
    program = ConvexProgram(
        linear_V=linear_V,
        square_V=np.full(count, 0.1 if kind == "square" else 0.0),
        log_V=np.repeat([0.0, 1.0], [types * jobs, jobs]) if kind == "log" else np.zeros(count),
        matrix=arrow,
        low_R=low_R,
        high_R=high_R,
        low_V=np.zeros(count),
        high_V=np.full(count, np.inf),
    )
    one, other = minimise(program), minimise(program._replace(matrix=GeneralMatrix(dense)))
    assert one is not None
    assert other is not None
    assert one.values_V[types * jobs :] == pytest.approx(other.values_V[types * jobs :], abs=1e-7)
    assert one.price_R == pytest.approx(other.price_R, abs=1e-7)
    assert dense @ one.values_V == pytest.approx(np.clip(dense @ one.values_V, low_R, high_R), abs=1e-9)
