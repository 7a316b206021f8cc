"""The allocator moves no running job for nothing, above all on a cluster of several GPU types that are equally fast.

Legend: J jobs, T GPU types, S sizes, N nodes.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fairlead.cli.main import main
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Plan
from fairlead.plugins import make_policy
from fairlead.policies.allocator import Problem, allocate
from fairlead.policies.exchange import steadied
from fairlead.policies.placing import Room
from fairlead.testing import job, make_view, placement
from fairlead.testing.scenario import GivenJob

RESIZING = ("pilot", "sia", "pollux")

#: GPUs of a node of these clusters.
NODE = 4


def rigid_jobs(seed: int, cluster: str) -> list[GivenJob]:
    """Jobs that run on some of the cluster, of different ages, and some that have just arrived."""
    rng = np.random.default_rng(seed)
    empty = make_view(cluster)
    room, given = Room(empty), []
    now = float(rng.choice([100.0, 5_000.0, 1_000_000.0]))
    names = list(empty.node_columns.gpu_types)
    for number in range(int(rng.integers(2, 10))):
        gpus, gpu_type = int(rng.choice([1, 1, 2, 2, 3, 4, 4, 8])), str(rng.choice(names))
        placed = room.take(gpus, (gpu_type,))
        if placed is not None:
            at = float(rng.uniform(0.0, now))
            given.append(job(f"r{number}", gpus, on=str(placed), submitted_at=at))
    for number in rng.permutation(len(given)).tolist()[: len(given) // 3]:  # some have ended since
        del given[min(number, len(given) - 1)]
    news = [job(f"w{n}", int(rng.choice([1, 2, 4, 4, 8])), submitted_at=now) for n in range(int(rng.integers(1, 4)))]
    return [*sorted(given, key=lambda it: it.submitted_at), *news]


def spans(plan: Plan, job_id: str) -> int:
    return len(plan.allocations[job_id].nodes) if job_id in plan.allocations else 0


def view_of(seed: int, cluster: str) -> Snapshot:
    jobs = rigid_jobs(seed, cluster)
    return make_view(cluster, jobs, now=jobs[-1].submitted_at)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["v=4x4,a=4x4", "v=2x4,a=1x4,k=2x4", "v=3x4,a=2x4"]))
@example(7, "v=4x4,a=4x4")
def test_no_running_job_is_moved_where_newcomers_can_have_free_gpus_that_are_as_good(seed: int, cluster: str) -> None:
    view = view_of(seed, cluster)
    simple = make_policy("fifo").plan(view)
    news = [job_id for job_id in view.jobs if job_id not in view.allocations]
    whole = {job_id: -(-view.jobs[job_id].spec.gpus // NODE) for job_id in news}
    assume(all(spans(simple, job_id) == nodes for job_id, nodes in whole.items()))
    for name in RESIZING:
        plan = make_policy(name).plan(view)
        kept = {job_id: str(allocation) for job_id, allocation in view.allocations.items()}
        assert {job_id: where for job_id, where in placement(plan).items() if job_id in kept} == kept, name
        assert set(news) <= set(plan.allocations), name


def test_a_newcomer_goes_to_empty_nodes_of_the_type_that_no_job_uses() -> None:
    """Four jobs fill one type; the other, which is as fast, is empty."""
    for first in (0, 4):
        held = [job(f"r{n}", 4, on=f"n{first + n}[0,1,2,3]", submitted_at=float(n)) for n in range(4)]
        view = make_view("v=4x4,a=4x4", [*held, job("w", 4, submitted_at=1e6)], now=1e6)
        for name in RESIZING:
            found = placement(make_policy(name).plan(view))
            assert {n: found[f"r{n}"] for n in range(4)} == {n: f"n{first + n}[0,1,2,3]" for n in range(4)}, name
            assert found["w"].startswith(f"n{4 - first}["), name


def test_the_trace_of_the_issue_preempts_no_job(tmp_path: Path) -> None:
    trace, cluster = str(tmp_path / "jobs.jsonl"), "v100=4x4,a100=4x4"
    options = ["--jobs", "60", "--load", "0.001", "--seed", "5", "--sizes", "1:0.5,2:0.2,4:0.3"]
    made = CliRunner().invoke(main, ["trace", "generate", trace, "--cluster", cluster, *options])
    assert made.exit_code == 0, made.output
    for name in RESIZING:
        run = CliRunner().invoke(main, ["simulate", trace, "--cluster", cluster, "--policy", name, "-o", "json"])
        assert json.loads(run.stdout)["preemptions"] == 0, name


# -- the exchange alone ------------------------------------------------------------------------------------------------


def two_types(held: list[dict[int, int]], *, gpus: list[int], moved: float = 1.0) -> Problem:
    """Jobs of as many GPUs as they hold, or 2, and types that are equal; staying costs 1, and waiting 10."""
    size_J = [sum(nodes.values()) or 2 for nodes in held]
    one_JTS = np.full((len(held), 2, 5), np.inf)
    for number, size in enumerate(size_J):
        one_JTS[number, :, size] = moved if held[number] else 1.0
    return Problem(
        sizes_S=np.arange(5),
        one_JTS=one_JTS,
        many_JTS=np.full(one_JTS.shape, np.inf),
        idle_J=np.full(len(held), 10.0),
        stay_J=np.array([1.0 if nodes else np.inf for nodes in held]),
        held=held,
        gpus_N=np.array(gpus),
        type_N=np.arange(len(gpus)) % 2,
    )


def test_a_moved_job_returns_and_the_job_that_has_its_gpus_takes_free_ones() -> None:
    problem = two_types([{0: 2}, {}], gpus=[2, 2])
    assert steadied(problem, [{1: 2}, {0: 2}], [1.0, 1.0]) == ([{0: 2}, {1: 2}], [1.0, 1.0])


def test_a_chain_of_moves_is_undone_from_either_end() -> None:
    problem = two_types([{0: 2}, {1: 2}, {}], gpus=[2, 2, 2])
    for where in ([{2: 2}, {0: 2}, {1: 2}], [{1: 2}, {2: 2}, {0: 2}]):
        assert steadied(problem, where, [1.0, 1.0, 1.0])[0] == [{0: 2}, {1: 2}, {2: 2}]


def test_of_jobs_that_gain_the_same_the_first_to_come_has_the_gpus() -> None:
    running_first = two_types([{0: 2}, {}], gpus=[2, 1])
    assert steadied(running_first, [{}, {0: 2}], [10.0, 1.0])[0] == [{0: 2}, {}]
    waiting_first = two_types([{}, {0: 2}], gpus=[2, 1])
    assert steadied(waiting_first, [{0: 2}, {}], [1.0, 10.0])[0] == [{0: 2}, {}]


def test_a_move_that_gains_something_is_kept() -> None:
    """Two single GPUs free on two nodes: only if job 0 moves does the job of two GPUs fit."""
    problem = two_types([{0: 1}, {2: 1}, {}], gpus=[2, 1, 2], moved=1.1)
    answer = allocate(problem)
    assert sorted(answer.where[2].values()) == [2]
    assert answer.cost == pytest.approx(3.1)
