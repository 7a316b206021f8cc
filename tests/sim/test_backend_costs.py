"""What starting, stopping, moving, failing and sharing cost, worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Cadence, run
from fairlead.core.messages import Message
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Allocation, Job, JobSpec, Node, Phase, Plan
from fairlead.journal import MemoryJournal
from fairlead.sim.backend import SimBackend
from fairlead.sim.costs import DEFAULT, FREE, CostModel, Costs
from fairlead.sim.truth import PACKED_SPEED, FixedDuration
from fairlead.sim.world import Outage, SimJob

NODES = [Node("n0", 4), Node("n1", 4), Node("n2", 4)]


def on(node: str, *gpus: int) -> Allocation:
    return Allocation.of({node: gpus})


def across(gpu: int, *nodes: str) -> Allocation:
    return Allocation.of({node: [gpu] for node in nodes})


@dataclass(frozen=True)
class Follow:
    """From each time on, who is where; all may share with all."""

    plans: Mapping[float, Mapping[str, Allocation]]

    def plan(self, view: Snapshot) -> Plan:
        now = max(at for at in self.plans if at <= view.now)
        allocations = {j: a for j, a in self.plans[now].items() if j in view.jobs}
        review_at = min((at for at in self.plans if at > view.now), default=math.inf)
        return Plan(allocations, packed=frozenset({frozenset(allocations)}), review_at=review_at)


def job(job_id: str = "a", seconds: float = 100.0, costs: Costs = FREE, **fields: Any) -> SimJob:
    spec = JobSpec(id=job_id, gpus=2, gpus_min=1, gpus_max=8, **fields)
    return SimJob(spec, 0.0, FixedDuration(seconds, 2), costs)


def simulate(
    plans: Mapping[float, Mapping[str, Allocation]], *jobs: SimJob, **world: Any
) -> tuple[dict[str, Job], list[Message]]:
    journal, state = MemoryJournal(), State()
    run(Follow(plans), SimBackend(jobs, NODES, **world), state=state, journal=journal, cadence=Cadence())
    assert not state.live
    return state.finished, journal.messages


def ends(plans: Mapping[float, Mapping[str, Allocation]], *jobs: SimJob, **world: Any) -> dict[str, float]:
    finished, _ = simulate(plans, *jobs, **world)
    assert {job.phase for job in finished.values()} == {Phase.SUCCEEDED}
    return {job_id: job.since for job_id, job in finished.items()}


def named(messages: Sequence[Message], name: str) -> list[float]:
    return [message.at for message in messages if type(message).__name__ == name]


A, B = on("n0", 0, 1), on("n0", 2, 3)
ALL = Costs(start_s=10.0, restart_s=20.0, save_s=5.0, rescale_s=2.0)


# -- starting, stopping, moving --------------------------------------------------------------------------------------


def test_a_first_start_costs_its_time_and_the_gpus_are_held_meanwhile() -> None:
    finished, messages = simulate({0.0: {"a": A}}, job(costs=Costs(start_s=10.0)))
    assert named(messages, "JobStarted") == [10.0]
    assert (finished["a"].since, finished["a"].service_gpu_s, finished["a"].run_s) == (110.0, 200.0, 100.0)


def test_gpus_are_held_from_the_start_on_and_not_while_a_job_stops_or_waits() -> None:
    finished, _ = simulate({0.0: {"a": A}, 40.0: {}, 60.0: {"a": A}}, job(costs=ALL))
    # 10 s to start, 30 s of work; stopped and waiting from 40 s on; from 60 s 20 s to restart, and 70 s of work.
    assert finished["a"].held_gpu_s == 2 * (40.0 + 90.0)
    assert finished["a"].service_gpu_s == 2 * 100.0


def test_a_rescale_counts_as_holding_the_gpus_it_leads_to() -> None:
    finished, _ = simulate({0.0: {"a": A}, 40.0: {"a": on("n0", 0)}}, job(costs=ALL, in_place=True))
    # 70 of 100 s of work are left at 40 s, which take 140 s on one GPU.
    assert finished["a"].held_gpu_s == 2 * 40.0 + 1 * (2.0 + 140.0)


def test_a_move_by_restart_costs_the_save_and_the_restart() -> None:
    finished, messages = simulate({0.0: {"a": A}, 40.0: {"a": B}}, job(costs=ALL))
    assert named(messages, "JobStopped") == [45.0]
    assert named(messages, "JobStarted") == [10.0, 65.0]
    assert finished["a"].since == 65.0 + 70.0  # 30 of 100 were done


def test_a_stop_before_training_began_has_nothing_to_save() -> None:
    _, messages = simulate({0.0: {"a": A}, 4.0: {"a": B}}, job(costs=ALL))
    assert named(messages, "JobStopped") == [4.0]
    assert named(messages, "JobStarted") == [24.0]


def test_a_pause_of_a_gang_keeps_its_progress() -> None:
    assert ends({0.0: {"a": A}, 40.0: {}, 90.0: {"a": A}}, job(costs=ALL)) == {"a": 90.0 + 20.0 + 70.0}


def test_rescaling_in_place_costs_one_pause_whatever_the_change() -> None:
    four = on("n0", 0, 1, 2, 3)
    assert ends({0.0: {"a": A}, 40.0: {"a": B}}, job(costs=ALL, in_place=True)) == {"a": 42.0 + 70.0}
    assert ends({0.0: {"a": A}, 40.0: {"a": four}}, job(costs=ALL, in_place=True)) == {"a": 42.0 + 35.0}


def test_suspending_frees_the_gpus_after_a_pause_and_resuming_costs_another() -> None:
    plans = {0.0: {"a": A}, 40.0: {"b": A}, 80.0: {"a": A}}
    finished, messages = simulate(plans, job(costs=ALL, in_place=True), job("b", 20.0))
    assert named(messages, "JobRescaled") == [42.0, 82.0]
    assert (finished["b"].first_started_at, finished["b"].since) == (42.0, 62.0)
    assert (finished["a"].since, finished["a"].attempt, finished["a"].preemptions) == (82.0 + 70.0, 1, 1)


def test_a_stop_from_suspension_or_a_rescale_still_writes_the_checkpoint() -> None:
    moving = SimJob(JobSpec(id="a", gpus=2, in_place=True), 0.0, FixedDuration(100.0, 2), ALL, cancel_at=41.0)
    _, messages = simulate({0.0: {"a": A}, 40.0: {"a": B}}, moving)
    assert named(messages, "JobStopped") == [46.0]


# -- lost nodes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every_s", "lost_at", "kept"),
    [
        (0.0, 50.0, 50.0),  # loses nothing
        (15.0, 50.0, 45.0),
        (15.0, 45.0, 45.0),
        (15.0, 14.0, 0.0),
        (500.0, 50.0, 0.0),
        (0.5, 50.25, 50.0),
    ],
)
def test_a_lost_node_costs_the_work_since_the_last_checkpoint(every_s: float, lost_at: float, kept: float) -> None:
    outage, plans = Outage("n0", lost_at, 1e4), {0.0: {"a": A}, lost_at: {"a": on("n1", 0, 1)}}
    cost = Costs(checkpoint_every_s=every_s, restart_s=7.0)
    assert ends(plans, job(costs=cost), outages=[outage]) == {"a": lost_at + 7.0 + 100.0 - kept}


def test_checkpoints_are_counted_from_where_training_began_and_survive_a_change_of_pace() -> None:
    """Saved at 25 and 40 (start-up takes until 10); from 30 on it runs at the packed speed beside b."""
    elsewhere = {"a": on("n1", 0, 1), "b": on("n2", 0, 1)}
    plans = {0.0: {"a": A}, 30.0: {"a": A, "b": A}, 50.0: elsewhere}
    cost, outage = Costs(start_s=10.0, checkpoint_every_s=15.0), Outage("n0", 50.0, 1e4)
    kept = (30.0 - 10.0) + PACKED_SPEED * (40.0 - 30.0)
    finished = ends(plans, job(costs=cost), job("b", 500.0), outages=[outage])
    assert finished["a"] == pytest.approx(50.0 + 100.0 - kept, abs=1e-9)


@pytest.mark.parametrize(("lost_at", "kept"), [(47.0, 40.0), (58.0, 40.0), (60.0, 50.0), (70.0, 50.0)])
def test_a_rescale_in_place_is_no_checkpoint(lost_at: float, kept: float) -> None:
    """Checkpoints are at 20, 40 and 60, the rescale is from 45 to 55: at 60 the job has done 50."""
    cost, outage = Costs(rescale_s=10.0, checkpoint_every_s=20.0), Outage("n0", lost_at, 1e4)
    plans = {0.0: {"a": A}, 45.0: {"a": B}, lost_at: {"a": on("n1", 0, 1)}}
    assert ends(plans, job(costs=cost, in_place=True), outages=[outage]) == {"a": lost_at + 100.0 - kept}


def test_a_checkpoint_due_during_a_rescale_saves_what_was_done_before_it() -> None:
    cost = Costs(rescale_s=10.0, checkpoint_every_s=50.0)
    plans = {0.0: {"a": A}, 45.0: {"a": B}, 60.0: {"a": on("n1", 0, 1)}}
    outage = Outage("n0", 60.0, 1e4)
    assert ends(plans, job(costs=cost, in_place=True), outages=[outage]) == {"a": 60.0 + 100.0 - 45.0}


def test_a_node_lost_during_the_last_save_costs_the_work_since_the_one_before() -> None:
    cost = Costs(save_s=10.0, checkpoint_every_s=20.0)
    plans = {0.0: {"a": A}, 50.0: {}, 55.0: {"a": on("n1", 0, 1)}}
    assert ends(plans, job(costs=cost), outages=[Outage("n0", 55.0, 1e4)]) == {"a": 55.0 + 60.0}


def test_a_completed_save_is_what_the_next_attempt_begins_with() -> None:
    cost = Costs(save_s=10.0, checkpoint_every_s=1000.0)
    plans = {0.0: {"a": A}, 50.0: {}, 70.0: {"a": A}, 80.0: {"a": on("n1", 0, 1)}}
    assert ends(plans, job(costs=cost), outages=[Outage("n0", 80.0, 1e4)]) == {"a": 80.0 + 50.0}


def test_a_node_returns_when_the_outage_is_over_and_can_be_used_at_once() -> None:
    plans = {0.0: {"a": A}, 5.0: {}, 20.0: {"a": A}}
    finished, messages = simulate(plans, job(), outages=[Outage("n0", 5.0, 20.0)])
    assert named(messages, "NodeJoined") == [0.0, 0.0, 0.0, 20.0]
    assert finished["a"].since == 20.0 + 95.0


# -- interference ----------------------------------------------------------------------------------------------------


def test_jobs_on_several_nodes_slow_each_other_down_while_they_share_one() -> None:
    """a runs on n0 and n1 all the time, b on n1 and n2 from 20 on: they meet on n1 for the whole of b's life."""
    plans = {0.0: {"a": across(0, "n0", "n1")}, 20.0: {"a": across(0, "n0", "n1"), "b": across(1, "n1", "n2")}}
    jobs = job(seconds=100.0), job("b", 30.0)
    assert ends(plans, *jobs) == {"b": 50.0, "a": 100.0}
    # b needs 30 / 0.5 = 60 s; a does 20 alone, 30 beside b, and the last 50 alone again
    assert ends(plans, *jobs, interference=0.5) == {"b": 80.0, "a": 80.0 + 50.0}


@pytest.mark.parametrize(
    "other",
    [on("n1", 1, 2), on("n0", 2, 3), on("n2", 0, 1)],
)
def test_a_job_on_one_node_neither_causes_nor_suffers_interference(other: Allocation) -> None:
    plans = {0.0: {"a": across(0, "n0", "n1"), "b": other}}
    assert ends(plans, job(), job("b", 30.0), interference=0.5) == {"a": 100.0, "b": 30.0}


def test_interference_is_one_slowdown_however_many_neighbours_there_are() -> None:
    everyone = {"a": across(0, "n0", "n1"), "b": across(1, "n0", "n1"), "c": across(2, "n0", "n1")}
    jobs = [job(name, 60.0) for name in "abc"]
    assert ends({0.0: everyone}, *jobs, interference=0.25) == dict.fromkeys("abc", 80.0)


def test_interference_ends_when_the_neighbour_leaves_for_whatever_reason() -> None:
    both = {"a": across(0, "n0", "n1"), "b": across(1, "n1", "n2")}
    alone = {"a": across(0, "n0", "n1")}
    for plans, world in [
        ({0.0: both, 40.0: alone, 200.0: both}, {}),  # stopped
        ({0.0: both, 40.0: alone, 200.0: both}, {"outages": [Outage("n2", 40.0, 41.0)]}),  # lost
    ]:
        finished = ends(plans, job(), job("b", 500.0, in_place="outages" not in world), interference=0.5, **world)
        assert finished["a"] == 40.0 + 80.0


# -- packing ---------------------------------------------------------------------------------------------------------


def test_packed_jobs_run_at_the_packed_speed_only_while_both_run() -> None:
    """From 10 to 60 both run at 0.6: b does its 30, a 30 of its 90 that are left."""
    plans = {0.0: {"a": A}, 10.0: {"a": A, "b": A}}
    assert ends(plans, job(), job("b", 30.0)) == pytest.approx({"b": 60.0, "a": 60.0 + 60.0}, abs=1e-9)


def test_a_mate_that_only_starts_up_slows_nobody_down() -> None:
    plans = {0.0: {"a": A, "b": A}}
    finished = ends(plans, job(), job("b", 30.0, Costs(start_s=100.0)))
    assert finished == {"a": 100.0, "b": 130.0}


def test_one_shared_gpu_is_enough_to_be_packed() -> None:
    plans = {0.0: {"a": on("n0", 0, 1), "b": on("n0", 1, 2)}}
    assert ends(plans, job(seconds=60.0), job("b", 60.0)) == pytest.approx({"a": 100.0, "b": 100.0}, abs=1e-9)


def test_mates_that_are_done_at_the_same_instant_both_succeed() -> None:
    plans = {0.0: {"a": A, "b": A, "c": A}}
    finished = ends(plans, *(job(name, 30.0) for name in "abc"))
    assert finished == pytest.approx(dict.fromkeys("abc", 50.0), abs=1e-9)


# -- the cost model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["start_s", "restart_s", "save_s", "rescale_s", "checkpoint_every_s"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_cost_is_a_finite_number_of_seconds(field: str, value: float) -> None:
    with pytest.raises(InvalidSpec, match=f"cost {field} is {value}"):
        Costs(**{field: value})


def test_costs_are_written_in_a_few_characters() -> None:
    assert CostModel.parse("none") == CostModel(FREE)
    assert CostModel.parse("default").base == DEFAULT
    assert CostModel.parse("start=10,checkpoint_every=0.5").base == Costs(start_s=10.0, checkpoint_every_s=0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cost '' is unknown; expected none, default, sia, or start=S,restart=S"),
        ("stop=3", "cost 'stop' is unknown"),
        ("start_s=3", "cost 'start_s' is unknown"),
        ("start", "cost start is ''; expected a number of seconds"),
        ("start=soon", "cost start is 'soon'"),
        ("start=-3", "cost start_s is -3.0"),
        ("start=nan", "cost start_s is nan"),
        ("start=1,start=2", "cost start is given twice"),
    ],
)
def test_costs_that_cannot_be_meant_are_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        CostModel.parse(text)
    assert words in str(caught.value)


def test_larger_models_take_longer_to_restart_where_the_model_is_known() -> None:
    by_model, flat = CostModel.parse("default"), CostModel(DEFAULT)
    assert by_model.of("imagenet").restart_s == 250.0 - DEFAULT.save_s
    assert by_model.of("unheard-of") == by_model.of(None) == flat.of("imagenet") == DEFAULT


def test_every_start_takes_as_long_as_in_the_simulator_of_sia_s_artifact() -> None:
    costs = CostModel.parse("sia")
    for model, start_s in (("cifar10", 50.0), ("yolov3", 80.0), ("ncf", 15.0), ("gpt_pmp", 30.0), (None, 30.0)):
        found = costs.of(model)
        assert (found.start_s, found.restart_s, found.save_s) == (start_s, start_s, 0.0)


@pytest.mark.parametrize(
    ("plan", "end"),
    [
        # It trains on 2 GPUs for 20 s more while others boot, stands still for 5 s, and does the other 70 s in 35 s.
        (on("n0", 0, 1, 2, 3), 10.0 + 20.0 + 5.0 + 35.0),
        # To shrink, nobody has to boot.
        (on("n0", 0), 10.0 + 5.0 + 180.0),
        # On other GPUs it trains on the old ones meanwhile.
        (on("n1", 0, 1), 10.0 + 20.0 + 5.0 + 70.0),
    ],
)
def test_whoever_grows_in_place_trains_on_while_its_new_workers_boot(plan: Allocation, end: float) -> None:
    costs = Costs(rescale_s=5.0, boot_s=20.0)
    plans = {0.0: {"a": on("n0", 0, 1)}, 10.0: {"a": plan}}
    assert ends(plans, job(costs=costs, in_place=True)) == {"a": pytest.approx(end)}


def test_a_job_may_end_or_lose_a_node_while_its_new_workers_boot() -> None:
    costs = Costs(boot_s=20.0)
    grow = {0.0: {"a": on("n0", 0, 1)}, 90.0: {"a": on("n1", 0, 1)}}
    assert ends(grow, job(costs=costs, in_place=True)) == {"a": 100.0}
    back = {**grow, 95.0: {}, 200.0: {"a": on("n0", 0, 1)}}
    lost = ends(back, job(costs=costs, in_place=True), outages=[Outage("n1", 95.0, 300.0)])
    assert lost == {"a": pytest.approx(205.0)}  # the node it was to have is gone, and it with it; no work is lost
