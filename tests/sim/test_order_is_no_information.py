"""Metamorphic: GPU types and nodes may be listed in another order and called otherwise, and rows of a trace may be
shuffled. What comes of every job stays the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.plugins import POLICIES, make_policy
from fairlead.sim.experiment import Experiment, run_experiment
from fairlead.sim.many import run_many
from fairlead.sim.traces import Trace, TraceJob
from fairlead.sim.traces.canonical import to_jsonl

SIZES = (1, 1, 2, 4, 1, 8, 2, 3)
APPLICATIONS = ("small-cnn", "language-model", "recommender")


def _has_default(name: str) -> bool:
    try:
        make_policy(name)
    except InvalidSpec:
        return False
    return True


#: Every policy that can be named alone, and the agnostic draw.
NAMES = [name for name in POLICIES if _has_default(name)] + ["fifo:gpu_type=any,seed=3", "srtf:gpu_type=any,seed=3"]


def trace_job(number: int, **fields: object) -> TraceJob:
    gpus = SIZES[number % len(SIZES)]
    common = {"id": f"j{number}", "submit_s": 37.0 * number, "gpus": gpus, "gpus_min": gpus, "gpus_max": gpus}
    return TraceJob(**common, **fields)  # type: ignore[arg-type]


def written(path: Path, jobs: Sequence[TraceJob]) -> str:
    path.write_text(to_jsonl(Trace(jobs=tuple(jobs), format="fairlead", source="test")))
    return str(path)


@pytest.fixture(scope="module")
def durations(tmp_path_factory: pytest.TempPathFactory) -> str:
    jobs = [trace_job(n, duration_s=100.0 + 311.0 * (n * 7 % 11)) for n in range(24)]
    return written(tmp_path_factory.mktemp("order") / "durations.jsonl", jobs)


@pytest.fixture(scope="module")
def applications(tmp_path_factory: pytest.TempPathFactory) -> str:
    jobs = [trace_job(n, model=APPLICATIONS[n % 3]) for n in range(14)]
    return written(tmp_path_factory.mktemp("order") / "applications.jsonl", jobs)


def ends(**fields: object) -> dict[str, float | None]:
    """When each job ended."""
    result = run_experiment(Experiment(**fields))  # type: ignore[arg-type]
    return {job.job: job.ended_at for job in result.measured.jobs}


@pytest.mark.parametrize("policy", NAMES)
def test_the_order_of_a_cluster_and_the_names_of_its_gpu_types_change_nothing(durations: str, policy: str) -> None:
    """Two sizes of nodes, three types, two of which are equally fast."""
    found = ends(trace=durations, policy=policy, cluster="a=1x8,b=2x4,c=1x8,b=1x2", speeds="a=1,b=2.5,c=1")
    assert found == ends(trace=durations, policy=policy, cluster="b=1x2,c=1x8,b=2x4,a=1x8", speeds="c=1,b=2.5,a=1")
    renamed = ends(trace=durations, policy=policy, cluster="z=1x2,z=2x4,b=1x8,a=1x8", speeds="z=2.5,b=1,a=1")
    assert found == renamed


@pytest.mark.parametrize("policy", NAMES)
def test_the_order_of_a_cluster_changes_nothing_where_applications_have_speeds(applications: str, policy: str) -> None:
    one, other = (
        ends(trace=applications, policy=policy, cluster=c) for c in ("v100=2x4,a100=2x4", "a100=2x4,v100=2x4")
    )
    assert one == other


def test_fewer_and_larger_nodes_of_one_type_may_be_listed_in_any_order(durations: str) -> None:
    for policy in ("fifo", "tiresias", "pilot"):
        one, other = (ends(trace=durations, policy=policy, cluster=c) for c in ("1x8,3x4,2x2", "2x2,1x8,3x4"))
        assert one == other


def test_failures_go_with_the_node_and_not_with_its_place_in_the_list(durations: str) -> None:
    speeds, rates = "a=1,b=2", (0.3, 0.05)
    one, other = (
        ends(trace=durations, policy="fifo", cluster=c, speeds=speeds, failures_h=rates)
        for c in ("a=2x4,b=2x4", "b=2x4,a=2x4")
    )
    assert one == other


def test_rows_of_a_trace_may_be_in_any_order(durations: str, tmp_path: Path) -> None:
    head, *rows = Path(durations).read_text().splitlines(keepends=True)
    random.Random(0).shuffle(rows)
    shuffled = tmp_path / "shuffled.jsonl"
    shuffled.write_text("".join([head, *rows]))
    for policy in ("fifo", "srtf", "tiresias", "pilot"):
        one, other = (ends(trace=str(trace), policy=policy, cluster="4x4") for trace in (durations, shuffled))
        assert one == other


def test_policies_of_a_comparison_may_be_in_any_order(durations: str) -> None:
    """And are the same alone."""
    runs = [
        Experiment(trace=durations, policy=policy, cluster="a=2x4,b=2x4") for policy in ("fifo", "easy", "tiresias")
    ]
    back = run_many(runs[::-1], workers=1)
    assert [r.measured.summary for r in reversed(back)] == [run_experiment(run).measured.summary for run in runs]
