"""The tools for authors of policies, themselves: scenarios, random pasts, and what happens without hypothesis."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Node, Phase
from fairlead.policies.fifo import Fifo
from fairlead.testing import Scenario, job, make_state, make_view, placement, show
from fairlead.testing.history import History, histories
from fairlead.testing.scenario import allocation
from fairlead.testing.workload import Workload, workloads


def test_a_scenario_that_holds_returns_the_plan() -> None:
    plan = Scenario(nodes="1x4", jobs=[job("a", 2)], expected={"a": "n0[0,1]"}).check(Fifo())
    assert placement(plan) == {"a": "n0[0,1]"}


def test_a_scenario_that_does_not_hold_shows_both_sides_and_the_situation() -> None:
    jobs = [job("a", 2, on="n0[0,1]", preemptible=False, priority=3), job("b", 4, gpu_types=("x",), estimate_s=9.0)]
    with pytest.raises(AssertionError) as failed:
        Scenario(nodes="2x4", jobs=jobs, now=5.0, draining=["n1"], expected={"a": 1}).check(Fifo())
    assert str(failed.value).splitlines() == [
        "expected {'a': 1}, found {'a': 2}",
        "at 5 s: 2 nodes, 2 jobs",
        "  node n0: 4 x gpu, open",
        "  node n1: 4 x gpu, draining",
        "  job a: running on n0[0,1]; wants 2, priority 3, not preemptible, had 10 GPU-s",
        "  job b: pending; wants 4, of type x, promises 9 s",
    ]


def test_a_job_has_the_past_it_is_given() -> None:
    given_job = job("a", 2, submitted_at=1.0, stints=[("n0[0,1]", 2.0, 5.0), ("n1[0,1]", 7.0, None)])
    state = make_state("2x4", [given_job], now=10.0)
    found = state.live["a"]
    assert (found.submitted_at, found.attempt, found.phase) == (1.0, 2, Phase.RUNNING)
    assert (found.service_at(10.0), found.run_at(10.0), str(found.allocation)) == (12.0, 6.0, "n1[0,1]")


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING, Phase.STOPPING])
def test_a_job_is_in_the_phase_it_is_given(phase: Phase) -> None:
    assert make_state("1x4", [job("a", on="n0[0]", phase=phase)], now=1.0).live["a"].phase is phase


def test_nodes_may_be_given_as_values_and_be_lost() -> None:
    view = make_view([Node("x", 2, "a100"), Node("y", 3)], lost=["y"])
    assert (view.nodes["x"].gpu_type, view.nodes["y"].healthy) == ("a100", False)


def test_an_allocation_is_read_back_as_it_is_written() -> None:
    assert str(allocation("n1[2] n0[0,1]")) == "n0[0,1] n1[2]"
    with pytest.raises(InvalidSpec, match="'n0' is no allocation; expected nodes with GPU numbers"):
        allocation("n0")


def test_a_large_snapshot_is_shown_in_few_lines() -> None:
    text = show(make_view("100x4", [job(f"j{place}") for place in range(1000)]))
    assert len(text.splitlines()) == 27
    assert "... and 988 more" in text


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    """In how many of 100 random pasts each thing came about."""
    counts: Counter[str] = Counter()

    @settings(max_examples=100, database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(histories())
    def look(history: History) -> None:
        found = {"live clock" if history.begins_at else "simulated clock"}
        for view in history.views():
            found.add(f"{len({node.gpu_type for node in view.nodes.values()})} types")
            found |= {"lost" for node in view.nodes.values() if not node.healthy}
            found |= {"draining" for node in view.nodes.values() if node.draining and view.assigned.get(node.id)}
            found |= {"cancelled" for _ in view.barred}
            for live in view.jobs.values():
                found |= {str(live.phase)}
                found |= {"unpreemptible runs"} if live.allocation and not live.spec.preemptible else set()
                found |= {"resized"} if live.allocation and live.allocation.total != live.spec.gpus else set()
                found |= {"failed before"} if live.failures else set()
        counts.update(found)

    look()
    return counts


THINGS = [
    *("pending", "starting", "running", "rescaling", "suspended", "stopping", "cancelled", "lost", "draining"),
    *("1 types", "2 types", "3 types", "unpreemptible runs", "resized", "failed before", "live clock"),
]


@pytest.mark.parametrize("thing", THINGS)
def test_random_pasts_lead_everywhere(seen: Counter[str], thing: str) -> None:
    assert seen[thing] >= 3, seen


@settings(max_examples=50, deadline=None)
@given(workloads())
def test_every_job_of_a_random_workload_fits_the_cluster(workload: Workload) -> None:
    room: Counter[str] = Counter()
    for node in workload.nodes:
        room[node.gpu_type] += node.gpus
    for sim_job in workload.jobs:
        assert sim_job.spec.gpus <= max(room[t] for t in sim_job.spec.gpu_types or room)


def test_the_tools_load_without_hypothesis_and_only_the_check_asks_for_it() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from fairlead.testing import Scenario, check_policy, job\n"
        "from fairlead.policies.fifo import Fifo\n"
        "Scenario(nodes='1x4', jobs=[job('a')], expected={'a': 1}).check(Fifo())\n"
        "check_policy(Fifo())\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("ImportError: check_policy needs hypothesis: run scripts/setup dev")
    assert last.endswith("pip install 'fairlead[dev]'")
