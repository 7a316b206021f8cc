"""How the allocator copes with a large cluster of several GPU types. Prints figures; asserts nothing.

    python benchmarks/scale.py [--jobs 10000] [--gpus 100000] [--types 4] [--seed 0] [-o table|json]

Jobs are variations of the built-in applications: every parameter of their throughput model, and their noise scale, is
multiplied by a random number. GPU types differ in speed; nodes have 8 GPUs. A job may have 1, 2, 4 or 8 GPUs, or whole
nodes up to 128 GPUs. The goal is the weighted power mean (p = -1) of goodput relative to one GPU of the slowest type.

cold       nobody holds anything, at a quarter of the size and at the full one
one_pct    everyone holds what the cold decision gave, and 1 % of the jobs have been replaced by new ones
unchanged  everyone holds what the decision before gave

Building the tables of costs is reported apart: a live scheduler only does it for jobs that have learned something.

Legend: J jobs, T GPU types, S sizes, N nodes.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fairlead.goodput.curves import Model, curves
from fairlead.goodput.throughput import GAMMA_MAX, ThroughputParams
from fairlead.policies.allocator import Answer, Problem, allocate, costs_of, mean_of
from fairlead.sim.applications import APPLICATIONS, DEFAULT_TYPE

Floats = NDArray[np.float64]

NODE_GPUS = 8
SIZES = (0, 1, 2, 4, *range(NODE_GPUS, 128 + 1, NODE_GPUS))
P = -1.0

#: Goodput tables are made for so many models at a time, to bound the memory.
CHUNK = 250


@dataclass(frozen=True)
class Workload:
    """Jobs, and what each would achieve: goodput relative to one GPU of the slowest type."""

    one_JTS: Floats
    many_JTS: Floats
    weight_J: Floats
    #: What is left of the speed if the job is moved.
    restart_J: Floats


def speeds(types: int) -> list[float]:
    """Times as fast as the slowest type: each type is twice the one before, and after four it begins anew."""
    return [float(2 ** (kind % 4)) for kind in range(types)]


def make_workload(jobs: int, types: int, rng: np.random.Generator) -> Workload:
    names = list(APPLICATIONS)
    models: list[Model] = []
    for name in rng.choice(names, size=jobs).tolist():
        app = APPLICATIONS[name]
        base = vary(app.on(DEFAULT_TYPE), rng)
        phi = float(app.noise_scale[0] * (app.noise_scale[1] / app.noise_scale[0]) ** rng.random())
        for speed in speeds(types):
            models.append(Model(base.faster(speed, within_node=speed), phi, app.batch))
    one_JTS, many_JTS = tabulate(models, jobs, types)
    alone_J11 = one_JTS[:, :1, 1:2].copy()
    one_JTS[:, :, np.array(SIZES) > NODE_GPUS] = 0.0  # no node has so many
    return Workload(
        one_JTS / alone_J11,
        many_JTS / alone_J11,
        weight_J=rng.lognormal(0.0, 0.5, jobs),
        restart_J=rng.uniform(0.5, 1.0, jobs),
    )


def vary(params: ThroughputParams, rng: np.random.Generator) -> ThroughputParams:
    values = {f.name: getattr(params, f.name) * float(rng.lognormal(0.0, 0.3)) for f in fields(params)}
    values["gamma"] = min(max(1.0, values["gamma"]), GAMMA_MAX)
    return ThroughputParams(**values)


def tabulate(models: Sequence[Model], jobs: int, types: int) -> tuple[Floats, Floats]:
    """Goodput by job, type and size, on one node and on several."""
    one, many = np.zeros((2, len(models), len(SIZES)))
    for begin in range(0, len(models), CHUNK):
        some = models[begin : begin + CHUNK]
        for row, curve in enumerate(curves(some, [SIZES[-1]] * len(some)), start=begin):
            one[row], many[row] = curve.one_K[list(SIZES)], curve.many_K[list(SIZES)]
    return one.reshape(jobs, types, -1), many.reshape(jobs, types, -1)


def make_problem(work: Workload, gpus: int, held: Sequence[dict[int, int]] | None = None) -> Problem:
    """Cold if nobody holds anything: then nobody loses by starting."""
    J, T, _ = work.one_JTS.shape
    nodes = max(T, gpus // NODE_GPUS)
    type_N = np.arange(nodes) % T
    now = held or [{}] * J
    holds_J = np.array([bool(where) for where in now])
    factor_J11 = np.where(holds_J, work.restart_J, 1.0)[:, None, None]
    weight_J11 = work.weight_J[:, None, None]
    stay_J = np.full(J, np.inf)
    for job in np.flatnonzero(holds_J).tolist():
        table = work.one_JTS if len(now[job]) == 1 else work.many_JTS
        speed = table[job, type_N[next(iter(now[job]))], SIZES.index(sum(now[job].values()))]
        stay_J[job] = costs_of(speed, p=P, weight=float(work.weight_J[job]))
    one_JTS, many_JTS = (
        np.where(speed_JTS > 0, costs_of(speed_JTS * factor_J11, p=P, weight=weight_J11), np.inf)
        for speed_JTS in (work.one_JTS, work.many_JTS)
    )
    return Problem(
        sizes_S=np.array(SIZES),
        one_JTS=one_JTS,
        many_JTS=many_JTS,
        idle_J=costs_of(np.zeros(J), p=P, weight=work.weight_J),
        stay_J=stay_J,
        held=now,
        gpus_N=np.full(nodes, NODE_GPUS),
        type_N=type_N,
    )


def replaced(work: Workload, fresh: Workload, which: NDArray[np.int64]) -> Workload:
    """The same with some jobs gone and others in their place."""
    arrays = {f.name: getattr(work, f.name).copy() for f in fields(work)}
    for name, array in arrays.items():
        array[which] = getattr(fresh, name)
    return replace(work, **arrays)


def decide(case: str, work: Workload, problem: Problem) -> tuple[dict[str, Any], Answer]:
    """One decision as it is made in life: once, without warming up; only the garbage collector waits."""
    gc.collect()
    gc.disable()
    wall, cpu = time.perf_counter(), time.process_time()
    answer = allocate(problem)
    cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - wall
    gc.enable()
    weight = float(work.weight_J.sum())
    given = [sum(where.values()) for where in answer.where]
    row = {
        "case": case,
        "jobs": len(given),
        "gpus": int(problem.gpus_N.sum()),
        "types": problem.one_JTS.shape[1],
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "gap": 1.0 - mean_of(answer.cost, p=P, weight=weight) / mean_of(answer.bound, p=P, weight=weight),
        "gpus_used": sum(given),
        "jobs_waiting": given.count(0),
        "jobs_moved": sum(
            bool(before) and before != after for before, after in zip(problem.held, answer.where, strict=True)
        ),
    }
    return row, answer


def run(jobs: int, gpus: int, types: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    begin = time.process_time()
    work = make_workload(jobs, types, rng)
    changed = np.sort(rng.choice(jobs, size=max(1, jobs // 100), replace=False))
    after = replaced(work, make_workload(len(changed), types, rng), changed)
    tables_s = time.process_time() - begin
    part = Workload(*(getattr(work, f.name)[: max(1, jobs // 4)] for f in fields(work)))
    quarter, _ = decide("cold, a quarter", part, make_problem(part, gpus // 4))
    cold, answer = decide("cold", work, make_problem(work, gpus))
    cold |= {"tables_s": tables_s, "times_quarter": cold["cpu_s"] / quarter["cpu_s"]}
    held = [dict(where) for where in answer.where]
    for job in changed.tolist():
        held[job] = {}
    some, answer = decide("one_pct", after, make_problem(after, gpus, held))
    same, _ = decide("unchanged", after, make_problem(after, gpus, [dict(where) for where in answer.where]))
    return [quarter, cold, some, same]


@click.command()
@click.option("--jobs", type=click.IntRange(4), default=10_000, show_default=True, help="Jobs that want GPUs.")
@click.option("--gpus", type=click.IntRange(32), default=100_000, show_default=True, help="GPUs of the cluster.")
@click.option("--types", type=click.IntRange(1), default=4, show_default=True, help="GPU types of the cluster.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the jobs.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How to print the figures.")
def main(jobs: int, gpus: int, types: int, seed: int, output: str) -> None:
    """Make a large problem and decide it cold, after a change, and after none."""
    rows = run(jobs, gpus, types, seed)
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(*names)
    for row in rows:
        shown = (row.get(name, "") for name in names)
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in shown))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
