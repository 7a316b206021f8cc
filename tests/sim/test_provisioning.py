"""Nodes that are rented and released in the simulated cluster: when they are there, and what they cost."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cli.main import main
from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Cadence, run
from fairlead.core.messages import Message, NodeJoined, NodeLost, Release, Rent
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Allocation, JobSpec, Node, Plan
from fairlead.journal import MemoryJournal, replay, save_journal
from fairlead.sim.backend import SimBackend
from fairlead.sim.metrics import Measured, measure
from fairlead.sim.traces.journal import read_journal_trace
from fairlead.sim.truth import FixedDuration
from fairlead.sim.world import Outage, SimJob

NODES = [Node("n0", 2, price_per_hour=1.0), Node("n1", 2, price_per_hour=10.0)]
ON_N0 = Allocation.of({"n0": [0, 1]})
HOURS = 3600.0


@dataclass(frozen=True)
class Wants:
    """From each time on, these nodes should exist. Its one job runs on n0."""

    nodes: Mapping[float, str]

    def plan(self, view: Snapshot) -> Plan:
        wanted = self.nodes[max(at for at in self.nodes if at <= view.now)]
        later = [at for at in self.nodes if at > view.now]
        open_n0 = view.nodes["n0"].open
        allocations = {job_id: ON_N0 for job_id in view.jobs if open_n0}
        return Plan(allocations, nodes=frozenset(wanted.split()), review_at=min(later, default=math.inf))


def simulate(nodes: Mapping[float, str], hours: float = 4.0, **world: Any) -> list[Message]:
    job = SimJob(JobSpec(id="a", gpus=2), 0.0, FixedDuration(hours * HOURS, 2))
    state, journal = State(), MemoryJournal()
    backend = SimBackend([job], NODES, **world)
    run(Wants(nodes), backend, state=state, journal=journal, cadence=Cadence())
    assert replay(journal.messages) == state
    return journal.messages


def of_nodes(messages: Sequence[Message]) -> list[Message]:
    return [m for m in messages if isinstance(m, NodeLost | Release | Rent) or (isinstance(m, NodeJoined) and m.at > 0)]


def summary(messages: Sequence[Message]) -> Any:
    measured: Measured = measure(messages)
    return measured.summary


def test_a_rented_node_joins_after_its_provisioning_delay() -> None:
    messages = simulate({0.0: "n0", 1 * HOURS: "n0 n1"}, provision_s=600.0)
    assert of_nodes(messages) == [
        Release(0.0, "n1"),
        Rent(1 * HOURS, "n1"),
        NodeJoined(1 * HOURS + 600.0, NODES[1]),
    ]


def test_a_node_is_paid_for_from_joining_until_its_release() -> None:
    messages = simulate({0.0: "n0 n1", 1 * HOURS: "n0", 2 * HOURS: "n0 n1"}, provision_s=1800.0)
    figures = summary(messages)
    assert figures.node_hours == pytest.approx(4.0 + 1.0 + 1.5)
    assert figures.cost == pytest.approx(4.0 * 1.0 + 2.5 * 10.0)


def test_gpus_of_a_released_node_are_not_idle() -> None:
    everything, little = summary(simulate({0.0: "n0 n1"})), summary(simulate({0.0: "n0"}))
    assert (everything.utilisation, everything.gpu_h_idle) == (pytest.approx(0.5), pytest.approx(8.0))
    assert (little.utilisation, little.gpu_h_idle) == (pytest.approx(1.0), pytest.approx(0.0))
    assert everything.gpu_h_useful == little.gpu_h_useful == pytest.approx(8.0)


def test_without_a_delay_a_node_joins_at_once() -> None:
    assert of_nodes(simulate({0.0: "n0", 60.0: "n0 n1"}))[-1] == NodeJoined(60.0, NODES[1])


def test_a_node_in_use_is_released_when_its_job_has_ended() -> None:
    messages = simulate({0.0: "n1"}, hours=1.0)
    assert of_nodes(messages) == [Release(1 * HOURS, "n0")]


def test_a_machine_that_does_not_exist_cannot_fail() -> None:
    outage = Outage("n1", 1000.0, 5000.0)
    assert of_nodes(simulate({0.0: "n0"}, outages=[outage])) == [Release(0.0, "n1")]
    rented = simulate({0.0: "n0", 2000.0: "n0 n1"}, outages=[outage], provision_s=100.0)
    assert of_nodes(rented) == [Release(0.0, "n1"), Rent(2000.0, "n1"), NodeJoined(2100.0, NODES[1])]
    slow = simulate({0.0: "n0", 900.0: "n0 n1"}, outages=[outage], provision_s=7000.0)
    assert of_nodes(slow) == [Release(0.0, "n1"), Rent(900.0, "n1"), NodeJoined(7900.0, NODES[1])]


def test_a_node_that_failed_is_released_when_it_is_back() -> None:
    messages = simulate({0.0: "n0 n1", 2000.0: "n0"}, outages=[Outage("n1", 1000.0, 5000.0)])
    assert of_nodes(messages) == [NodeLost(1000.0, "n1"), NodeJoined(5000.0, NODES[1]), Release(5000.0, "n1")]


def test_a_release_is_no_failure_when_the_journal_is_replayed_as_a_trace(tmp_path: Path) -> None:
    save_journal(tmp_path / "j", simulate({0.0: "n0", 60.0: "n0 n1"}))
    trace = read_journal_trace(tmp_path / "j")
    assert [node.id for node in trace.nodes] == ["n0", "n1"]
    assert trace.failures == ()


@pytest.mark.parametrize("delay", [-1.0, math.inf, math.nan])
def test_a_delay_that_is_none_is_refused(delay: float) -> None:
    with pytest.raises(InvalidSpec, match="provision_s is"):
        simulate({0.0: "n0"}, provision_s=delay)


@settings(max_examples=40, deadline=None)
@given(
    wishes=st.lists(st.sampled_from(["n0", "n1", "n0 n1"]), min_size=1, max_size=6),
    every_s=st.sampled_from([1.0, 100.0, 1000.0]),
    provision_s=st.sampled_from([0.0, 50.0, 1000.0, 2500.0]),
    outage=st.sampled_from([None, ("n0", 150.0, 900.0), ("n1", 100.0, 100.0), ("n1", 50.0, 4000.0)]),
)
def test_whatever_is_wanted_the_job_ends_and_the_journal_replays(
    wishes: list[str], every_s: float, provision_s: float, outage: tuple[str, float, float] | None
) -> None:
    """`simulate` compares the state with the journal's; n0 is wanted in the end, or the job could not end."""
    nodes = {place * every_s: wish for place, wish in enumerate([*wishes, "n0"])}
    outages = [Outage(*outage)] if outage else []
    messages = simulate(nodes, hours=0.5, provision_s=provision_s, outages=outages)
    assert list(replay(messages).finished) == ["a"]
    figures = summary(messages)
    in_use_gpu_h = figures.gpu_h_useful + figures.gpu_h_restart + figures.gpu_h_lost
    assert in_use_gpu_h + figures.gpu_h_idle == pytest.approx(2 * figures.node_hours)


def test_the_command_line_sets_the_delay(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        '{"fairlead_trace": 1}\n'
        '{"job": {"id": "a", "submit_s": 0, "gpus": 2, "duration_s": 100}}\n'
        '{"job": {"id": "b", "submit_s": 2000, "gpus": 4, "duration_s": 100}}\n'
    )
    policy = "autoscale:patience_s=60,release_after_s=60+fifo"

    def jct_s(*options: str) -> float:
        arguments = ["simulate", str(trace), "--cluster", "2x2", "--costs", "none", "--policy", policy, *options]
        done = CliRunner().invoke(main, [*arguments, "--output", "json"])
        assert done.exit_code == 0, done.output
        result = json.loads(done.stdout)
        return float((result[0] if isinstance(result, list) else result)["jct_mean_s"])

    assert jct_s() == pytest.approx((100.0 + 120.0 + 100.0) / 2)
    assert jct_s("--provision", "500") == pytest.approx((100.0 + 500.0 + 100.0) / 2)
