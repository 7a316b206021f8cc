"""How long Gavel's decisions take, next to the same programs through cvxpy in the same run. Prints figures.

    python benchmarks/gavel.py [--jobs 1024,4096] [--objectives max-min,makespan] [--rates measured] [--repeat 3]
    python benchmarks/gavel.py --packed [--jobs 1024] [--objectives max-min] [--parts 4,8]

Jobs are drawn from 26 models and 1, 2, 4 or 8 GPUs (70, 10, 15 and 5 %), on three GPU types with a quarter as many
GPUs each as there are jobs: Gavel's setting. Three of four jobs run already. With `--rates table` jobs of a model have
the same rates, and many are alike; with `--rates measured` each job's are up to 5 % off, and no two are. Ours is the
whole decision: classes of jobs that are alike, the program, and the choice among its optima. cvxpy's is the program
alone, job by job, as the reference builds it: with ECOS, its solver (or CLARABEL), canonicalisation included; makespan
by its search over times, 5 % wide. Of water filling it is the first of many rounds: a linear program for the level of
the water, and an integer program (HiGHS) for the jobs that can rise above it. CPU seconds, the best of a few runs.

With `--packed` jobs may share GPUs in pairs, and the problem is solved as a whole and in parts (POP): CPU seconds, the
sum of relative throughputs and the objective of the parts next to those of the whole, and what the plan says that may
be lost at most. The rates of two jobs beside each other are drawn: 35 to 95 % of those alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from fairlead.policies.gavel.hierarchy import Entity
from fairlead.policies.gavel.objectives import fair_need, isolated, proportional
from fairlead.policies.gavel.problem import SharingProblem, throughput
from fairlead.policies.gavel.solution import solve

OBJECTIVES = (
    "max-min",
    "makespan",
    "finish-time-fairness",
    "max-sum-throughput",
    "cost",
    "cost-slo",
    "nash",
    "hierarchical",
)

ENTITIES = (Entity(1.0), Entity(2.0), Entity(3.0))

#: Columns of the tables: the field of a row, and how it is written.
ALONE = {
    "objective": ("objective", ""),
    "jobs": ("jobs", ""),
    "ours, CPU s": ("cpu_s", ".3f"),
    "cvxpy, CPU s": ("cvxpy_cpu_s", ".3f"),
    "ratio": ("ratio", ".1f"),
    "programs": ("programs", ""),
}
PACKED = {
    "objective": ("objective", ""),
    "jobs": ("jobs", ""),
    "parts": ("parts", ""),
    "CPU s": ("cpu_s", ".2f"),
    "throughput": ("throughput_of_whole", ".4f"),
    "objective, of the whole's": ("value_of_whole", ".4f"),
    "lost at most": ("lost_at_most", ".4f"),
}


def draw(jobs: int, *, rates: str = "table", packed: bool = False, seed: int = 0) -> SharingProblem:
    rng = np.random.default_rng(seed)
    table_MT = rng.uniform(1.0, 4.0, (26, 1)) * np.sort(rng.uniform(0.2, 1.0, (26, 3)), axis=1)
    model_J = rng.integers(0, 26, jobs)
    gpus_J = rng.choice([1, 2, 4, 8], jobs, p=[0.7, 0.1, 0.15, 0.05])
    left_J = 60.0 * 10.0 ** rng.uniform(1.5, 4.0, jobs) * table_MT[model_J, 2]
    rate_JT = table_MT[model_J] * (rng.uniform(0.95, 1.05, (jobs, 3)) if rates == "measured" else 1.0)
    held_J = rng.integers(-1, 3, jobs)
    kinds = [(one, other, gpus) for one in range(26) for other in range(one, 26) for gpus in (1, 2, 4, 8)]
    return SharingProblem(
        rate_JT=rate_JT,
        gpus_J=gpus_J,
        capacity_T=np.full(3, jobs // 4),
        left_J=left_J,
        elapsed_J=rng.uniform(0.0, 3600.0, jobs),
        isolated_s_J=rng.uniform(0.0, 3600.0, jobs),
        deadline_J=left_J / table_MT[model_J, 2] * rng.uniform(5.0, 50.0, jobs),
        entity_J=np.arange(jobs) % 3,
        price_T=np.array([0.135, 0.43, 0.74]),
        held_J=held_J,
        kind_J=model_J,
        pairs={kind: rng.uniform(0.35, 0.95, (3, 2)) for kind in kinds} if packed else {},
    )


def through_cvxpy(problem: SharingProblem, objective: str) -> float:
    """The objective as cvxpy finds it; NaN if its solver does not."""
    import cvxpy as cp

    x = cp.Variable(problem.rate_JT.shape)
    gpus_JT = np.repeat(problem.gpus_J[:, None].astype(float), 3, axis=1)
    base = [x >= 0, cp.sum(cp.multiply(gpus_JT, x), axis=0) <= problem.capacity_T, cp.sum(x, axis=1) <= 1]
    rate = cp.sum(cp.multiply(problem.rate_JT, x), axis=1)

    def run(goal: Any, more: tuple[Any, ...] = ()) -> float:
        program = cp.Problem(goal, [*base, *more])
        for solver in ("ECOS", "CLARABEL"):
            try:
                program.solve(solver=solver)
            except cp.error.SolverError:
                continue
            if program.status == "optimal":
                return float(program.value)
        return float("nan")

    if objective == "max-min":
        return run(cp.Maximize(cp.min(cp.multiply(1.0 / fair_need(problem), rate))))
    if objective == "hierarchical":  # the first level of water, and who can rise above it
        members = np.bincount(problem.entity_J)[problem.entity_J]
        due_J = fair_need(problem) * np.array([each.weight for each in ENTITIES])[problem.entity_J] / members
        level = run(cp.Maximize(cp.min(cp.multiply(1.0 / due_J, rate))))
        rises = cp.Variable(len(due_J), boolean=True)
        beyond = rate >= level * cp.multiply(due_J, 1.0 + 1e-4 * rises) * (1.0 - 1e-7)
        cp.Problem(cp.Maximize(cp.sum(rises)), [*base, beyond]).solve(solver="HIGHS", time_limit=60.0)
        return level
    if objective == "makespan":
        low, high, found = 100.0, 1e8, float("nan")
        while 1.05 * low < high:
            middle = (low + high) / 2.0
            if np.isnan(run(cp.Maximize(1), (rate >= problem.left_J / middle,))):
                low = middle
            else:
                high = found = middle
        return found
    if objective == "finish-time-fairness":
        fair_s_J = problem.isolated_s_J + problem.left_J / isolated(problem, len(problem.gpus_J))
        rho = cp.multiply(1.0 / fair_s_J, problem.elapsed_J + cp.multiply(problem.left_J, cp.inv_pos(rate)))
        return run(cp.Minimize(cp.max(rho)))
    if objective == "nash":
        return run(cp.Maximize(cp.sum(cp.log(cp.multiply(1.0 / proportional(problem), rate)))))
    price_T = np.ones(3) if objective == "max-sum-throughput" else problem.price_T
    slo = (rate >= problem.left_J / problem.deadline_J,) if objective == "cost-slo" else ()
    return run(cp.Maximize(cp.sum(cp.multiply(problem.rate_JT / price_T, x))), slo)


def timed(call: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    best, found = float("inf"), None
    for _ in range(repeat):
        begin = time.process_time()
        found = call()
        best = min(best, time.process_time() - begin)
    return best, found


def measure(jobs: int, objective: str, *, rates: str, repeat: int) -> dict[str, Any]:
    problem = draw(jobs, rates=rates)
    solve(problem, objective, entities=ENTITIES)  # to warm up
    ours_s, shares = timed(lambda: solve(problem, objective, entities=ENTITIES), repeat)
    through_cvxpy(draw(64), objective)
    theirs_s, reached = timed(lambda: through_cvxpy(problem, objective), 1)
    return {
        "objective": objective,
        "jobs": jobs,
        "rates": rates,
        "cpu_s": ours_s,
        "cvxpy_cpu_s": theirs_s,
        "ratio": theirs_s / ours_s,
        "value": shares.objective,
        "cvxpy_value": None if np.isnan(reached) or objective == "hierarchical" else reached,
        "programs": shares.programs,
        "notes": list(shares.notes),
    }


def measure_parts(jobs: int, objective: str, *, rates: str, parts: list[int]) -> list[dict[str, Any]]:
    """The whole problem with pairs, and the same in parts."""
    problem = draw(jobs, rates=rates, packed=True)
    solve(draw(64, packed=True), objective, entities=ENTITIES)  # to warm up
    rows: list[dict[str, Any]] = []
    for count in [1, *parts]:
        cpu_s, shares = timed(lambda count=count: solve(problem, objective, entities=ENTITIES, parts=count), 1)
        relative = float((throughput(problem, shares) / problem.best).sum())
        whole = rows[0] if rows else {"throughput": relative, "value": shares.objective}
        rows.append(
            {
                "objective": objective,
                "jobs": jobs,
                "rates": rates,
                "parts": count,
                "cpu_s": cpu_s,
                "throughput": relative,
                "throughput_of_whole": relative / whole["throughput"],
                "value": shares.objective,
                "value_of_whole": shares.objective / whole["value"],
                "lost_at_most": None if np.isnan(shares.gap) else shares.gap,
                "notes": list(shares.notes),
            }
        )
    return rows


@click.command()
@click.option("--jobs", default=None, help="Numbers of jobs; 1024,4096 unless told, with --packed 1024.")
@click.option("--objectives", default=None, help="Which; all unless told, with --packed max-min.")
@click.option("--rates", type=click.Choice(["table", "measured"]), default="table", show_default=True)
@click.option("--packed", is_flag=True, help="Jobs may share GPUs in pairs: as a whole, and in parts.")
@click.option("--parts", default="2,4,8", show_default=True, help="With --packed: how many parts.")
@click.option("--repeat", default=3, show_default=True, help="Repetitions of ours, of which the best counts.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(
    jobs: str | None, objectives: str | None, rates: str, packed: bool, parts: str, repeat: int, output: str
) -> None:
    """Decision time of each of Gavel's programs, and of the same through cvxpy."""
    counts = [int(count) for count in (jobs or ("1024" if packed else "1024,4096")).split(",")]
    names = (objectives or ("max-min" if packed else ",".join(OBJECTIVES))).split(",")
    if packed:
        divided = [int(count) for count in parts.split(",")]
        found = [measure_parts(count, name, rates=rates, parts=divided) for count in counts for name in names]
        show([row for rows in found for row in rows], output, PACKED)
    else:
        show([measure(count, name, rates=rates, repeat=repeat) for count in counts for name in names], output, ALONE)


def show(rows: list[dict[str, Any]], output: str, columns: dict[str, tuple[str, str]]) -> None:
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*("" if row[name] is None else format(row[name], style) for name, style in columns.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
