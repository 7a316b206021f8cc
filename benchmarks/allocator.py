"""How good the allocator's answers are and how fast it finds them, on stored problems. Prints figures; asserts nothing.

    python benchmarks/allocator.py DIR [--search exact|genetic|both] [--repeat 30] [-o table|json]

Every inputs_*.json in DIR is one decision: nodes, jobs with their speed-up for every (nodes, GPUs), and who holds what.
Timed is the decision alone, in CPU seconds: the best of some repetitions after one to warm up, without the garbage
collector. Reading the file and building the problem's tables come before, scoring comes after.

Fitness and bound are those of DIR/score.py where it can tell, and else of `fitness` and `upper_bound` here: the same,
but they also know nodes of different sizes, smallest sizes, jobs that may not move, and exponents from 0 up. The gap is
the share of the bound that is missing. The allocations ({job: [node, one per GPU]}) are in the JSON.

Legend: J jobs, S sizes, which are all numbers of GPUs from 0, C GPUs in use.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fairlead.policies.allocator import Answer, Problem, allocate
from fairlead.policies.genetic import evolve

#: CPU seconds and fitness of the released Pollux optimiser (100 individuals, 100 generations) on the same inputs.
REFERENCES = {
    "16_4": (1.6, 0.0078),
    "24_16": (2.6, 0.159),
    "24_16_warm": (3.0, 0.1961),
    "64_16_warm": (5.9, 0.0037),
    "160_16_warm": (13.7, 0.00154),
    "256_64_warm": (58.0, 0.0023),
}

SEARCHES: dict[str, Callable[[Problem], Answer]] = {
    "exact": allocate,
    "genetic": lambda problem: evolve(problem, seed=0),
}

Inputs = dict[str, Any]
Allocation = Mapping[str, Sequence[int]]


# -- reading -----------------------------------------------------------------------------------------------------------


def read(path: Path) -> Inputs:
    """A stored problem, with what it may leave unsaid."""
    try:
        inputs: Inputs = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise click.ClickException(f"{path} is not JSON, or not all of it: {error}") from None
    if not isinstance(inputs, dict) or not {"jobs", "gpus_per_node"} <= inputs.keys():
        raise click.ClickException(f"{path} is no stored problem: expected an object with jobs and gpus_per_node")
    if "num_nodes" not in inputs:
        inputs["num_nodes"] = len(inputs["gpus_per_node"])
    nodes = inputs["num_nodes"]
    unsaid = {
        "p": -1,
        "eps": 1e-3,
        "restart_delay": 30.0,
        "max_nodes_per_job": nodes,
        "one_distributed_job_per_node": True,
        "scale": nodes / sum(node_sizes(inputs)),
        "base_allocation": {},
    }
    return unsaid | {name: value for name, value in inputs.items() if value is not None}


def node_sizes(inputs: Inputs) -> list[int]:
    gpus = inputs["gpus_per_node"]
    return [gpus] * inputs["num_nodes"] if isinstance(gpus, int) else list(gpus)


def restart_factor(inputs: Inputs, job: Inputs) -> float:
    delay, age = inputs["restart_delay"], job.get("age", 0.0)
    if age + delay <= 0:
        return 1.0
    return float(max(age - job.get("num_restarts", 0) * delay, 0.0) / (age + delay))


def base_of(inputs: Inputs, job: Inputs) -> list[int]:
    """Where the job is now; nowhere, if part of that is no longer there."""
    base = sorted(inputs["base_allocation"].get(job["name"]) or [])
    return base if all(0 <= node < inputs["num_nodes"] for node in base) else []


def fixed(inputs: Inputs, job: Inputs) -> bool:
    """It may not be moved. Who has nothing may be given something."""
    return (job.get("pinned", False) or not job.get("preemptible", True)) and bool(base_of(inputs, job))


def sizes_of(inputs: Inputs, job: Inputs) -> range:
    """Numbers of GPUs it may be given, other than none."""
    most = max((int(key.split(",")[1]) for key in job["speedup"]), default=0)
    most = min(most, job.get("max_replicas", most), sum(node_sizes(inputs)))
    return range(max(1, job.get("min_replicas") or 0), most + 1)


def may_stay(inputs: Inputs) -> set[str]:
    """Whose allocation can be kept. Of those that do not fit together, first who may not move, then who is listed."""
    free, spanned = node_sizes(inputs), [False] * inputs["num_nodes"]
    found = set()
    for job in sorted(inputs["jobs"], key=lambda job: not fixed(inputs, job)):
        base = base_of(inputs, job)
        count = {node: base.count(node) for node in base}
        allowed = len(base) in sizes_of(inputs, job) and len(count) <= inputs["max_nodes_per_job"]
        alone = len(count) < 2 or not inputs["one_distributed_job_per_node"] or not any(spanned[node] for node in count)
        room = all(free[node] >= gpus for node, gpus in count.items())
        if base and (fixed(inputs, job) or (allowed and alone and room)):
            found.add(job["name"])
            for node, gpus in count.items():
                free[node] -= gpus
                spanned[node] |= len(count) > 1
    return found


# -- the problem -------------------------------------------------------------------------------------------------------


def cost_of(inputs: Inputs, speedup: float | NDArray[np.float64], factor: float = 1.0) -> NDArray[np.float64]:
    """What is summed over jobs; the least sum has the greatest mean. With p < 0 and no epsilon, nothing at all must
    still have a cost that can be compared."""
    p, x = inputs["p"], np.asarray(speedup) * (inputs["scale"] * factor) + max(inputs["eps"], 1e-9)
    return np.asarray(-np.log(x) if p == 0 else -np.sign(p) * x**p)


def curves_of(inputs: Inputs, job: Inputs) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Speed-up on one node and on the fewest (of at least two), by number of GPUs; NaN where there is none."""
    largest = sorted(node_sizes(inputs), reverse=True)
    held_by = np.cumsum(largest).tolist()  # GPUs of the n + 1 largest nodes
    one_S, many_S = np.full((2, sum(largest) + 1), np.nan)
    fewest: dict[int, int] = {}
    for key, value in job["speedup"].items():
        nodes, gpus = map(int, key.split(","))
        if nodes > inputs["num_nodes"] or gpus not in sizes_of(inputs, job) or gpus > held_by[nodes - 1]:
            continue
        if nodes == 1:
            one_S[gpus] = value
        elif nodes <= min(gpus, inputs["max_nodes_per_job"], fewest.get(gpus, nodes)):
            many_S[gpus], fewest[gpus] = value, nodes
    return one_S, many_S


def build(inputs: Inputs) -> Problem:
    jobs, sizes = inputs["jobs"], node_sizes(inputs)
    top = max((len(sizes_of(inputs, job)) + sizes_of(inputs, job).start - 1 for job in jobs), default=0)
    top = max([top, *(len(base_of(inputs, job)) for job in jobs)])  # who may not move may have any number
    one, many = np.full((2, len(jobs), 1, top + 1), np.inf)
    idle_J, stay_J = np.full(len(jobs), float(cost_of(inputs, 0.0))), np.full(len(jobs), np.inf)
    held: list[dict[int, int]] = []
    stayers = may_stay(inputs)
    for j, job in enumerate(jobs):
        base = base_of(inputs, job) if job["name"] in stayers else []
        held.append({node: base.count(node) for node in base})
        if base:
            stay_J[j] = cost_of(inputs, job["speedup"].get(f"{len(held[j])},{len(base)}", 0.0))
        if fixed(inputs, job):
            idle_J[j] = np.inf
            continue
        for table, curve_S in zip((one, many), curves_of(inputs, job), strict=True):
            cost_S = cost_of(inputs, curve_S[: top + 1], restart_factor(inputs, job))
            table[j, 0, : len(cost_S)] = np.where(np.isnan(cost_S), np.inf, cost_S)
    return Problem(
        sizes_S=np.arange(top + 1),
        one_JTS=one,
        many_JTS=many,
        idle_J=idle_J,
        stay_J=stay_J,
        held=held,
        gpus_N=np.array(sizes, dtype=np.int64),
        type_N=np.zeros(len(sizes), dtype=np.int64),
        exclusive=bool(inputs["one_distributed_job_per_node"]),
        most_nodes=inputs["max_nodes_per_job"],
    )


def allocation_of(inputs: Inputs, answer: Answer) -> dict[str, list[int]]:
    return {
        job["name"]: [node for node in sorted(where) for _ in range(where[node])]
        for job, where in zip(inputs["jobs"], answer.where, strict=True)
    }


# -- the score ---------------------------------------------------------------------------------------------------------


def fitness(inputs: Inputs, allocation: Allocation) -> float:
    total = 0.0
    for job in inputs["jobs"]:
        now = sorted(allocation.get(job["name"], []))
        speedup = job["speedup"].get(f"{len(set(now))},{len(now)}", 0.0)
        total += float(cost_of(inputs, speedup, 1.0 if now == base_of(inputs, job) else restart_factor(inputs, job)))
    return _mean(inputs, total)


def upper_bound(inputs: Inputs) -> float:
    """The best mean there could be if it did not matter where GPUs are."""
    best_C = np.zeros(sum(node_sizes(inputs)) + 1)
    stayers = may_stay(inputs)
    for job in inputs["jobs"]:
        options: dict[int, float] = {} if fixed(inputs, job) else {0: float(cost_of(inputs, 0.0))}
        base = base_of(inputs, job)
        if job["name"] in stayers:
            kept = float(cost_of(inputs, job["speedup"].get(f"{len(set(base))},{len(base)}", 0.0)))
            options[len(base)] = min(kept, options.get(len(base), math.inf))
        for key, value in job["speedup"].items() if not fixed(inputs, job) else ():
            if (gpus := int(key.split(",")[1])) in sizes_of(inputs, job):
                moved = float(cost_of(inputs, value, restart_factor(inputs, job)))
                options[gpus] = min(moved, options.get(gpus, math.inf))
        least_C = np.full(len(best_C), np.inf)
        for gpus, cost in options.items():
            np.minimum(least_C[gpus:], best_C[: len(best_C) - gpus] + cost, out=least_C[gpus:])
        best_C = least_C
    return _mean(inputs, float(best_C.min()))


def _mean(inputs: Inputs, cost: float) -> float:
    p, share = inputs["p"], cost / max(1, len(inputs["jobs"]))
    return math.exp(-share) if p == 0 else float((-np.sign(p) * share) ** (1.0 / p))


def scorer_in(directory: Path) -> ModuleType | None:
    path = directory / "score.py"
    if not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location("score", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def score(scorer: ModuleType | None, inputs: Inputs, allocation: Allocation) -> tuple[float, float, str]:
    """(fitness, bound, whose)."""
    if scorer is not None:
        try:
            reached, bound = float(scorer.fitness(inputs, allocation)), float(scorer.upper_bound(inputs))
        except (ArithmeticError, LookupError, TypeError):
            pass  # nodes of different sizes, say, which it may not know
        else:
            if reached <= bound * (1.0 + 1e-9):  # what can be exceeded is no bound
                return reached, bound, "score.py"
    return fitness(inputs, allocation), upper_bound(inputs), "own"


# -- measuring ---------------------------------------------------------------------------------------------------------


def timed(search: Callable[[Problem], Answer], problem: Problem, repeat: int) -> tuple[float, Answer]:
    """(least CPU seconds, answer)."""
    answer = search(problem)
    least = math.inf
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeat):
            begin = time.process_time()
            answer = search(problem)
            least = min(least, time.process_time() - begin)
    finally:
        if collecting:
            gc.enable()
    return least, answer


def measure(path: Path, scorer: ModuleType | None, search: str, repeat: int) -> dict[str, Any]:
    inputs = read(path)
    problem = build(inputs)
    cpu_s, answer = timed(SEARCHES[search], problem, repeat)
    allocation = allocation_of(inputs, answer)
    reached, bound, whose = score(scorer, inputs, allocation)
    name = path.stem.removeprefix("inputs_")
    reference_s, reference_fitness = REFERENCES.get(name, (None, None))
    return {
        "problem": name,
        "search": search,
        "jobs": len(inputs["jobs"]),
        "nodes": inputs["num_nodes"],
        "cpu_s": cpu_s,
        "fitness": reached,
        "bound": bound,
        "gap": 1.0 - reached / bound,
        "scored_by": whose,
        "reference_cpu_s": reference_s,
        "reference_fitness": reference_fitness,
        "speedup": None if reference_s is None else reference_s / cpu_s,
        "allocation": allocation,
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    names = [name for name in rows[0] if name != "allocation"]
    table = Table(*names)
    for row in rows:
        table.add_row(
            *("" if row[n] is None else f"{row[n]:.4g}" if isinstance(row[n], float) else str(row[n]) for n in names)
        )
    Console(width=160).print(table)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--search", type=click.Choice([*SEARCHES, "both"]), default="exact", help="Which search to run.")
@click.option("--repeat", type=click.IntRange(1), default=30, help="Repetitions, of which the fastest counts.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How to print the figures.")
def main(directory: Path, search: str, repeat: int, output: str) -> None:
    """Decide every problem in DIRECTORY."""
    paths = sorted(directory.glob("inputs_*.json"))
    if not paths:
        raise click.ClickException(f"{directory} has no inputs_*.json; name a directory with stored problems")
    scorer = scorer_in(directory)
    rows = []
    for path in paths:
        for name in SEARCHES if search == "both" else (search,):
            # A genetic search takes seconds: it is not worth repeating, and needs no warming up to speak of.
            rows.append(measure(path, scorer, name, 1 if name == "genetic" else repeat))
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
    else:
        show(rows)


if __name__ == "__main__":
    main()
